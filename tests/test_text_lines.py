"""Lines of files: one reader in the whole package, and files that are always UTF-8."""

import ast
import gzip
import io
import sys
import types

import numpy as np
import pytest

from keras_transformer import texts
from keras_transformer.cli.decoding import open_input
from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
from keras_transformer.serving import verification
from tests.data.corpus_files import packed
from tests.test_folders import FILES, relative

pytestmark = pytest.mark.tensorflow_only

# {what the file is: (bytes of the file, the lines; or the line that cannot be read)}.
CASES = {
    "line feeds": (b"a\nb\n", ["a", "b"]),
    "no final line feed": (b"a\nb", ["a", "b"]),
    "CRLF": (b"a\r\nb\r\n", ["a", "b"]),
    "CRLF, no final one": (b"a\r\nb", ["a", "b"]),
    "mixed ends": (b"a\r\nb\nc\r\n", ["a", "b", "c"]),
    "carriage return alone": (b"a\rb\nc\r\r\n", ["a\rb", "c\r"]),
    "carriage return at the end of the file": (b"a\nb\r", ["a", "b\r"]),
    "U+2028 and U+2029": ("a\u2028b\u2029c\n".encode(), ["a\u2028b\u2029c"]),
    "U+0085": ("a\x85b\n".encode(), ["a\x85b"]),
    "form feed, vertical tab": (b"a\x0cb\x0bc\n", ["a\x0cb\x0bc"]),
    "separators of ASCII": (b"a\x1cb\x1dc\x1ed\x1f\n", ["a\x1cb\x1dc\x1ed\x1f"]),
    "NUL": (b"a\0b\n\0\n", ["a\0b", "\0"]),
    "empty file": (b"", []),
    "one line feed": (b"\n", [""]),
    "only line feeds": (b"\n\n\n", ["", "", ""]),
    "blank lines": (b"\na\n\n b \n\n", ["", "a", "", " b ", ""]),
    "byte order mark": (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    "byte order mark alone": (b"\xef\xbb\xbf", [""]),
    "byte order mark and CRLF": (b"\xef\xbb\xbf\r\na\r\n", ["", "a"]),
    "gzip": (gzip.compress(b"a\r\nb\n\n"), ["a", "b", ""]),
    "gzip of a byte order mark": (gzip.compress(b"\xef\xbb\xbfa\n"), ["a"]),
    "gzip of nothing": (gzip.compress(b""), []),
    "two members of gzip": (gzip.compress(b"a\nb") + gzip.compress(b"c\n"), ["a", "bc"]),
    "two frames of zstd": (packed(b"a\nb\r\n", ".zst"), ["a", "b"]),
    "two members of bzip2": (packed(b"a\nb", ".bz2"), ["a", "b"]),
    "two members of xz": (packed(b"\xef\xbb\xbfa\n\n", ".xz"), ["a", ""]),
    "combined characters": ("e\u0301 \U0001f469\u200d\U0001f4bb\n".encode(),)
    + (["e\u0301 \U0001f469\u200d\U0001f4bb"],),
    "not UTF-8": (b"a\nb\xff\n", 2),
    "half a character": (b"a\n\xe2\x82\n", 2),
    "surrogate": (b"\xed\xa0\x80\n", 1),
    "Latin-1": ("ä\n".encode("latin-1"), 1),
    "UTF-16": ("a\nb\n".encode("utf-16"), 1),
    "UTF-16, big-endian": (b"\xfe\xff\0a\0\n", 1),
    "gzip of UTF-16": (gzip.compress("a\n".encode("utf-16")), 1),
}


def translated(path, monkeypatch):
    """In chunks of one byte, or one line; as many as are counted."""
    monkeypatch.setattr(texts, "CHUNK_BYTES", 1)
    with open_input(path) as (stream, name):
        count = texts.count_lines(stream)
        chunks = list(texts.read_chunks(stream, is_pipe=path is None))
        numbers = [chunk.first for chunk in chunks] + [1 + sum(chunk.num_lines for chunk in chunks)]
        lines = [chunk.lines(name) for chunk in chunks]
    assert count in (None, sum(map(len, lines)))
    assert list(np.diff(numbers)) == list(map(len, lines)), "the number of the first line of each"
    return [line for chunk in lines for line in chunk]


def translated_from_a_pipe(path, monkeypatch):
    with texts.open_bytes(path) as stream:
        data = stream.read()  # as of `zcat`
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(data)))
    return translated(None, monkeypatch)


ENTRIES = {
    "read_lines": lambda path, monkeypatch: list(read_lines(path)),
    "source of read_parallel": lambda path, _: [s for s, _ in read_parallel(path, path)],
    "target of read_parallel": lambda path, _: [t for _, t in read_parallel(path, path)],
    "translate --input": translated,
    "translate < pipe": translated_from_a_pipe,
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("case", CASES)
def test_lines_of_a_file_are_the_same_for_every_entry(case, entry, tmp_path, monkeypatch):
    data, expected = CASES[case]
    path = tmp_path / "text"  # never `.gz`: the contents decide
    path.write_bytes(data)
    if isinstance(expected, list):
        assert ENTRIES[entry](path, monkeypatch) == expected
        return
    with pytest.raises(CorpusError, match=rf"line {expected}: byte .* is not valid UTF-8") as error:
        ENTRIES[entry](path, monkeypatch)
    assert "\n" not in str(error.value) and "Convert the text to UTF-8" in str(error.value)


def test_verify_says_that_there_are_no_examples(tmp_path):
    (tmp_path / "examples.jsonl").write_text("\n\n", "utf-8")
    with pytest.raises(ValueError, match="must hold an example in each line"):
        list(verification.verify(None, tmp_path))


# === No other reader ===

# {file: {call: why it reads no lines of text}}.
NO_LINES = {
    "texts.py": {"open": "the reader: binary"},
    "atomic_file.py": {"open": "binary, to flush files"},
    "cli/stream.py": {"open": "binary, to write", "read_text": "JSON"},
    "cli/backend.py": {"open": "binary: /dev/null", "read_text": "JSON"},
    "cli/options.py": {"splitlines": "the examples of a command"},
    "cores.py": {"read_text": "two numbers"},
    "data/corpus.py": {"open": "binary, to hash files"},
    "data/marian_tokenizer.py": {"read_text": "JSON"},
    "data/sentencepiece_training.py": {"open": "writes ASCII"},
    "data/piece_tokenizer.py": {"read_text": "JSON"},
    "data/token_store.py": {"open": "binary: writes arrays", "read_text": "JSON"},
    "decoding/ctranslate2.py": {"read_text": "JSON"},
    "models/loading.py": {"open": "binary: a zip file"},
    "plotting.py": {"open": "CSV"},
    "runs/checkpoint_file.py": {"open": "binary: a zip file"},
    "runs/device_check.py": {"splitlines": "the output of a process"},
    "runs/event_log.py": {"open": "binary: writes events"},
    "runs/doctor.py": {"splitlines": "the text of a report"},
    "runs/folder.py": {"read_text": "JSON, YAML and CSV"},
    "importing/files.py": {
        "open": "binary",
        "read_text": "JSON",
        "split": "Marian's vocab.yml",
    },
    "importing/importer.py": {"open": "binary: a zip file", "splitlines": "the text of an error"},
    "importing/marian.py": {"read_text": "README and LICENSE, for their licence"},
    "lock.py": {"open": "the name of a process"},
    "runs/recipe.py": {"read_text": "YAML"},
    "runs/trainer.py": {"splitlines": "the text of a report"},
    "serving/errors.py": {"splitlines": "the text of an error"},
    "serving/markup.py": {"split": "the text of a request"},
    "serving/model.py": {"read_text": "JSON"},
    "serving/status.py": {"read_text": "YAML"},
    "settings.py": {"splitlines": "the text of an error"},
    "training/workers.py": {"splitlines": "the text of an error"},
}


def calls(tree):
    """Yields the name of each called function or method, with the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", None)), node


def is_reader(name, call):
    """Whether a call may read lines of a file."""
    if name == "split":
        return any(isinstance(each, ast.Constant) and each.value == "\n" for each in call.args)
    is_of_module = isinstance(call.func, ast.Attribute)  # `os.open`, `archive.open`
    return name in ("splitlines", "readlines", "read_text") or (name == "open" and not is_of_module)


def test_lines_are_read_in_one_place():
    found = {}
    for path in FILES:
        names = {name for name, call in calls(ast.parse(path.read_text("utf-8")))
                 if is_reader(name, call)}  # fmt: skip
        if names:
            found[relative(path)] = names
    assert found == {file: set(reasons) for file, reasons in NO_LINES.items()}, (
        "read lines with `texts.py`, or say here why these are none"
    )


def test_text_files_are_opened_with_their_encoding():
    """Without one, the locale decides."""
    wrong = []
    for path in FILES:
        for name, call in calls(ast.parse(path.read_text("utf-8"))):
            given = len(call.args) + len(call.keywords)
            is_text = name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)
            if is_text and given <= (name == "write_text"):
                wrong.append(f"{relative(path)}:{call.lineno}")
            if name == "open" and isinstance(call.func, ast.Name):
                mode = call.args[1].value if len(call.args) > 1 else "r"
                if "b" not in mode and not any(each.arg == "encoding" for each in call.keywords):
                    wrong.append(f"{relative(path)}:{call.lineno}")
    assert not wrong
