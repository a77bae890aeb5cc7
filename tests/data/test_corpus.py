"""Lines and pairs are read as they were written; errors name the file and the line."""

import gzip
import os
import threading

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
from keras_transformer.texts import decode_lines
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


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@overwriting_one_file
@given(lines=lines_of_text, end=st.sampled_from(["\n", "\r\n"]), is_gzip=st.booleans())
def test_read_lines_returns_the_written_lines(tmp_path, lines, end, is_gzip):
    data = "".join(line + end for line in lines).encode()
    path = write(tmp_path / "text", gzip.compress(data) if is_gzip else data)
    assert list(read_lines(path)) == lines


def test_last_line_needs_no_line_end(tmp_path):
    assert list(read_lines(write(tmp_path / "text", "a\n\nb"))) == ["a", "", "b"]


def test_byte_order_mark_is_dropped_at_the_start_of_a_file_only(tmp_path):
    path = write(tmp_path / "text", "\ufeffa\n\ufeffb\n")
    assert list(read_lines(path)) == ["a", "\ufeffb"]


def test_gzip_is_detected_by_content_not_by_name(tmp_path):
    plain = write(tmp_path / "plain.gz", "a\n")
    zipped = write(tmp_path / "zipped.txt", gzip.compress(b"b\n"))
    assert list(read_lines([plain, zipped])) == ["a", "b"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_pipe_is_read_whole(tmp_path, pack):
    """It can be opened only once: what a first look takes is lost."""
    data, path = "ä\n".encode() * 20_000, tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[pack(data)])
    writer.start()
    assert list(read_lines(path)) == ["ä"] * 20_000
    writer.join()


def test_glob_reads_its_files_in_sorted_order(tmp_path):
    for name in ("b", "c", "a"):
        write(tmp_path / f"part-{name}.txt", f"{name}\n")
    assert list(read_lines(str(tmp_path / "part-*.txt"))) == ["a", "b", "c"]


def test_existing_file_is_read_even_if_its_name_looks_like_a_glob(tmp_path):
    write(tmp_path / "x1", "wrong\n")
    assert list(read_lines(write(tmp_path / "x[12]", "right\n"))) == ["right"]


def test_parallel_globs_are_paired_file_by_file(tmp_path):
    for name in ("2", "1"):
        write(tmp_path / f"{name}.en", f"one {name}\ntwo {name}\n")
        write(tmp_path / f"{name}.de", f"eins {name}\nzwei {name}\n")
    pairs = read_parallel(tmp_path / "*.en", str(tmp_path / "*.de"))
    expected = [("one 1", "eins 1"), ("two 1", "zwei 1"), ("one 2", "eins 2"), ("two 2", "zwei 2")]
    assert list(pairs) == expected
    assert list(pairs) == expected  # a second iteration starts again


def test_tsv_columns_are_source_and_target(tmp_path):
    path = write(tmp_path / "pairs.tsv", "one\teins\n\tleer\ntwo\tzwei\tlicence\n")
    assert list(read_parallel(path)) == [("one", "eins"), ("", "leer"), ("two", "zwei")]


def test_reading_is_a_stream(tmp_path):
    path = write(tmp_path / "text", b"good\n\xff\n")
    assert next(iter(read_lines(path))) == "good"


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_invalid_utf8_is_named_by_file_and_line(tmp_path, compress):
    path = write(tmp_path / "text", compress(b"good\nal\xc3so\nbad \xff\n"))
    with pytest.raises(CorpusError) as error:
        list(read_lines(path))
    assert f"{path}, line 2: byte 3 " in one_line(error)


def test_decode_lines_names_its_stream_in_errors():
    with pytest.raises(CorpusError, match="standard input, line 1"):
        list(decode_lines([b"\xff\n"], "standard input"))


@pytest.mark.parametrize("is_source_longer", [True, False])
def test_files_of_unequal_length_are_named_with_line_and_lengths(tmp_path, is_source_longer):
    long, short = write(tmp_path / "long", "a\n" * 5), write(tmp_path / "short", "b\n" * 3)
    files = (long, short) if is_source_longer else (short, long)
    with pytest.raises(CorpusError) as error:
        list(read_parallel(*files))
    message = one_line(error)
    assert message.startswith(f"{long}, line 4: {short} has no such line")
    assert "5 and 3 lines" in message


def test_tsv_line_without_a_tab_is_named(tmp_path):
    path = write(tmp_path / "pairs.tsv", "one\teins\ntwo zwei\n")
    with pytest.raises(CorpusError) as error:
        list(read_parallel(path))
    assert one_line(error).startswith(f"{path}, line 2: no tab")


def test_unequal_numbers_of_files_raise(tmp_path):
    source = [write(tmp_path / "1.en", "a\n"), write(tmp_path / "2.en", "b\n")]
    with pytest.raises(CorpusError) as error:
        read_parallel(source, write(tmp_path / "1.de", "a\n"))
    assert "2 for source" in one_line(error)
    assert "1 for target" in one_line(error)


@pytest.mark.parametrize("cut", [-1, 15], ids=["checksum", "data"])
def test_damaged_gzip_is_named(tmp_path, cut):
    path = write(tmp_path / "text.gz", gzip.compress(b"some text\n" * 9)[:cut])
    with pytest.raises(CorpusError) as error:
        list(read_lines(path))
    assert str(path) in one_line(error)


@pytest.mark.parametrize("name", ["missing", "missing-*.txt"])
def test_missing_files_raise_at_once(tmp_path, name):
    with pytest.raises(FileNotFoundError) as error:
        read_parallel(tmp_path / name, tmp_path / name)
    assert "`source`" in one_line(error)
    assert name in one_line(error)


def test_folder_and_empty_list_raise_at_once(tmp_path):
    with pytest.raises(IsADirectoryError) as error:
        read_lines(tmp_path)
    assert str(tmp_path) in one_line(error)
    with pytest.raises(CorpusError, match="must name a file"):
        read_lines([])
