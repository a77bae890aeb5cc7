"""Parallel text, one sentence per line: plain files, `.gz`, globs, lists of files and TSV.

First step of the data flow: raw text -> pairs of strings. Pure Python; files are read as streams.
Paper section 5.1 (training data).
"""

import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from keras_transformer.texts import CorpusError, lines_of
from keras_transformer.types import Path


class _FileStream:
    """Iterates over what `read` yields for the files; each iteration reads them again.

    Args:
        read: generator function that takes one path of each side.
        *sides: lists of paths, equally long.
    """

    def __init__(self, read: Callable[..., Iterator[Any]], *sides: list[str]):
        self._read, self._sides = read, sides

    def __iter__(self):
        for paths in zip(*self._sides, strict=True):
            yield from self._read(*paths)

    def __repr__(self):
        return " | ".join(", ".join(side) for side in self._sides)


def read_lines(files: Path | Iterable[Path]) -> Iterable[str]:
    """Reads lines of text, as a stream that can be iterated over any number of times.

    Lines end at `\\n` or `\\r\\n` only (U+2028 or a form feed is text), so N lines of a file are
    N strings. Files are UTF-8, plain or gzip (detected by content, not by name). A byte order mark
    at the start of a file is dropped.

    Args:
        files: a path, a glob (its files in sorted order), or a list of these.

    Returns:
        An iterable of strings. Iterating raises `CorpusError` if the text is not UTF-8.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
    """
    return _FileStream(lines_of, _find_files(files, "files"))


def read_parallel(
    source: Path | Iterable[Path], target: Path | Iterable[Path] | None = None
) -> Iterable[tuple[str, str]]:
    """Reads a parallel corpus, as a stream that can be iterated over any number of times.

    Line n of the source is paired with line n of the target, file by file; see `read_lines` for
    what a line is. With `target=None` the files are TSV: source, tab, target; further columns
    are ignored.

    Args:
        source: a path, a glob (its files in sorted order), or a list of these.
        target: the same for the target side: as many files as `source`, in the same order.
            `None`: `source` holds both sides, tab-separated.

    Returns:
        An iterable of pairs `(source_line, target_line)`. Iterating raises `CorpusError` if two
        files have different numbers of lines, a TSV line has no tab or the text is not UTF-8.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
        CorpusError: if the two sides have different numbers of files.
    """
    sources = _find_files(source, "source")
    if target is None:
        return _FileStream(_columns_of, sources)
    targets = _find_files(target, "target")
    if len(sources) != len(targets):
        raise CorpusError(
            "`source` and `target` must have the same number of files. "
            f"Received: {len(sources)} for source={source!r}, {len(targets)} for target={target!r}"
        )
    return _FileStream(_aligned_lines_of, sources, targets)


def _find_files(patterns, argument):
    """Returns the files that paths and globs name, in the order given, each glob sorted."""
    is_single = isinstance(patterns, str | os.PathLike)
    paths = []
    for pattern in map(os.fspath, [patterns] if is_single else patterns):
        matches = filter(os.path.isfile, glob.iglob(pattern, recursive=True))
        found = [pattern] if os.path.exists(pattern) else sorted(matches)
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


def _aligned_lines_of(source, target):
    # Closed explicitly: a generator that an error leaves suspended would keep its file open.
    with closing(lines_of(source)) as sources, closing(lines_of(target)) as targets:
        pairs = itertools.zip_longest(sources, targets)
        for number, pair in enumerate(pairs, start=1):
            if None in pair:
                longer, shorter = (target, source) if pair[0] is None else (source, target)
                total = number + sum(1 for _ in pairs)
                raise CorpusError(
                    f"{longer}, line {number}: {shorter} has no such line. Parallel files must "
                    f"have equally many lines. Received: {total} and {number - 1} lines"
                )
            yield pair


def _columns_of(path):
    for number, line in enumerate(lines_of(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(
                f"{path}, line {number}: no tab. A TSV line is a source sentence, a tab and "
                "a target sentence."
            )
        yield columns[0], columns[1]
