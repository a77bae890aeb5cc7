"""Batches of rows of similar length that fit into memory.

The graph of a SavedModel makes the same batches, see `export/graph_batches.py`.
"""

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

# Maximum number of token pairs of a batch, sentences * longest sentence**2: the size of attention
# scores.
MOST_PAIRS = 64 * 256**2
# The length of a row that fills a batch by itself.
LONGEST_ROW = 2048
# Maximum of sentences * longest sentence of a batch: larger batches are hardly faster.
MOST_TOKENS = 64 * 128
BATCH_SENTENCES = 256


def batch_rows(
    lengths: Sequence[int], batch_sentences: int = BATCH_SENTENCES, most_pairs: int = MOST_PAIRS
) -> list[np.ndarray]:
    """Sorts rows by length and cuts them into batches of at most `MOST_TOKENS` padded tokens.

    Args:
        lengths: ints, the length of each row.
        batch_sentences: int. Maximum number of rows of a batch.
        most_pairs: int. Maximum of rows * longest row**2 of a batch. A batch of one row may exceed
            every limit.

    Returns:
        list of int arrays, the indices of the rows of each batch.
    """
    order = np.argsort(lengths, kind="stable")
    ascending = np.maximum(np.asarray(lengths, int)[order], 1)
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        # For a batch of the next 1, 2, 3, ... rows: its longest row, and how many rows it may have.
        longest = ascending[start : start + batch_sentences]
        allowed = np.minimum(MOST_TOKENS // longest, most_pairs // longest**2)
        size = max(1, int(np.count_nonzero(np.arange(1, len(longest) + 1) <= allowed)))
        batches.append(order[start : start + size])
        start += size
    return batches


def pad_rows(rows: Sequence[Any], pad_token_id: int) -> np.ndarray:
    """Returns rows of token ids as an int32 array `(b, L)`, padded."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), pad_token_id, "int32")
    for row, token_ids in zip(padded, rows, strict=True):
        row[: len(token_ids)] = token_ids
    return padded


def map_rows(
    function: Callable[..., Iterable[Any]],
    columns: Sequence[Sequence[Any]],
    pad_token_id: int,
    batch_sentences: int,
    on_progress: Callable[[int], Any] | None = None,
    lines: np.ndarray | None = None,
    run_all: Callable[..., Iterable[Any]] = map,
) -> list[Any]:
    """Applies a function to rows, batch by batch.

    Args:
        function: callable. It gets a padded int32 array `(b, L)` per column, and returns an
            iterable of b results.
        columns: list of columns, each of B rows of token ids.
        pad_token_id: int.
        batch_sentences: as in `batch_rows`.
        on_progress: callable, called after each batch with the number of lines that it finished.
            Optional.
        lines: int array `(B,)`, the line of each row. Defaults to one row per line.
        run_all: callable, such as the `map` of a pool of threads. Defaults to Python's `map`: one
            batch after the other.

    Returns:
        list of B results, in the order of the rows.

    Raises:
        ValueError: if `batch_sentences` is not a positive integer.
    """
    if not isinstance(batch_sentences, numbers.Integral) or batch_sentences < 1:
        must = "`batch_sentences` must be a positive integer."
        raise ValueError(f"{must} Received: batch_sentences={batch_sentences!r}")
    lengths = [max(map(len, cells)) for cells in zip(*columns, strict=True)]
    lines = np.arange(len(lengths)) if lines is None else lines
    rows_left = np.bincount(lines)  # of each line
    results: list[Any] = [None] * len(lengths)

    def run_batch(rows):
        batch = [pad_rows([column[row] for row in rows], pad_token_id) for column in columns]
        return function(*batch)

    batches = batch_rows(lengths, batch_sentences)
    for rows, batch_results in zip(batches, run_all(run_batch, batches), strict=True):
        for row, result in zip(rows, batch_results, strict=True):
            results[row] = result
        if on_progress is not None:
            np.subtract.at(rows_left, lines[rows], 1)
            on_progress(int(np.sum(rows_left[np.unique(lines[rows])] == 0)))
    return results
