"""Lines and pairs are read as they were written; errors name the file and the line."""

import gzip
import os
import threading

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
from keras_transformer.texts import decode_lines
from tests.data.corpus_files import write
from tests.examples import examples

# Where `str.splitlines` splits, but a line of a file does not end.
NOT_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r x"
lines_of_text = st.lists(
    st.text(st.sampled_from(NOT_LINE_ENDS) | st.characters(exclude_categories=["Cs"]))
    .map(lambda text: text.replace("\n", ""))
    # "\r\n" ends a line, and a byte order mark at the start of a file is dropped.
    .filter(lambda text: not text.endswith("\r") and not text.startswith("\ufeff")),
)
overwriting_one_file = examples(
    short=25, long=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@overwriting_one_file
@given(lines=lines_of_text, end=st.sampled_from(["\n", "\r\n"]), is_gzip=st.booleans())
def test_read_lines_returns_the_written_lines(tmp_path, lines, end, is_gzip):
    data = "".join(line + end for line in lines).encode()
    path = write(tmp_path / "text", gzip.compress(data) if is_gzip else data)
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize(
    ("name", "data", "lines"),
    [
        ("plain.gz", b"a\n", ["a"]),
        ("like a glob [12]", b"right\n", ["right"]),
    ],
)
def test_lines_are_those_of_the_content(tmp_path, name, data, lines):
    write(tmp_path / "like a glob 1", "wrong\n")
    assert list(read_lines(write(tmp_path / name, data))) == lines


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_pipe_is_read_whole(tmp_path, pack):
    """It can be opened only once: what a first look takes is lost."""
    data, path = "ä\n".encode() * 20_000, tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[pack(data)])
    writer.start()
    assert list(read_lines(path)) == ["ä"] * 20_000
    writer.join()


def test_parallel_globs_are_paired_file_by_file(tmp_path):
    for name in ("2", "1"):
        write(tmp_path / f"{name}.en", f"one {name}\ntwo {name}\n")
        write(tmp_path / f"{name}.de", f"eins {name}\nzwei {name}\n")
    pairs = read_parallel(tmp_path / "*.en", str(tmp_path / "*.de"))
    expected = [("one 1", "eins 1"), ("two 1", "zwei 1"), ("one 2", "eins 2"), ("two 2", "zwei 2")]
    assert list(pairs) == expected
    assert list(pairs) == expected  # a second iteration starts again


def test_reading_is_a_stream(tmp_path):
    path = write(tmp_path / "text", b"good\n\xff\n")
    assert next(iter(read_lines(path))) == "good"


def pairs_of(*contents):
    """Reads files `0` and `1` of these contents, or one TSV file, as pairs."""

    def read(folder):
        return read_parallel(*(write(folder / str(n), text) for n, text in enumerate(contents)))

    return read


@pytest.mark.parametrize(
    ("read", "error", "named"),
    [
        *(
            (pairs_of(pack(b"a\tgood\nal\xc3so\nbad \xff\n")), CorpusError, "{}/0, line 2: byte 3 ")
            for pack in (bytes, gzip.compress)
        ),
        (pairs_of("a\n" * 5, "b\n" * 3), CorpusError, "{}/0, line 4: {}/1 has no .*5 and 3 lines"),
        (pairs_of("a\n" * 3, "b\n" * 5), CorpusError, "{}/1, line 4: {}/0 has no .*5 and 3 lines"),
        (pairs_of("one\teins\ntwo zwei\n"), CorpusError, "{}/0, line 2: no column 2.*another"),
        *(
            (pairs_of(gzip.compress(b"some\ttext\n" * 9)[:cut]), CorpusError, "{}/0: the gzip")
            for cut in (-1, 15)
        ),
        (
            lambda folder: read_parallel([write(folder / "1", ""), folder / "1"], folder / "1"),
            CorpusError,
            "2 for source.*1 for target",
        ),
        *(
            (lambda f, name=name: read_parallel(f / name), FileNotFoundError, f"`source`.*{name}")
            for name in ("missing", "missing-.*txt")
        ),
        (read_lines, IsADirectoryError, "Is a directory: '{}'"),
        (lambda folder: read_lines([]), CorpusError, "must name a file"),
        (
            lambda folder: decode_lines([b"\xff\n"], "standard input"),
            CorpusError,
            "standard input, line 1",
        ),
    ],
)
def test_text_that_cannot_be_read_is_named_by_file_and_line(tmp_path, read, error, named):
    with pytest.raises(error, match=named.replace("{}", str(tmp_path))) as caught:
        list(read(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_files_raise_before_they_are_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_parallel(tmp_path / "missing")
