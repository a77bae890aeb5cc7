"""The lines of a text file: the one reader, so that N lines of any file are the same N strings.

Pure Python.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator

from keras_transformer.types import Path

GZIP_MAGIC = b"\x1f\x8b"


class CorpusError(ValueError):
    """Text that cannot be read; the message is one line and names the file and the line."""


def lines_of(path: Path) -> Iterator[str]:
    """Yields the lines of a file, plain or gzip, by the rules of `read_lines`."""
    try:
        # Opened once: a pipe, such as `<(zcat file)` in a shell, cannot be read again.
        with open(path, "rb") as file:
            is_gzip = file.peek(2)[:2] == GZIP_MAGIC
            yield from decode_lines(gzip.GzipFile(fileobj=file) if is_gzip else file, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}: the gzip data is damaged ({error}).") from None


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields the lines of a binary stream as strings, by the rules of `read_lines`.

    Args:
        stream: iterable of bytes split at `\\n`, such as a file opened with `"rb"` or
            `sys.stdin.buffer`.
        name: name of the stream in errors.
    """
    for number, line in enumerate(stream, start=1):
        if line.endswith(b"\n"):
            line = line[: -2 if line.endswith(b"\r\n") else -1]
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number}: byte {error.start + 1} of the line is not valid UTF-8 "
                f"({error.reason}). Convert the text to UTF-8, for example with `iconv`."
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text
