"""Splits a parallel corpus such that no sentence of validation and test is in the training part.

Pure Python.
"""

import contextlib
import functools
import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_transformer import types
from keras_transformer.atomic_file import atomic_path
from keras_transformer.data.corpus import FileStream, find_files, read_parallel
from keras_transformer.data.readers import BOTH_SIDES, ReadLog, ReadOptions, pairs_of_cells
from keras_transformer.texts import lines_of, suffix_of

PARTS = ("test", "val", "train")  # a group of pairs goes to the first part that has room


def split_pairs(
    pairs: list[tuple[str, str]], validation: int, test: int, seed: int = 0
) -> dict[str, list[int]]:
    """Splits pairs into training, validation and test, by sentences.

    Pairs that have a source or a target in common, directly or through other pairs, are in the same
    part. White space makes no difference, and empty sentences join nothing. Which pairs are in
    validation and test is random; large groups are in the training part.

    Args:
        pairs: (source, target) strings.
        validation, test: number of pairs of these parts.
        seed: seed of the random choice.

    Returns:
        `{"train": ..., "val": ..., "test": ...}`, the positions of the pairs, in their order.

    Raises:
        ValueError: if there are not enough pairs without a sentence of another part, or none are
            left for training.

    Example:

    >>> pairs = [("a", "x"), ("b", "y"), ("b", "z"), ("c", "z"), ("d", "w")]
    >>> split_pairs(pairs, validation=1, test=1)
    {'train': [1, 2, 3], 'val': [4], 'test': [0]}
    """
    groups = _groups(pairs)
    random.Random(seed).shuffle(groups)
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    room = {"test": test, "val": validation, "train": len(pairs)}
    for group in groups:
        part = next(name for name in PARTS if len(group) <= room[name])
        parts[part] += group
        room[part] -= len(group)
    if room["test"] or room["val"] or not parts["train"]:
        raise ValueError(
            "`validation` and `test` must leave pairs for training, and need pairs whose sentences "
            f"are in no other part. Received: validation={validation}, test={test}, of "
            f"{len(pairs):,} pairs in {len(groups):,} groups without a common sentence, the "
            f"largest of {max(map(len, groups), default=0):,}. Ask for fewer"
        )
    return {name: sorted(rows) for name, rows in parts.items()}


def split_files(
    source: types.Path | Iterable[types.Path],
    target: types.Path | Iterable[types.Path] | None,
    output: types.Path,
    *,
    validation: int,
    test: int,
    seed: int = 0,
    log: ReadLog | None = None,
    **options: Any,
) -> dict[Path, int]:
    """Splits a corpus into the files `train`, `val` and `test` of a folder, see `split_pairs`.

    Lines, also those of TSV, are unchanged and in their order. A file has the ending of the file
    that it was split from, of several that of the first, without `.gz` and the like. Other formats,
    and TSV whose columns have names, become TSV of two columns, where each run of white space is
    one space.

    Args:
        source, target: files, as for `read_parallel`; without `target`, one or several with both
            sides.
        output: folder to write to, made if it is missing.
        validation, test, seed: as in `split_pairs`.
        log: for files with both sides, counts what is left out and what the sides are. Optional.
        **options: as for `read_parallel`, such as `columns`.

    Returns:
        `{path: number of lines}`.

    Raises:
        FileExistsError: if one of the files exists. Nothing is written.
        CorpusError, FileNotFoundError, ValueError: as `read_parallel` and `split_pairs`.
    """
    reading = ReadOptions(**options)
    sources = find_files(source, "source")
    targets = None if target is None else find_files(target, "target")
    inputs = [sources[0], *(targets or [])[:1]]
    has_names = isinstance((reading.columns or [None])[0], str)
    is_tsv = not has_names and BOTH_SIDES.isdisjoint(map(suffix_of, sources))
    keeps_lines = targets is not None or is_tsv
    endings = [suffix_of(name) or ".txt" if keeps_lines else ".tsv" for name in inputs]
    files = _new_files(output, endings)
    lines: list[Sequence[str]]  # the lines of each input before the split
    if targets is not None:
        pairs = list(read_parallel(sources, targets, **options))
        lines = list(zip(*pairs, strict=True))
    elif keeps_lines:
        pairs, lines = _read_tsv(sources, reading, log or ReadLog())
    else:
        stream: Any = read_parallel(sources, **options)
        pairs = list(stream.read(log or ReadLog()))
        lines = [["\t".join(" ".join(text.split()) for text in pair) for pair in pairs]]
    parts = split_pairs(pairs, validation, test, seed)
    Path(output).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:  # files get their names when all are written
        for name, paths in files.items():
            for path, side in zip(paths, lines, strict=True):
                partial = stack.enter_context(atomic_path(path))
                text = "".join(f"{side[row]}\n" for row in parts[name])
                partial.write_text(text, "utf-8", newline="\n")
    return {path: len(parts[name]) for name, paths in files.items() for path in paths}


def _new_files(folder, endings):
    """Returns `{part: paths to write, one for each ending}`; raises if one of them exists."""
    if len(set(endings)) < len(endings):  # such as a.txt and b.txt
        endings = [".source", ".target"]
    files = {name: [Path(folder, name + ending) for ending in endings] for name in PARTS[::-1]}
    existing = [str(file) for part in files.values() for file in part if file.exists()]
    if existing:
        raise FileExistsError(f"{', '.join(existing)} exist. Give another folder, or move them")
    return files


def _read_tsv(sources, options, log):
    """Returns the pairs of TSV files, and `[lines]`: their lines, perhaps with more columns."""
    read = functools.partial(_lines_and_pairs, columns=options.columns or (1, 2))
    stream = FileStream(read, sources, options=options)
    rows = list(stream.read(log))
    return [pair for _, pair in rows], [[line for line, _ in rows]]


def _lines_and_pairs(path, log, columns):
    """Returns an iterator of (line, pair) of a TSV file."""
    lines, cells = itertools.tee(lines_of(path))
    rows = enumerate((line.split("\t") for line in cells), 1)
    return zip(lines, pairs_of_cells(rows, str(path), columns, "a tab", log), strict=True)


def _groups(pairs):
    """Returns the positions of pairs in groups that have no sentence in common.

    By a forest of disjoint sets: each pair points to another one of its group, the root to itself.
    """
    parents = list(range(len(pairs)))

    def root(row):
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    first_rows = {}  # where each sentence of a side stands first
    for row, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            if sentence := " ".join(text.split()):
                parents[root(row)] = root(first_rows.setdefault((side, sentence), row))
    groups = {}
    for row in range(len(pairs)):
        groups.setdefault(root(row), []).append(row)
    return list(groups.values())
