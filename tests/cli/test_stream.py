"""`translate` in chunks: bounded memory, slow pipes, and files that go on after a kill."""

import itertools
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from keras_transformer import texts
from keras_transformer.cli import stream, translators
from keras_transformer.decoding.ctranslate2 import CTranslate2Engine
from keras_transformer.decoding.engine import Engine
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.keras_engine import KerasEngine
from keras_transformer.decoding.saved_model import SavedModelEngine
from tests.cli.small_run import CLI, cli, succeed, write_lines
from tests.processes import Popen, run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
LINES = [f"{number} \u2028 x" * (number % 7) for number in range(60)]
CHUNK_BYTES = 100


class Shout:
    """Called like a `Translator`; fails when it has been called `calls` times."""

    engine, all_settings = Engine(), {}
    source_tokenizer = SimpleNamespace(unknown=None, tag=None)

    def __init__(self, calls=None):
        self.calls, self.texts = calls, []

    def __call__(self, lines, on_progress=None, **options):
        if not lines:
            return []
        if self.calls is not None and len(self.texts) == self.calls:
            raise KeyboardInterrupt
        self.texts.append(lines)
        on_progress(len(lines))
        words = {"source_tokens": [], "tokens": [], "log_probs": []}
        return [[Hypothesis(text=line.upper(), score=0.0, **words)] for line in lines]


@pytest.fixture
def shout(monkeypatch, folder, tmp_path):
    """Runs `translate` with `Shout`, `lines.txt` and small chunks; returns what it was given."""
    monkeypatch.setattr(texts, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "lines.txt", LINES)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(stream.os, "_exit", end)

    def translate(*words, calls=None, **options):
        engine = Shout(calls)
        monkeypatch.setattr(translators, "load_folders", lambda *_, **__: engine)
        ran = cli("translate", folder / "run", *words, **options)
        return ran, engine.texts

    return translate


FILES = ("--input", "lines.txt", "--output", "found.txt")


def test_file_goes_on_at_the_border_of_any_chunk(shout, tmp_path):
    found, partial = tmp_path / "found.txt", tmp_path / "found.txt.partial"
    whole, chunks = shout(*FILES)
    assert whole.exit_code == 0 and whole.stderr == ""
    expected = found.read_bytes()
    assert expected.decode() == "".join(f"{line.upper()}\n" for line in LINES)
    assert len(chunks) > 9 and list(itertools.chain(*chunks)) == LINES
    for done in range(len(chunks)):
        found.write_text("before")
        stopped, first = shout(*FILES, calls=done)
        assert stopped.exit_code == 130 and found.read_text() == "before"
        lines = sum(map(len, chunks[:done]))
        assert f"after line {lines:,}. The same command goes on." in stopped.stderr
        with open(partial, "ab") as file:
            file.write(b"half a chunk")  # a kill before the state is written
        resumed, second = shout(*FILES)
        assert resumed.exit_code == 0, resumed.stderr
        assert resumed.stderr == (f"Goes on after line {lines:,}.\n" if done else "")
        assert first + second == chunks, "the same chunks, and none twice"
        assert found.read_bytes() == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["found.txt", "lines.txt"]


@pytest.mark.parametrize(
    "words, change, named",
    [
        (("--scores",), None, "scores=True, not False"),
        (("--n-best", 2), None, "n_best=2, not None"),
        ((), (b"0 ", b"1 "), "input="),
        ((), (b"\n", b""), "input="),
    ],
)
def test_other_settings_or_another_input_are_refused_in_one_line(
    shout, tmp_path, words, change, named
):
    shout(*FILES, calls=3)
    before = (tmp_path / "found.txt.partial").read_bytes()
    if change is not None:
        source = tmp_path / "lines.txt"
        source.write_bytes(source.read_bytes().replace(*change, 1))
    refused, _ = shout(*FILES, *words)
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "found.txt.partial" in refused.stderr and "To begin anew, delete it." in refused.stderr
    assert named in refused.stderr and refused.stderr.count(", not ") == 1, refused.stderr
    assert (tmp_path / "found.txt.partial").read_bytes() == before
    (tmp_path / "found.txt.partial").unlink()
    begun, _ = shout(*FILES, *words)
    assert begun.exit_code == 0, begun.stderr


OF_ENGINES = {
    CTranslate2Engine: ["CT2_FORCE_CPU_ISA", "CT2_USE_MKL", "ctranslate2", "processor"],
    SavedModelEngine: ["TF_ENABLE_ONEDNN_OPTS", "tensorflow", "tensorflow_text", "processor"],
    KerasEngine: ["TF_ENABLE_ONEDNN_OPTS", "keras", "tensorflow", "processor"],
}


@pytest.mark.parametrize(
    "engine, name", [(engine, name) for engine, names in OF_ENGINES.items() for name in names]
)
def test_what_another_engine_would_compute_does_not_go_on(shout, monkeypatch, engine, name):
    """With another variable, version or processor; with what was before, it goes on."""
    monkeypatch.setattr(Shout, "engine", engine)
    for library in ("ctranslate2", "tensorflow_text"):
        monkeypatch.setitem(sys.modules, library, SimpleNamespace(__version__="1.0"))
    monkeypatch.delenv(name, raising=False)
    shout(*FILES, calls=3)
    with monkeypatch.context() as other:
        if name.isupper():
            other.setenv(name, "0")
        elif name == "processor":
            other.setattr(stream, "features", lambda: "flags: another")
        else:
            other.setattr(sys.modules[name], "__version__", "9.9")
        refused, _ = shout(*FILES)
    assert refused.exit_code == 2 and refused.stderr.count(", not ") == 1, refused.stderr
    assert f"Received: {name}=" in refused.stderr
    assert shout(*FILES)[0].stderr.startswith("Goes on after line ")


def test_another_tag_of_the_recipe_does_not_go_on(shout, monkeypatch):
    shout(*FILES, calls=3)
    with monkeypatch.context() as other:
        other.setattr(Shout.source_tokenizer, "tag", "<news>")
        refused, _ = shout(*FILES)
    assert refused.exit_code == 2 and "Received: tag=<news>, not None." in refused.stderr
    assert shout(*FILES)[0].stderr.startswith("Goes on after line ")


def test_line_numbers_are_those_of_the_whole_input(shout, tmp_path):
    ran, chunks = shout("--n-best", 1, "--input", "lines.txt")
    assert len(chunks) > 9
    numbers = [int(row.partition("\t")[0]) for row in ran.stdout.split("\n")[:-1]]
    assert numbers == [number for number, _ in enumerate(LINES, start=1)]
    with open(tmp_path / "lines.txt", "ab") as file:
        file.write(b"\xff\n")
    assert f"line {len(LINES) + 1}: byte 1" in shout("--input", "lines.txt")[0].stderr


# `translate` with an engine that needs no time; it prints the memory at a tenth and at the end.
MEMORY = """
import pathlib, re
from types import SimpleNamespace
from keras_transformer import texts
from keras_transformer.__main__ import main
from keras_transformer.cli import stream, translators
from keras_transformer.decoding.engine import Engine
from keras_transformer.decoding.hypothesis import Hypothesis

done, points = 0, [NUMBER // 10, NUMBER]

def translate(lines, **options):
    global done
    done += len(lines)
    if points and done >= points[0]:
        points.pop(0)
        status = pathlib.Path("/proc/self/status").read_text()
        print(re.search(r"RssAnon:\\s+(\\d+)", status)[1])
    words = {"source_tokens": [], "tokens": [], "log_probs": []}
    return [[Hypothesis(text=line * 99, score=0.0, **words)] for line in lines]

texts.CHUNK_BYTES, translate.source_tokenizer = 1 << 15, SimpleNamespace(unknown=None)
translate.engine = Engine()
translators.load_folders = lambda *_, **__: translate
stream.journal_settings = lambda *_: {}
main()
"""


def test_memory_is_bounded(tmp_path):
    """A tenth of the translations would be more than the limit."""
    number = 200_000
    write_lines(tmp_path / "lines.txt", (f"line {n}" for n in range(number)))
    code = MEMORY.replace("NUMBER", str(number))
    command = [sys.executable, "-c", code, "translate", "run", *FILES]
    ran = run(command, cwd=tmp_path, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    early, late = map(int, ran.stdout.split())
    assert late <= 1.05 * early, f"{early:,} and {late:,} kB"
    assert (tmp_path / "found.txt").read_bytes().count(b"\n") == number


def test_folder_of_ctranslate2_takes_the_place_of_the_run(folder, engine, tmp_path, monkeypatch):
    """Two chunks at a time, in order, with the search options that the engine has."""
    from keras_transformer import load_translator

    lines = (folder / "train.en").read_text("utf-8").splitlines()[:60]
    write_lines(tmp_path / "lines.txt", lines)
    expected = "".join(f"{text}\n" for text in load_translator(engine)(lines, beam_size=2))
    monkeypatch.chdir(tmp_path)
    piped = cli("translate", engine, "--beam-size", 2, stdin="\n".join(lines).encode())
    assert piped.stdout == expected, piped.stderr
    monkeypatch.setattr(texts, "CHUNK_BYTES", 500)
    succeed("translate", engine, "--beam-size", 2, *FILES)
    assert len((tmp_path / "found.txt").read_text("utf-8").splitlines()) == len(lines)
    for words in (("--dtype", "float32"), ("--length-penalty", "gnmt")):
        refused = cli("translate", engine, *words)
        assert refused.exit_code == 2 and refused.stderr.count("\n") == 1, refused.stderr
        assert words[0].strip("-").replace("-", "_") in refused.stderr


def test_slow_pipe_gets_each_answer_at_once_and_a_closed_one_ends_quietly(engine):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen([*CLI, "translate", engine], **pipes) as process:
        for line in (b"twenty-one\n", b"\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n"), "without a further line"
        process.stdout.close()  # as `| head -3`
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
