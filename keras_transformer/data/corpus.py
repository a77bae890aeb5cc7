"""Parallel text: two files of lines, or files that hold both sides; globs and lists of files.

First step of the data flow: raw text -> pairs of strings. Pure Python; files are read as streams.
Paper section 5.1 (training data).
"""

import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from keras_transformer.data.pairs import Pairs
from keras_transformer.data.readers import BOTH_SIDES, ReadLog, ReadOptions, read_pairs
from keras_transformer.texts import CorpusError, lines_of, suffix_of
from keras_transformer.types import Path


class FileStream(Pairs):
    """Iterates over what `read` yields for the files; each iteration reads them again.

    Args:
        read: generator function. Its arguments are one path of each side, and `log=`.
        *sides: lists of paths, equally long.
        options: how files of pairs are read. `None`: a file may be empty.
    """

    def __init__(
        self,
        read: Callable[..., Iterator[Any]],
        *sides: list[str],
        options: ReadOptions | None = None,
    ) -> None:
        self._read, self._sides, self._options = read, sides, options

    def __iter__(self):
        return self.read(ReadLog())

    def read(self, log: ReadLog) -> Iterator[Any]:
        """Iterates; the log counts the entries that are not pairs, see `ReadLog`.

        Raises:
            CorpusError: if a file holds no pair, unless the options allow it.
        """
        may_be_empty = self._options is None or self._options.allow_empty
        for paths in zip(*self._sides, strict=True):
            items = iter(self._read(*paths, log=log))
            first_items = list(itertools.islice(items, 1))
            if not first_items and not may_be_empty:
                raise CorpusError(
                    f"{' | '.join(paths)} must hold a pair. Received: none. Leave such a file "
                    "out, or set `allow_empty`."
                )
            yield from first_items
            yield from items

    @property
    def num_bytes(self) -> int:
        """Size of the files, as they are on disk."""
        return sum(map(os.path.getsize, itertools.chain(*self._sides)))

    def fingerprint(self) -> str | None:
        """Returns a hash of the contents of the files in their order, and of how they are read.

        `None` if there is a file that is not regular: a pipe can be read only once.
        """
        if not all(map(os.path.isfile, itertools.chain(*self._sides))):
            return None
        endings = [list(map(suffix_of, side)) for side in self._sides]
        digest = hashlib.sha256(repr((self._options, endings)).encode())
        for path in itertools.chain(*self._sides):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def __repr__(self):
        names = " | ".join(", ".join(side) for side in self._sides)
        # A name that is not UTF-8 could be neither printed nor written to a file.
        return names.encode(errors="backslashreplace").decode()


def read_lines(files: Path | Iterable[Path]) -> Iterable[str]:
    """Reads lines of text, as a stream that can be iterated over any number of times.

    Lines end at `\\n` or `\\r\\n` only (U+2028 or a form feed is text), so N lines of a file are
    N strings. Files are UTF-8, plain or compressed by gzip, bzip2, xz or zstd (detected by content,
    not by name). A byte order mark at the start of a file is dropped.

    Args:
        files: a path, a glob (its files in sorted order), or a list of these.

    Returns:
        An iterable of strings. Iterating raises `CorpusError` if the text is not UTF-8.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
    """
    paths = find_files(files, "files", are_lines=True)
    return FileStream(lambda path, log: lines_of(path), paths)


def read_parallel(
    source: Path | Iterable[Path],
    target: Path | Iterable[Path] | None = None,
    *,
    columns: list[Any] | tuple[Any, ...] | None = None,
    languages: list[Any] | tuple[Any, ...] | None = None,
    accelerator: str | None = None,
    delimiter: str = ",",
    allow_empty: bool = False,
) -> Iterable[tuple[str, str]]:
    """Reads a parallel corpus, as a stream that can be iterated over any number of times.

    Line n of the source is paired with line n of the target, file by file; see `read_lines` for
    what a line is. With `target=None` the files hold both sides. The ending of a file's name, in
    front of any `.gz`, `.bz2`, `.xz` or `.zst`, tells the format: `.tsv`, `.csv`, `.jsonl` or
    `.ndjson`, `.parquet`, `.po`, `.mo` or `.tmx`. Any other file is TSV: source, tab, target.
    `split_files` and the command `split` write what is read, as lines or TSV.

    Args:
        source: a path, a glob (its files in sorted order), or a list of these.
        target: the same for the target side: as many files as `source`, in the same order.
            `None`: `source` holds both sides.
        columns: the columns of source and target: two names, which the first row of TSV and CSV
            holds; or, for TSV and CSV without names, two numbers from 1. Defaults to `[1, 2]` in
            TSV. In other formats, defaults to `languages` if given, else to `["source", "target"]`.
        languages: the languages of source and target in TMX, such as `["en", "de"]`; `en` is also
            `en-US`. Needed for several TMX files, for a TMX file of more than two languages, and
            for one whose header does not name the source. Optional.
        accelerator: `"&"`, `"_"` or `"~"`: the mark of the accelerator key in the labels of `.po`
            and `.mo`. At most one mark is removed from a label. Optional: none is removed.
        delimiter: the character between two columns of CSV, `";"` in many countries. Defaults to
            `","`.
        allow_empty: whether a file may hold no pair. Defaults to `False`.

    Returns:
        An iterable of pairs `(source, target)`. Iterating raises `CorpusError` if two files have
        different numbers of lines, a line lacks a column, the text is not UTF-8, a file holds no
        pair, or a file is damaged.

    Raises:
        FileNotFoundError: if a path does not exist or a glob matches no file.
        CorpusError: if the two sides have different numbers of files.
        ValueError: if an option is not valid.
    """
    options = ReadOptions(
        columns=columns,
        languages=languages,
        accelerator=accelerator,
        delimiter=delimiter,
        allow_empty=allow_empty,
    )
    if target is None:
        files = find_files(source, "source")
        if languages is None and sum(suffix_of(file) == ".tmx" for file in files) > 1:
            raise CorpusError(
                "`languages` must name the source and the target of several .tmx files, which may "
                f"differ in their source. Received: languages=None, {', '.join(files)}"
            )
        read = functools.partial(read_pairs, options=options)
        return FileStream(read, files, options=options)
    sources = find_files(source, "source", are_lines=True)
    targets = find_files(target, "target", are_lines=True)
    if len(sources) != len(targets):
        raise CorpusError(
            "`source` and `target` must have the same number of files. "
            f"Received: {len(sources)} for source={source!r}, {len(targets)} for target={target!r}"
        )
    return FileStream(_aligned_lines_of, sources, targets, options=options)


def find_files(patterns, argument, are_lines=False):
    """Returns the files that paths and globs name, in the order given, each glob sorted.

    Args:
        patterns: a path, a glob, or an iterable of these.
        argument: name of the argument in errors.
        are_lines: whether a file whose ending says that it holds both sides is an error.
    """
    is_single = isinstance(patterns, str | os.PathLike)
    paths = []
    for pattern in map(os.fspath, [patterns] if is_single else patterns):
        matches = filter(os.path.isfile, glob.iglob(pattern, recursive=True))
        # An existing path is taken as it is, even if it looks like a glob.
        matching = [pattern] if os.path.exists(pattern) else sorted(matches)
        if not matching:
            raise FileNotFoundError(
                f"`{argument}` must name existing files. Received: {argument}={pattern!r}"
            )
        paths.extend(matching)
    if not paths:
        raise CorpusError(f"`{argument}` must name a file. Received: {argument}={patterns!r}")
    if are_lines and (wrong := [path for path in paths if suffix_of(path) in BOTH_SIDES]):
        raise CorpusError(
            f"{wrong[0]}: such a file holds both sides, not lines of text. Give it alone, or "
            "several by a glob, to `read_parallel`, or as `train: FILE` in a recipe."
        )
    return paths


def _aligned_lines_of(source, target, log):
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
