"""Parallel text, one sentence a line: plain files, `.gz`, globs, lists of files and TSV.

First station of the data flow: raw text -> pairs of strings. Pure Python, reads as a stream.
Paper section 5.1 (training data).
"""

import contextlib
import glob
import gzip
import itertools
import os
import zlib

GZIP_MAGIC = b"\x1f\x8b"


class CorpusError(ValueError):
    """Text that cannot be read as asked; its one-line message names the file and the line."""


class TextLines:
    """The lines of one or more files, read anew by each iteration. See `read_lines`."""

    def __init__(self, paths):
        self.paths = tuple(paths)

    def __iter__(self):
        for path in self.paths:
            yield from _lines_of(path)

    def __repr__(self):
        return f"TextLines({', '.join(self.paths)})"


class ParallelText:
    """Pairs `(source_line, target_line)`, read anew by each iteration. See `read_parallel`."""

    def __init__(self, source_paths, target_paths=None):
        self.source_paths = tuple(source_paths)
        self.target_paths = None if target_paths is None else tuple(target_paths)

    def __iter__(self):
        if self.target_paths is None:
            for path in self.source_paths:
                yield from _columns_of(path)
        else:
            for source, target in zip(self.source_paths, self.target_paths, strict=True):
                yield from _aligned_lines_of(source, target)

    def __repr__(self):
        sides = (self.source_paths, self.target_paths or ())
        return f"ParallelText({' | '.join(', '.join(side) for side in sides if side)})"


def read_lines(files):
    """Reads lines of text, as a stream that can be iterated over any number of times.

    A line ends at `\\n` or `\\r\\n` and at nothing else (U+2028 or a form feed is text), so N lines
    of a file are N strings. Files are UTF-8, plain or gzip (told by content, not by name);
    a byte order mark at the start of a file is dropped.

    Args:
        files: a path, a glob (its files in sorted order), or a list of these.

    Returns:
        An iterable of strings. While it is read, text that is not UTF-8 raises `CorpusError`.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
    """
    return TextLines(_find_files(files, "files"))


def read_parallel(source, target=None):
    """Reads a parallel corpus, as a stream that can be iterated over any number of times.

    Line n of the source is paired with line n of the target, file by file; see `read_lines` for
    what a line is. With `target=None` the files are TSV: source, tab, target; further columns
    are ignored.

    Args:
        source: a path, a glob (its files in sorted order), or a list of these.
        target: the same for the target side: as many files as `source`, in the same order.
            `None`: `source` holds both sides, tab-separated.

    Returns:
        An iterable of pairs `(source_line, target_line)`. While it is read, files of unequal
        length, a TSV line without a tab or text that is not UTF-8 raise `CorpusError`.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
        CorpusError: if the two sides are not equally many files.
    """
    sources = _find_files(source, "source")
    if target is None:
        return ParallelText(sources)
    targets = _find_files(target, "target")
    if len(sources) != len(targets):
        raise CorpusError(
            "`source` and `target` must be equally many files. "
            f"Received: {len(sources)} for source={source!r}, {len(targets)} for target={target!r}"
        )
    return ParallelText(sources, targets)


def decode_lines(stream, name):
    """Yields the lines of a binary stream as strings, by the rules of `read_lines`.

    Args:
        stream: iterable of bytes split at `\\n`, such as a file opened with `"rb"` or
            `sys.stdin.buffer`.
        name: str. What errors call the stream.
    """
    for number, line in enumerate(stream, start=1):
        if line.endswith(b"\n"):
            line = line[: -2 if line.endswith(b"\r\n") else -1]
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number}: byte {error.start + 1} of the line is not valid UTF-8 "
                f"({error.reason})."
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def _find_files(patterns, argument):
    """The files that paths and globs stand for, in the order given, each glob sorted."""
    is_single = isinstance(patterns, str | os.PathLike)
    paths = []
    for pattern in map(os.fspath, [patterns] if is_single else patterns):
        if os.path.exists(pattern):
            found = [pattern]
        else:
            found = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
        if not found:
            raise FileNotFoundError(
                f"`{argument}` must name existing files. Received: {argument}={pattern!r}"
            )
        if os.path.isdir(found[0]):
            raise IsADirectoryError(
                f"`{argument}` must name files, not a folder. Received: {argument}={pattern!r}"
            )
        paths.extend(found)
    if not paths:
        raise CorpusError(f"`{argument}` must name a file. Received: {argument}={patterns!r}")
    return paths


def _lines_of(path):
    with open(path, "rb") as file:
        is_gzip = file.read(2) == GZIP_MAGIC
    try:
        with (gzip.open if is_gzip else open)(path, "rb") as stream:
            yield from decode_lines(stream, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}: the gzip data is damaged ({error}).") from None


def _aligned_lines_of(source, target):
    # Closed by name: a generator left over by an error would keep its file open.
    with contextlib.closing(_lines_of(source)) as sources:
        with contextlib.closing(_lines_of(target)) as targets:
            pairs = itertools.zip_longest(sources, targets)
            for number, pair in enumerate(pairs, start=1):
                if None in pair:
                    longer, shorter = (target, source) if pair[0] is None else (source, target)
                    total = number + sum(1 for _ in pairs)
                    raise CorpusError(
                        f"{longer}, line {number}: {shorter} has no such line. Parallel files "
                        f"must be equally long; these have {total} and {number - 1} lines."
                    )
                yield pair


def _columns_of(path):
    for number, line in enumerate(_lines_of(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(
                f"{path}, line {number}: no tab. A TSV line is a source sentence, a tab and "
                "a target sentence."
            )
        yield columns[0], columns[1]
