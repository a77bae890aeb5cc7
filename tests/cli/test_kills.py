"""A command that is killed goes on when it is called again, and its files are those of one call."""

import sys

import pytest

from tests.cli.small_run import cli
from tests.kills import run_killed
from tests.processes import run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

MANY_CHUNKS = """
from keras_transformer import texts
from keras_transformer.data import token_store

texts.CHUNK_BYTES, token_store.ENCODED_AT_ONCE = 4000, 50
token_store.usable_cores = lambda: 1
"""
PROGRAM = f"{MANY_CHUNKS}\nfrom keras_transformer.__main__ import main; main()"
# Before the text of a chunk, its state, or the whole file lasts.
OF_A_JOURNAL = [("os.fsync", 1), ("os.replace", 2), ("os.fsync", 8), ("os.replace", 5)]
# A store, which is built anew: before a chunk, its files, and its name last.
OF_A_STORE = [("numpy.ascontiguousarray", 9), ("os.fsync", 2), ("os.rename", 1)]
TRANSLATE = ["--input", "train.en", "--output", "{folder}/out"]
COMMANDS = {
    "prepare": (["prepare", "recipe.yaml", "--run", "{folder}/run"], OF_A_STORE),
    "translate a run": (["translate", "run", *TRANSLATE], OF_A_JOURNAL),
    "translate by CTranslate2": (["translate", "{engine}", *TRANSLATE], OF_A_JOURNAL),
    "distil": (["distil", "recipe.yaml", "run", "--output", "{folder}/d"], OF_A_JOURNAL),
}
ROWS = [pytest.param(*COMMANDS["prepare"], id="prepare")]
ROWS += [
    pytest.param(*row, id=name, marks=pytest.mark.long)
    for name, row in COMMANDS.items()
    if name != "prepare"
]


@pytest.fixture(scope="module")
def engine(trained, tmp_path_factory):
    engine = tmp_path_factory.mktemp("engine") / "ct2"
    assert cli("export", trained / "run", engine, "--format", "ctranslate2").exit_code == 0
    return engine


def contents(folder):
    """The bytes of all files, which may name the folder, but not of locks that are left."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    name = folder.name.encode()
    return {str(path.relative_to(folder)): path.read_bytes().replace(name, b"") for path in files}


@pytest.mark.parametrize("words, points", ROWS)
def test_files_of_a_killed_command_are_those_of_one_call(folder, tmp_path, request, words, points):
    places = {"engine": request.getfixturevalue("engine")} if "{engine}" in words else {}

    def of(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return [word.format(folder=tmp_path / name, **places) for word in words]

    for point in points:
        run_killed(PROGRAM, of("interrupted"), *point)
    for name in ("interrupted", "intact"):
        ran = run([sys.executable, "-c", PROGRAM, *of(name)], capture_output=True)
        assert ran.returncode == 0, ran.stderr
    found, expected = (contents(tmp_path / name) for name in ("interrupted", "intact"))
    assert found == expected and any(expected.values())
