"""Which sentence pairs make up which batch: a pure function of lengths, seed and epoch.

Paper, section 5.1 (batching by length).
"""

import numpy as np

# A bucket holds the pairs whose longer side is within a twentieth of the longest among them.
BUCKET_WIDTH = 0.05
# Tokens of noise in the (source - target) length by which a bucket is dealt to its batches. Both
# figures trade padding against how often the same pairs meet again in the next epoch.
DIFFERENCE_NOISE = 1.0


def plan_batches(
    lengths, *, batch_tokens=None, batch_sentences=None, shuffle=True, seed=0, epoch=0
):
    """Decides which sentence pairs make up which batch: a pure function.

    Walks from the longest pair to the shortest, in buckets. A bucket is as many full
    batches as pairs within a twentieth of its longest fill, at least one; its pairs are dealt to
    its batches by (source - target) length with noise, so that neither side is padded much.
    What is drawn at random moves pairs within a bucket only, so the number of batches depends
    on `lengths` and the batch size alone.

    Args:
        lengths: int array `(N, 2)`, tokens of source and target, START or END included.
        batch_tokens: int. Most sentences times longest side of a batch; a row that is over it alone
            is a batch of its own.
        batch_sentences: int. Instead: sentences of a batch.
        shuffle: bool. `False`: the same batches in every epoch, longest first.
        seed: int. With `epoch`, seeds what is random.
        epoch: int.

    Returns:
        list of int arrays: the rows of each batch, every row of `lengths` in exactly one.

    Raises:
        ValueError: if not exactly one batch size is given.
    """
    check_batch_size(batch_tokens, batch_sentences)
    rng = np.random.default_rng([seed, epoch])
    longest = lengths.max(axis=1)
    difference = lengths[:, 0] - lengths[:, 1].astype(float)
    order = np.arange(len(lengths))
    if shuffle:
        order = rng.permutation(order)
        difference += rng.normal(scale=DIFFERENCE_NOISE, size=len(lengths))
    order = order[np.argsort(-longest[order], kind="stable")]
    descending = -longest[order]
    batches = []
    start = 0
    while start < len(order):
        width = -descending[start]
        size = batch_sentences or max(1, batch_tokens // width)
        similar = np.searchsorted(descending, -(1 - BUCKET_WIDTH) * width) - start
        bucket = order[start : start + size * max(1, similar // size)]
        start += len(bucket)
        bucket = bucket[np.argsort(difference[bucket], kind="stable")]
        batches += np.array_split(bucket, -(-len(bucket) // size))
    return [batches[index] for index in rng.permutation(len(batches))] if shuffle else batches


def check_batch_size(batch_tokens, batch_sentences):
    """Raises unless exactly one is given, and is positive."""
    sizes = [size for size in (batch_tokens, batch_sentences) if size is not None]
    if len(sizes) != 1 or sizes[0] < 1:
        raise ValueError(
            "Exactly one of `batch_tokens` and `batch_sentences` must be given, a positive "
            f"integer. Received: batch_tokens={batch_tokens}, batch_sentences={batch_sentences}"
        )
