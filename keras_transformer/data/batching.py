"""Decides which sentence pairs form which batch, and how often an epoch passes over each pair.

Paper, section 5.1 (batching by length).
"""

import math

import numpy as np

from keras_transformer.data.pairs import Pairs
from keras_transformer.data.shapes import Shapes
from keras_transformer.data.tokenizer_like import TokenizerLike

# A bucket holds pairs whose longer side is more than 95% of the longest among them.
BUCKET_WIDTH = 0.05
# Within a bucket, pairs are sorted into batches by (source - target) length plus this much noise,
# in tokens. With more noise or wider buckets, batches vary more between epochs but have more
# padding.
DIFFERENCE_NOISE = 1.0


class Passes:
    """How often an epoch passes over the pairs of a corpus, and the tags of their sources.

    Args:
        pairs: `Pairs` that have been read; those with `parts` have weights and tags.
        tokenizer: that of the sources.

    Attributes:
        tag_ids: the tokens of the tags in use.
        key: text that differs whenever weights or tags change the batches; empty if all weights
            are 1 and there are no tags.

    Raises:
        ValueError: if a tag is not a token of the vocabulary.
    """

    def __init__(self, pairs: Pairs, tokenizer: TokenizerLike) -> None:
        parts, counts = pairs.parts, pairs.counts or {}
        self._ends = np.cumsum(counts["pairs"] if parts else [0])
        self._weights = [part.weight for part in parts]
        self._tags = np.array(tag_ids(pairs, tokenizer))
        self.tag_ids = [tag for tag in self._tags.tolist() if tag >= 0]
        is_plain = {*self._weights} <= {1} and not self.tag_ids
        self.key = (
            "" if is_plain else f"{self._ends.tolist()} {self._weights} {self._tags.tolist()}"
        )

    def repeat(self, rows: np.ndarray) -> np.ndarray:
        """Repeats each pair index as often as an epoch passes over its pair."""
        if {*self._weights} <= {1}:
            return rows
        return np.repeat(rows, np.take(self._weights, self.parts_of(rows)))

    def lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the lengths `(pairs, 2)` with tags counted; an empty source gets no tag."""
        if not self.tag_ids:
            return lengths
        lengths = np.array(lengths)
        is_tagged = np.repeat(self._tags >= 0, np.diff(self._ends, prepend=0))
        lengths[:, 0] += is_tagged & (lengths[:, 0] > 1)
        return lengths

    def with_tags(self, rows: np.ndarray, sources: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the token ids of the sources of some pairs with their tags in front."""
        if not self.tag_ids:
            return sources
        pairs = zip(self._tags[self.parts_of(rows)], sources, strict=True)
        return [np.append(tag, ids) if tag >= 0 else ids for tag, ids in pairs]

    def parts_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the index of each pair's corpus in `pairs.parts`."""
        return np.searchsorted(self._ends[:-1], rows, side="right")


def tag_ids(pairs: Pairs, tokenizer: TokenizerLike) -> list[int]:
    """Returns the token id of each corpus's tag, -1 if it has no tag. Reads no pair.

    Raises:
        ValueError: if a tag is not a token of the vocabulary, unless its corpus has the weight 0.
    """
    parts = pairs.parts
    ids = {token: token_id for token_id, token in enumerate(tokenizer.vocabulary)}
    if missing := [p.tag for p in parts if p.tag and p.weight and p.tag not in ids]:
        raise ValueError(
            "`tag` must be one token of the vocabulary: train a vocabulary for these corpora, or "
            f"`keras-transformer vocabulary --tag`. Received: tag={missing[0]!r}"
        )
    return [ids.get(part.tag, -1) if part.tag else -1 for part in parts]


def plan_batches(
    lengths: np.ndarray,
    rows: np.ndarray,
    *,
    batch_tokens: int | None = None,
    batch_sentences: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    shapes: Shapes | None = None,
) -> list[np.ndarray]:
    """Decides which sentence pairs form which batch.

    Walks from the longest pair to the shortest, in buckets. A bucket takes the next pairs whose
    longer side is more than 95% of the longest among them, as many as fill whole batches, and at
    least one batch. Within a bucket, pairs are sorted by (source - target) length with noise and
    cut into batches, so that neither side is padded much. Randomness moves pairs only within a
    bucket, so the number of batches depends only on `lengths`, `rows` and the batch size.

    Args:
        lengths: int array `(N, 2)`, tokens of source and target, START or END included.
        rows: int array, the rows of `lengths` to plan. The plan needs memory for six such arrays.
        batch_tokens: maximum token slots of a batch on each side: number of sentences times the
            longest side. A row that is longer than this is a batch by itself.
        batch_sentences: alternative to `batch_tokens`: sentences per batch.
        shuffle: whether to shuffle. `False`: the same batches in every epoch, longest first.
        seed: with `epoch`, seeds the random generator.
        epoch: from 0.
        shapes: the shapes of all batches. If given, they set the number of rows of each batch, and
            randomness moves pairs between batches of one shape. Optional.

    Returns:
        list of int arrays: the rows of each batch. Each of `rows` is in exactly one batch.
    """
    rng = np.random.default_rng([seed, epoch])
    order = np.arange(len(rows), dtype=rows.dtype)  # indices of `rows`
    if shuffle:
        order = rng.permutation(order)
    if shapes is None or not shuffle:
        order, negative_lengths = _longest_first(order, lengths, rows)
    if shapes is not None:
        batches = [rows[indices] for indices in shapes.split(order)]
    else:
        noise = rng.normal(scale=DIFFERENCE_NOISE * shuffle, size=len(rows))
        batches = _split(
            order, negative_lengths, lengths, rows, noise, batch_tokens, batch_sentences
        )
    return [batches[index] for index in rng.permutation(len(batches))] if shuffle else batches


def _longest_first(order, lengths, rows):
    """Sorts indices of `rows`, the longest pair first.

    Also returns the length of each pair's longer side, negated and so ascending.
    """
    negative_lengths = -lengths[rows[order]].max(axis=1)
    # NumPy sorts 16-bit integers ten times as fast as larger ones.
    smallest_type = np.min_scalar_type(negative_lengths.min())
    negative_lengths = negative_lengths.astype(np.promote_types(np.int16, smallest_type))
    index = np.argsort(negative_lengths, kind="stable")
    return order[index], negative_lengths[index]


def _split(order, negative_lengths, lengths, rows, noise, batch_tokens, batch_sentences):
    """Splits indices of `rows`, the longest pair first, into batches of rows of similar lengths.

    Writes the rows over the indices in `order`, to save memory.
    """
    batches = []
    start = 0
    while start < len(order):
        longest = -int(negative_lengths[start])
        batch_size = batch_sentences or max(1, (batch_tokens or 0) // longest)
        # In the array's dtype: for a limit of another dtype, NumPy would copy the array.
        limit = negative_lengths.dtype.type(math.ceil(-(1 - BUCKET_WIDTH) * longest))
        num_similar = int(np.searchsorted(negative_lengths, limit)) - start
        num_batches = max(1, num_similar // batch_size)
        bucket = order[start : start + num_batches * batch_size]
        start += len(bucket)
        source, target = lengths[rows[bucket]].T
        difference = source - target.astype(float) + noise[bucket]
        bucket[:] = rows[bucket[np.argsort(difference, kind="stable")]]
        batches += np.array_split(bucket, -(-len(bucket) // batch_size))
    return batches
