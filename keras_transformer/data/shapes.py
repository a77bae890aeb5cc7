"""A few padded shapes for all batches of a corpus, because XLA compiles anew for each shape."""

import itertools

import numpy as np


class Shapes:
    """At most `number` shapes `(B, S, T)` for the batches of a corpus.

    The shapes are nested: each has sides at least as long as the previous one. So a pair fits into
    its own shape, the smallest that holds it, and into all larger ones. Pairs of smaller shapes
    fill the last batch of a shape. Only the last of all batches may have rows of padding.

    Args:
        lengths: int array `(N, 2)`, tokens of source and target, START or END included.
        number: maximum number of shapes.
        batch_tokens, batch_sentences: as for `plan_batches`. A shape longer than `batch_tokens` has
            one row.

    Attributes:
        sizes: int array `(K, 3)`, ascending: rows, source and target slots of each shape.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        number: int,
        batch_tokens: int | None = None,
        batch_sentences: int | None = None,
    ) -> None:
        sides = choose_sides(lengths, number)
        # The index of the smallest shape that holds each pair: how many shapes are too small.
        self._shape_of_pair = np.zeros(len(lengths), np.int16)
        for side_lengths in sides:
            self._shape_of_pair += (lengths > side_lengths).any(axis=1)
        num_pairs = np.bincount(self._shape_of_pair, minlength=len(sides))
        if batch_sentences:
            max_rows = np.full(len(sides), batch_sentences)
        else:
            max_rows = np.maximum(1, (batch_tokens or 0) // sides.max(axis=1))
        rows, batches = choose_rows(num_pairs.tolist(), max_rows.tolist())
        self.sizes = np.column_stack([rows, sides])
        rows_of_batches = np.repeat(rows[::-1], batches[::-1])  # the largest shape comes first
        self._ends = rows_of_batches.cumsum()

    def split(self, order: np.ndarray) -> list[np.ndarray]:
        """Splits the pairs into batches, from the largest shape to the smallest.

        Args:
            order: int array `(N,)`, the indices of all pairs. Pairs of one shape keep this order.
        """
        order = order[np.argsort(-self._shape_of_pair[order], kind="stable")]
        return np.split(order, self._ends[:-1])

    def find(self, lengths: np.ndarray) -> tuple[int, int, int]:
        """Returns the shape `(B, S, T)` of a batch of pairs.

        Args:
            lengths: int array `(rows, 2)`, of the pairs of the batch.
        """
        needed = [len(lengths), *lengths.max(axis=0)]
        is_enough = (self.sizes >= needed).all(axis=1)
        rows, source, target = self.sizes[is_enough.argmax()].tolist()  # the smallest of these
        return rows, source, target


def choose_rows(num_pairs: list[int], max_rows: list[int]) -> tuple[list[int], list[int]]:
    """Returns the rows of a batch, and the number of batches, for each of nested shapes.

    Begins with the largest shape. Pairs of smaller shapes fill the rows that the pairs of a shape
    leave free in its last batch.

    Args:
        num_pairs: for each shape, ascending, the number of pairs that it is the smallest for.
        max_rows: for each shape, the maximum number of rows of a batch.

    Returns:
        two lists of ints; both have 0 for a shape whose pairs all fill batches of larger shapes.

    Example:

    The 7 pairs of the largest shape need 4 batches of 2 rows, and leave 1 row. It takes one of the
    2 pairs of the middle shape. The other one is in a full batch of 3 rows, with 2 of the 5 pairs
    of the smallest shape. So 3 pairs of the smallest shape are left: one batch of 3 rows.

    >>> choose_rows(num_pairs=[5, 2, 7], max_rows=[4, 3, 2])
    ([3, 3, 2], [1, 1, 4])
    """
    rows, batches = [0] * len(num_pairs), [0] * len(num_pairs)
    free_rows = 0  # of larger shapes
    for shape in reversed(range(len(num_pairs))):
        remaining = num_pairs[shape] - free_rows
        if remaining <= 0:
            free_rows = -remaining
            continue
        batches[shape] = -(-remaining // max_rows[shape])
        if batches[shape] == 1:  # fill it: smaller shapes may then need fewer batches
            rows[shape] = min(max_rows[shape], remaining + sum(num_pairs[:shape]))
        else:  # equal batches, so that the last one has few free rows
            rows[shape] = -(-remaining // batches[shape])
        free_rows = rows[shape] * batches[shape] - remaining
    return rows, batches


def choose_sides(lengths: np.ndarray, number: int) -> np.ndarray:
    """Chooses nested shapes `(S, T)` for pairs, each pair padded to the smallest that holds it.

    No other nested shapes of the candidate lengths have fewer slots. Candidates are all lengths up
    to 20 that occur. Above 20, only the longest of each group that spans 5% is a candidate, so a
    long outlier costs little time.

    Args:
        lengths: int array `(N, 2)`, tokens of source and target.
        number: maximum number of shapes.

    Returns:
        int array `(K, 2)`, ascending. The last shape holds every pair.

    Example:

    How many of 9 pairs fit into each candidate shape, and the slots of a pair in it:

                    target 2   8   9                 target 2   8   9
        source 2           6   6   6        source 2        4  10  11
               3           6   8   8               3        5  11  12
               9           6   8   9               9       11  17  18

    One shape, `(9, 9)`, has 9 * 18 = 162 slots. With a smaller shape that holds n pairs at w slots,
    the others keep 18: n * w + (9 - n) * 18. That is 78 for `(2, 2)` and 106 for `(3, 8)`. A third
    shape is found in the same way inside of the second: `(3, 8)` with `(2, 2)` in it has
    6 * 4 + 2 * 11 = 46 instead of 88 slots, together with the last pair 64.

    >>> lengths = np.array([[2, 2]] * 6 + [[3, 8]] * 2 + [[9, 9]])
    >>> for number in (1, 2, 3):
    ...     print(choose_sides(lengths, number).tolist())
    [[9, 9]]
    [[2, 2], [9, 9]]
    [[2, 2], [3, 8], [9, 9]]
    """
    source_lengths, target_lengths = (_candidates(side) for side in lengths.T)
    num_pairs = _count_pairs_that_fit(lengths, source_lengths, target_lengths)
    slots = np.add.outer(source_lengths, target_lengths)
    # Slots of the pairs that fit into each candidate, with at most 0, 1, 2 ... smaller shapes.
    totals = [num_pairs * slots]
    max_shapes = min(number, sum(slots.shape))
    for _ in range(max_shapes - 1):
        totals.append(_with_one_more_shape(totals[-1], num_pairs, slots))
    chosen = _read_choices(totals, num_pairs, slots)
    return np.unique([[source_lengths[s], target_lengths[t]] for s, t in chosen], axis=0)


def _candidates(lengths):
    """Returns the longest of each group of lengths that differ by about 5% at most, ascending."""
    values = np.unique(lengths)
    groups = itertools.groupby(values.tolist(), lambda length: int(np.log(length) / 0.05))
    return np.array([max(group) for _, group in groups])


def _count_pairs_that_fit(lengths, source_lengths, target_lengths):
    """Returns how many pairs fit into each candidate shape, int `(source, target lengths)`."""
    num_pairs = np.zeros((len(source_lengths), len(target_lengths)), int)
    for part in np.array_split(lengths, 1 + len(lengths) // 100_000):  # to save memory
        source = np.searchsorted(source_lengths, part[:, 0])
        target = np.searchsorted(target_lengths, part[:, 1])
        np.add.at(num_pairs, (source, target), 1)
    return num_pairs.cumsum(axis=0).cumsum(axis=1)


def _with_one_more_shape(totals, num_pairs, slots):
    """Returns `totals` if one more shape may lie inside each candidate.

    With the candidate `inner` inside of `outer`, the pairs that fit into `inner` need
    `totals[inner]` slots, and each other pair of `outer` needs `slots[outer]`. Candidates with
    equally many slots per pair share one search for the best inner shape: a cumulative minimum over
    all shapes that are not longer.
    """
    fewest = np.empty_like(totals)
    for outer_slots in np.unique(slots):
        # How many more slots the pairs of each inner shape need in it than in the outer one.
        change = totals - num_pairs * outer_slots
        change = np.minimum.accumulate(np.minimum.accumulate(change, axis=0), axis=1)
        fewest = np.where(slots == outer_slots, change + num_pairs * outer_slots, fewest)
    return fewest


def _read_choices(totals, num_pairs, slots):
    """Returns the indices of the chosen shapes, from the largest to the smallest.

    The largest shape holds every pair. Each next one is the best inside of the one before.
    """
    source, target = slots.shape[0] - 1, slots.shape[1] - 1
    chosen = [(source, target)]
    for inner_totals in reversed(totals[:-1]):
        inside = np.s_[: source + 1, : target + 1]
        candidates = inner_totals[inside] - num_pairs[inside] * slots[source, target]
        source, target = np.unravel_index(candidates.argmin(), candidates.shape)
        chosen.append((source, target))
    return chosen
