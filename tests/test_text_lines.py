"""Lines of files: the same for every command and function that reads them."""

import contextlib
import gzip
import io
import sys
import types

import numpy as np
import pytest

from keras_transformer import texts
from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
from keras_transformer.serving import verification
from tests.data.corpus_files import packed

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
    opened = texts.open_bytes(path) if path else contextlib.nullcontext(sys.stdin.buffer)
    with opened as stream:
        count = texts.count_lines(stream)
        chunks = list(texts.read_chunks(stream, is_pipe=path is None))
        numbers = [chunk.first for chunk in chunks] + [1 + sum(chunk.num_lines for chunk in chunks)]
        lines = [chunk.lines(str(path)) for chunk in chunks]
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
    "both sides of read_parallel": lambda path, _: [
        source for source, target in read_parallel(path, path, allow_empty=True) if source == target
    ],
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
