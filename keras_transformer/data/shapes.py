"""A few padded shapes for all batches of a corpus: XLA compiles each shape of a batch once."""

import itertools

import numpy as np


class Shapes:
    """At most `number` shapes `(B, S, T)` for the batches of a corpus.

    The shapes are nested: each has sides at least as long as the previous one. So every pair fits
    into its own shape and all larger ones, and pairs of smaller shapes fill up the last batch of a
    shape. Only the last batch of the smallest shape has rows of padding, if any has.

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
        # The smallest shape that holds each pair.
        self._of_pairs = np.zeros(len(lengths), np.int16)
        for side in sides:
            self._of_pairs += (lengths > side).any(axis=1)
        rows = np.zeros(len(sides), int)
        batches = np.zeros(len(sides), int)
        taken = 0  # pairs in larger shapes
        for shape in reversed(range(len(sides))):
            left = int(np.count_nonzero(self._of_pairs >= shape)) - taken
            if left > 0:
                most = batch_sentences or max(1, (batch_tokens or 0) // int(sides[shape].max()))
                batches[shape] = -(-left // most)
                # Equally many rows in each batch, so that few smaller pairs fill the last one up; a
                # single batch is full, so that there are no more batches than needed.
                if left <= most:
                    left = min(most, len(lengths) - taken)
                rows[shape] = -(-left // batches[shape])
                taken = min(len(lengths), taken + int(rows[shape] * batches[shape]))
        self.sizes = np.column_stack([rows, sides])
        self._ends = np.repeat(rows[::-1], batches[::-1]).cumsum()

    def split(self, order: np.ndarray) -> list[np.ndarray]:
        """Splits the pairs into batches, from the largest shape to the smallest.

        Args:
            order: int array `(N,)`, the order of the pairs of the same shape.
        """
        order = order[np.argsort(-self._of_pairs[order], kind="stable")]
        return np.split(order, self._ends[:-1])

    def find(self, lengths: np.ndarray) -> tuple[int, int, int]:
        """Returns the shape `(B, S, T)` of a batch of pairs.

        Args:
            lengths: int array `(rows, 2)`, of the pairs of the batch.
        """
        needed = [len(lengths), *lengths.max(axis=0)]
        rows, source, target = self.sizes[(self.sizes >= needed).all(axis=1).argmax()].tolist()
        return rows, source, target


def choose_sides(lengths: np.ndarray, number: int) -> np.ndarray:
    """Chooses nested shapes `(S, T)` for pairs, each pair padded to the smallest that holds it.

    No other nested shapes of the candidate lengths have fewer slots. Candidates are all lengths up
    to 20 that occur, and above one for each 5%, so that the time does not depend on the longest.

    Args:
        lengths: int array `(N, 2)`, tokens of source and target.
        number: maximum number of shapes.

    Returns:
        int array `(K, 2)`, ascending. The last shape holds every pair.
    """
    sides = [_candidates(side) for side in lengths.T]
    held = np.zeros([len(side) for side in sides], int)
    for part in np.array_split(lengths, 1 + len(lengths) // 100_000):  # to save memory
        np.add.at(held, tuple(map(np.searchsorted, sides, part.T)), 1)
    held = held.cumsum(axis=0).cumsum(axis=1)  # pairs that fit into each candidate shape
    slots = np.add.outer(*sides)
    # Row k of `least`: slots of the pairs in each candidate shape, with at most k smaller shapes.
    least = [held * slots]
    for _ in range(min(number, sum(held.shape)) - 1):
        least.append(_with_smaller_shape(least[-1], held, slots))
    source, target = len(sides[0]) - 1, len(sides[1]) - 1
    chosen = [(source, target)]
    for fewest in reversed(least[:-1]):
        inner = np.s_[: source + 1, : target + 1]
        found = fewest[inner] - held[inner] * slots[source, target]
        source, target = np.unravel_index(found.argmin(), found.shape)
        chosen.append((source, target))
    return np.unique([[sides[0][s], sides[1][t]] for s, t in chosen], axis=0)


def _with_smaller_shape(least, held, slots):
    """Returns the slots if each shape may hold one more of the smaller shapes, of least slots."""
    fewest = np.empty_like(least)
    for width in np.unique(slots):
        found = least - held * width
        for axis in (0, 1):
            found = np.minimum.accumulate(found, axis=axis)
        fewest = np.where(slots == width, found + held * width, fewest)
    return fewest


def _candidates(lengths):
    """Returns the longest of each 5% of the lengths, ascending."""
    values = np.unique(lengths)
    groups = itertools.groupby(values.tolist(), lambda length: int(np.log(length) / 0.05))
    return np.array([max(group) for _, group in groups])
