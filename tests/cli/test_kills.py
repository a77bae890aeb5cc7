"""A command that is killed goes on when it is called again, and its files are those of one call."""

import sys

import pytest

from tests.kills import run_killed
from tests.processes import run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.long]

PROGRAM = """
from keras_transformer import texts
from keras_transformer.__main__ import main

texts.CHUNK_BYTES = 4000
main()
"""
# Before the text of a chunk, or its state, lasts.
POINTS = [("os.fsync", 1), ("os.replace", 2), ("os.fsync", 8), ("os.replace", 5)]
TRANSLATE = ["--input", "train.en", "--output", "{folder}/out"]
COMMANDS = {
    "translate a run": ["translate", "run", *TRANSLATE],
    "translate by CTranslate2": ["translate", "{engine}", *TRANSLATE],
    "distil": ["distil", "recipe.yaml", "run", "--output", "{folder}/d"],
}


def contents(folder):
    """The bytes of all files, which may name the folder, but not of locks that are left."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    name = folder.name.encode()
    return {str(path.relative_to(folder)): path.read_bytes().replace(name, b"") for path in files}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_files_of_a_killed_command_are_those_of_one_call(folder, engine, tmp_path, words):
    def of(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return [word.format(folder=tmp_path / name, engine=engine) for word in words]

    for point in POINTS:
        run_killed(PROGRAM, of("interrupted"), *point)
    for name in ("interrupted", "intact"):
        ran = run([sys.executable, "-c", PROGRAM, *of(name)], capture_output=True)
        assert ran.returncode == 0, ran.stderr
    found, expected = (contents(tmp_path / name) for name in ("interrupted", "intact"))
    assert found == expected and any(expected.values())
