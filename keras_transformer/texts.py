"""Texts of a user: the lines of a file, and checks of lines and of sentence pairs.

`decode_lines` splits every text, so the lines of a file are the same everywhere. Pure Python.
"""

import contextlib
import importlib
import io
import itertools
import os
import pathlib
import re
import reprlib
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.types import Path

# {name: (ending, how a file begins, modules that read it)}.
COMPRESSIONS = {
    "gzip": (".gz", rb"\x1f\x8b", ["gzip"]),
    "bzip2": (".bz2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", ["bz2"]),
    "xz": (".xz", rb"\xfd7zXZ\x00", ["lzma"]),
    # A frame of data, or a skippable frame, with which files of `pzstd` begin.
    "zstd": (".zst", rb"\(\xb5/\xfd|[P-_]\*M\x18", ["compression.zstd", "backports.zstd"]),
}
# Exceptions of these modules for damaged data. An `OSError` of the disk also has an `errno`.
_DAMAGE = {"EOFError", "error", "BadGzipFile", "OSError", "LZMAError", "ZstdError"}
ZSTD = "'backports.zstd>=1.0,<2'"
COMPRESSED = [ending for ending, *_ in COMPRESSIONS.values()]
EXAMPLES = 3  # maximum number of examples in a report
SHOWN = 40  # maximum number of characters of an example
CHUNK_BYTES = 1 << 18  # some thousand lines
# Scripts without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese, with their punctuation.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff00-\uff9f"
_SURROGATE = re.compile("[\ud800-\udfff]")


class CorpusError(ValueError):
    """Text that cannot be read; the message is one line and names the file and the line."""


def lines_of(path: Path) -> Iterator[str]:
    """Yields the lines of a file, plain or compressed, by the rules of `read_lines`."""
    with open_bytes(path) as stream:
        yield from decode_lines(stream, str(path))


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """Opens a file, plain or compressed by gzip, bzip2, xz or zstd, as a binary stream.

    The first bytes of the file tell the compression. All its members, or frames, are read.

    Raises:
        CorpusError: if the compressed data is damaged or cut.
        ImportError: if the file is compressed by zstd, which needs a package before Python 3.14.
    """
    # Opened once: a pipe, such as `<(zcat file)` in a shell, cannot be read again.
    with open(path, "rb") as file:
        head = file.peek(16)
        name = next((n for n, (_, magic, _) in COMPRESSIONS.items() if re.match(magic, head)), None)
        if name is None:
            yield file
            return
        module = import_extra(COMPRESSIONS[name][2], f"{path}: {name} needs", ZSTD)
        try:
            yield module.open(file, **_options(module))
        except Exception as error:
            is_of_disk = isinstance(error, OSError) and error.errno
            if type(error).__name__ not in _DAMAGE or is_of_disk:
                raise
            raise CorpusError(f"{path}: the {name} data is damaged ({error}).") from None


def _options(module):
    """Returns the arguments for `module.open` that let it read every file of its compression."""
    if not hasattr(module, "DecompressionParameter"):  # only zstd has limits
        return {}
    window = module.DecompressionParameter.window_log_max  # files of `zstd --long=31`
    return {"options": {window: window.bounds()[1]}}


def import_extra(modules: Sequence[str], what: str, requirement: str) -> Any:
    """Returns the first of some modules that is installed.

    Args:
        modules: names of modules, the preferred one first.
        what: what needs one of them, as subject and verb of the error: `"file.zst: zstd needs"`.
        requirement: what to install, as pip takes it.

    Raises:
        ImportError: if none is installed.
    """
    for module in modules:
        with contextlib.suppress(ImportError):
            return importlib.import_module(module)
    raise ImportError(f"{what} a package that is not installed: pip install {requirement}")


def suffix_of(path: Path) -> str:
    """Returns the ending of a file's name in lower case: `.tsv` for `a.TSV.gz`."""
    name = pathlib.PurePath(os.fspath(path).lower())
    return (name.with_suffix("") if name.suffix in COMPRESSED else name).suffix


def decode_lines(stream: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """Yields the lines of a binary stream as strings, by the rules of `read_lines`.

    Args:
        stream: iterable of bytes split at `\\n`, such as a file opened with `"rb"` or
            `sys.stdin.buffer`.
        name: name of the stream in errors.
        first: number of the first line. Defaults to `1`.
    """
    for number, line in enumerate(stream, first):
        line = line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number}: byte {error.start + 1} of the line is not valid UTF-8 "
                f"({error.reason}). Convert the text to UTF-8, for example with `iconv`."
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


class Chunk(NamedTuple):
    """Whole lines of a stream: their bytes, and the number of the first one."""

    data: bytes
    first: int

    @property
    def num_lines(self) -> int:
        """The number of lines."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    def lines(self, name: str) -> list[str]:
        """Returns the lines as strings, by the rules of `read_lines`; errors have the `name`."""
        return list(decode_lines(io.BytesIO(self.data), name, self.first))


def read_chunks(stream: Any, first: int = 1, is_pipe: bool = False) -> Iterator[Chunk]:
    """Yields the lines of a stream in chunks of at most `CHUNK_BYTES`, or of one longer line.

    A chunk depends only on the bytes from its beginning, so reading may start where a chunk ends.

    Args:
        stream: buffered binary stream.
        first: number of its first line. Defaults to `1`.
        is_pipe: whether to yield the lines that have arrived, even if it is only one, rather than
            wait for later ones. Defaults to `False`.
    """
    read = stream.read1 if is_pipe else stream.read
    unfinished = b""  # the beginning of a line that has not ended yet
    # Reads up to the next multiple of `CHUNK_BYTES` from the beginning of the chunk.
    while block := read(CHUNK_BYTES - len(unfinished) % CHUNK_BYTES):
        lines, feed, unfinished = (unfinished + block).rpartition(b"\n")
        if feed:
            chunk = Chunk(lines + feed, first)
            yield chunk
            first += chunk.num_lines
    if unfinished:
        yield Chunk(unfinished, first)


def count_lines(stream: Any) -> int | None:
    """Returns how many lines of a file on disk are left to read, or `None` for another stream."""
    try:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return None
    except OSError:  # it has no descriptor
        return None
    start = stream.tell()
    count = sum(chunk.num_lines for chunk in read_chunks(stream))
    stream.seek(start)
    return count


def is_iterable(values: Any) -> bool:
    """Whether a value is an iterable of items; text, bytes, path, mapping and table are not."""
    # Iterating over bytes gives numbers; over a mapping or a table, its keys.
    if isinstance(values, str | bytes | os.PathLike) or _is_mapping(values):
        return False
    try:
        iter(values)  # an array without axes is an `Iterable` and raises
    except TypeError:
        return False
    return True


def _is_mapping(value):
    return isinstance(value, Mapping) or hasattr(value, "columns")  # a table of pandas


def require_texts(texts: Any, name: str, advice: str = "") -> None:
    """Raises a `TypeError` unless a value is an iterable; its items are not read.

    Args:
        texts: what must be an iterable of strings.
        name: name of the argument in the error.
        advice: what to do, for the error. For bytes and mappings, the error has its own advice.
    """
    if is_iterable(texts):
        return
    if isinstance(texts, bytes):
        advice = "Decode bytes with `.decode()`"
    elif _is_mapping(texts):
        advice = "Choose the texts, such as `list(data.values())` or a column"
    received = f"Received: {_in_one_line(texts)}. {advice}".removesuffix(". ")
    raise TypeError(f"`{name}` must be an iterable of strings, such as a list. {received}")


def _in_one_line(value):
    """Returns the type of a value and the beginning of its `repr`, in one line."""
    return f"{type(value).__name__} {' '.join(reprlib.repr(value).split())}"


def checked_lines(lines: Any, name: str) -> list[str]:
    """Returns an iterable of texts as a list; every function that takes texts calls it.

    Args:
        lines: iterable of strings of Python or NumPy.
        name: name of the argument in errors.

    Raises:
        TypeError: if `lines` is not an iterable, or is text, bytes or a mapping; or if a line is
            not text.
        ValueError: if UTF-8 cannot encode a line.
    """
    require_texts(lines, name)
    lines = list(lines)
    for number, line in enumerate(lines, 1):
        check_line(line, name, number)
    return lines


def check_line(line: Any, name: str, number: int) -> None:
    """Raises the errors of `checked_lines` for one line; they say its `number`."""
    if not isinstance(line, str):
        advice = ". Decode bytes with `.decode()`" if isinstance(line, bytes) else ""
        raise TypeError(f"`{name}` must be strings. Received: line {number} is {line!r}{advice}")
    if not _is_valid(line):
        raise ValueError(
            f"`{name}` must be text that UTF-8 can encode. Received: half of a surrogate "
            f"pair in line {number}, {line!r}"
        )


def require_pairs(pairs: Any) -> None:
    """Raises a `ValueError` unless a value is an iterable; its items are not read."""
    if not is_iterable(pairs):
        advice = "zip(sources, targets) makes pairs, and `read_parallel` reads files"
        raise _no_pairs(_in_one_line(pairs), advice)


def pair_chunks(
    pairs: Iterable[Any], size: int | None = None
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the sources and the targets of pairs, as two equally long lists.

    Args:
        pairs: iterable of (source, target) strings.
        size: maximum number of pairs that are read and yielded at once. Defaults to all.

    Raises:
        ValueError: if an item is not a pair of strings. The message has its number, its side and
            its value, and says what to do.
    """
    require_pairs(pairs)
    rows, first = iter(pairs), 1
    while chunk := list(itertools.islice(rows, size)):
        checked_pairs = [checked_pair(number, pair) for number, pair in enumerate(chunk, first)]
        sources, targets = map(list, zip(*checked_pairs, strict=True))
        for side, texts in (("source", sources), ("target", targets)):
            if not _is_valid("".join(texts)):
                index = next(i for i, text in enumerate(texts) if not _is_valid(text))
                raise _no_pairs(
                    f"pair {first + index} has {side}={reprlib.repr(texts[index])}",
                    "half of a surrogate pair is no text: read the file as UTF-8",
                )
        yield sources, targets
        first += len(chunk)


def checked_pair(number: int, pair: Any) -> Sequence[str]:
    """Returns a pair as a sequence of two strings; raises a `ValueError` if it is not a pair."""
    # Check the exact types first: checks of abstract classes cost a fifth of tokenizing.
    is_plain = type(pair) in (tuple, list) and len(pair) == 2
    if is_plain and type(pair[0]) is type(pair[1]) is str:
        return pair
    row = pair.tolist() if hasattr(pair, "tolist") else pair  # a row of NumPy or pandas
    received = f"pair {number} is {reprlib.repr(pair)}"
    if isinstance(row, Mapping):
        raise _no_pairs(received, f"choose two columns: {_columns(row)}")
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise _no_pairs(received, "each pair is a tuple (source, target)")
    if len(row) != 2:
        raise _no_pairs(received, f"the number of its columns is {len(row)}, choose two")
    for side, text in zip(("source", "target"), row, strict=True):
        if not isinstance(text, str):
            is_bytes = isinstance(text, bytes)
            advice = "decode it with `.decode()`" if is_bytes else "leave the pair out, or mend it"
            raise _no_pairs(f"pair {number} has {side}={reprlib.repr(text)}", advice)
    return row


def _no_pairs(received, advice):
    """Returns the error for `pairs`."""
    return ValueError(
        f"`pairs` must be pairs of strings, (source, target). Received: {received}; {advice}"
    )


def _columns(row):
    """Returns Python code that makes pairs from rows like this mapping, for an error."""
    path = "row"
    if len(row) == 1 and isinstance(inner := next(iter(row.values())), Mapping):
        path, row = f"row[{next(iter(row))!r}]", inner  # as on the Hub of Hugging Face
    source, target = list(row)[:2] if len(row) >= 2 else ("source", "target")
    return f"(({path}[{source!r}], {path}[{target!r}]) for row in rows)"


def _is_valid(text):
    return text.isascii() or not _SURROGATE.search(text)


def language_tag(code: str) -> str:
    """Returns a language code in the form in which tags are compared: `de-de` for `de_DE`."""
    return code.lower().replace("_", "-")


def is_language(tag: str, wanted: str) -> bool:
    """Whether a `language_tag` is the wanted one or a regional form of it: `en-us` is `en`."""
    return f"{tag}-".startswith(f"{wanted}-")


def shown(text: str) -> str:
    """Returns a text as an example in a report, cut if it is long."""
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")


def first_of(items: Sequence[str], count: int) -> str:
    """Returns the first items for an error message: `"a, b and 4 more"`."""
    more = f" and {len(items) - count} more" if len(items) > count else ""
    return f"{', '.join(items[:count])}{more}"


def shown_symbol(symbol: str) -> str:
    """Returns a symbol as an example in a report.

    One that begins with an accent is shown by its code points: a terminal would draw the accent on
    the quotation mark.
    """
    is_mark = unicodedata.category(symbol[:1] or " ").startswith("M")
    return " ".join(f"U+{ord(character):04X}" for character in symbol) if is_mark else shown(symbol)


def shown_pairs(pairs: Iterable[Iterable[str]]) -> str:
    """Returns some (source, target) texts as examples in a report."""
    return ", ".join(" | ".join(map(shown, pair)) for pair in pairs)
