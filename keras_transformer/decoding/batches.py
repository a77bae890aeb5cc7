"""Which rows are decoded together: of like length, and no more than there is memory for.

The same batches eagerly and in the graph, so that a translator and its SavedModel do the same.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.layers.arguments import require_positive

# Sentences times the square of the longest: what attention makes of a batch has to find room.
MOST_PAIRS = 64 * 256**2
# The row that fills a batch by itself.
LONGEST_ROW = 2048
BATCH_SENTENCES = 64


def batch_size(lengths, batch_sentences=BATCH_SENTENCES, most_pairs=MOST_PAIRS):
    """Returns how many of the rows that are left are decoded next: fewer where they are long.

    Args:
        lengths: int64 tensor, not empty and rising.
        batch_sentences: int. The most.
        most_pairs: int. The most sentences times the square of the longest; one sentence may have
            more.

    Returns:
        int tensor, at least 1.
    """
    lengths = lengths[:batch_sentences]
    pairs = tf.range(1, tf.size(lengths, tf.int64) + 1) * lengths**2
    return tf.maximum(1, tf.searchsorted(pairs, [tf.cast(most_pairs, tf.int64)], side="right")[0])


def map_batches(function, rows, pad_token_id, batch_sentences=BATCH_SENTENCES):
    """Applies a function to rows, batch by batch, in the graph.

    Args:
        function: callable from int32 `(b, S)`, padded, to a string tensor `(b,)`.
        rows: int32 `RaggedTensor` `(B, None)`.
        pad_token_id: int.
        batch_sentences: int. Defaults to `64`.

    Returns:
        string tensor `(B,)`.
    """
    lengths = rows.row_lengths()
    order = tf.argsort(lengths, stable=True)
    lengths = tf.gather(lengths, order)

    def one_batch(start, results):
        end = start + batch_size(lengths[start:], batch_sentences)
        batch = tf.gather(rows, order[start:end]).to_tensor(pad_token_id)
        return end, tf.concat([results, function(batch)], axis=0)

    _, results = tf.while_loop(
        lambda start, results: start < tf.size(order),
        one_batch,
        (tf.constant(0), tf.zeros([0], tf.string)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        parallel_iterations=1,  # else the memory of several batches at a time
    )
    return tf.gather(results, tf.math.invert_permutation(order))


def map_rows(
    function,
    columns,
    pad_token_id,
    batch_sentences=BATCH_SENTENCES,
    on_progress=None,
    lines=None,
    most_pairs=MOST_PAIRS,
):
    """Applies a function to rows, batch by batch, eagerly.

    Args:
        function: callable from int32 `(b, S)` of each column, padded, to an iterable of b results.
        columns: list of int32 `RaggedTensor` `(B, None)`.
        pad_token_id, batch_sentences, most_pairs: as above.
        on_progress: callable that is told after each batch how many lines are done with it.
            Optional.
        lines: int array `(B,)`, the line that each row is of. Defaults to one row for each.

    Returns:
        list of B results, in the order of the rows.
    """
    require_positive(batch_sentences=batch_sentences)
    lengths = np.max([column.row_lengths() for column in columns], axis=0)
    order = np.argsort(lengths, kind="stable")
    lines = np.arange(len(order)) if lines is None else lines
    left = np.bincount(lines)  # rows of each line
    results = [None] * len(order)
    while len(order):
        count = int(batch_size(tf.constant(lengths[order]), batch_sentences, most_pairs))
        chosen, order = order[:count], order[count:]
        batch = [tf.gather(column, chosen).to_tensor(pad_token_id) for column in columns]
        for index, result in zip(chosen, function(*batch), strict=True):
            results[index] = result
        if on_progress is not None:
            np.subtract.at(left, lines[chosen], 1)
            on_progress(np.count_nonzero(left[np.unique(lines[chosen])] == 0))
    return results
