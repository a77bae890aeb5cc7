"""Batches of rows of similar length that fit into memory.

They are the same in graphs and eagerly, for a translator and its SavedModel.
"""

import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.layers.arguments import require_positive

# Maximum of sentences * longest sentence**2 of a batch: the size of attention scores.
MOST_PAIRS = 64 * 256**2
# The length of a row that fills a batch by itself.
LONGEST_ROW = 2048
# Maximum of sentences * longest sentence of a batch: larger batches are hardly faster.
MOST_TOKENS = 64 * 128
BATCH_SENTENCES = 256


# A graph, because eagerly its operations take longer than the search for one sentence.
@tf.function(
    input_signature=[tf.TensorSpec([None], tf.int64)] + 2 * [tf.TensorSpec([], tf.int64)],
    autograph=False,
)
def batch_rows(lengths, batch_sentences, most_pairs):
    """Sorts rows by length and cuts them into batches of at most `MOST_TOKENS`.

    Args:
        lengths: int64 tensor `(B,)`, the length of each row.
        batch_sentences: int. Maximum number of rows of a batch.
        most_pairs: int, such as `MOST_PAIRS`. Maximum of rows * longest row**2 of a batch. A single
            row may exceed every limit.

    Returns:
        int32 `RaggedTensor` `(batches, None)`, the indices of the rows of each batch.
    """
    order = tf.argsort(lengths, stable=True)
    lengths = tf.gather(lengths, order)

    def add_batch(splits):
        longest = tf.maximum(lengths[splits[-1] :][:batch_sentences], 1)
        most = tf.minimum(MOST_TOKENS // longest, most_pairs // longest**2)
        sizes = tf.range(1, tf.size(longest, tf.int64) + 1)
        size = tf.maximum(tf.math.count_nonzero(sizes <= most, dtype=tf.int32), 1)
        return (tf.concat([splits, splits[-1:] + size], axis=0),)

    (splits,) = tf.while_loop(
        lambda splits: splits[-1] < tf.size(order),
        add_batch,
        (tf.constant([0]),),
        shape_invariants=(tf.TensorShape([None]),),
    )
    return tf.RaggedTensor.from_row_splits(order, splits, validate=False)


def map_batches(function, columns, options, pad_token_id, specs):
    """Applies a function to rows, in batches, in the graph.

    Args:
        function: callable. It gets a padded int32 tensor `(b, S)` per column and a tensor `(b,)`
            per option, and returns a tuple of tensors.
        columns: list of int32 `RaggedTensor` `(B, None)`.
        options: list of tensors `(B,)`.
        pad_token_id: int.
        specs: list of `tf.TensorSpec` `[None, ...]`, of the tensors that the function returns.

    Returns:
        tuple of tensors `(B, ...)`.
    """
    lengths = tf.reduce_max([column.row_lengths() for column in columns], axis=0)
    batches = batch_rows(lengths, BATCH_SENTENCES, MOST_PAIRS)

    def add_results(index, results):
        rows = batches[index]
        batch = [tf.gather(column, rows).to_tensor(pad_token_id) for column in columns]
        batch += [tf.gather(option, rows) for option in options]
        pairs = zip(results, function(*batch), strict=True)
        return index + 1, tuple(tf.concat(pair, axis=0) for pair in pairs)

    _, results = tf.while_loop(
        lambda index, results: index < batches.nrows(tf.int32),
        add_results,
        (tf.constant(0), tuple(tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in specs)),
        shape_invariants=(tf.TensorShape([]), tuple(spec.shape for spec in specs)),
        parallel_iterations=1,  # otherwise several batches are in memory at a time
    )
    order = tf.math.invert_permutation(batches.flat_values)
    return tuple(tf.gather(each, order) for each in results)


def map_rows(function, columns, pad_token_id, batch_sentences, on_progress=None, lines=None):
    """Applies a function to rows, batch by batch, eagerly.

    Args:
        function: callable. It gets a padded int32 array `(b, S)` per column, and returns an
            iterable of b results.
        columns: list of int32 `RaggedTensor` `(B, None)`.
        pad_token_id, batch_sentences: as in `map_batches` and `batch_rows`.
        on_progress: callable, called after each batch with the number of lines that it finished.
            Optional.
        lines: int array `(B,)`, the line of each row. Defaults to one row per line.

    Returns:
        list of B results, in the order of the rows.
    """
    require_positive(batch_sentences=batch_sentences)
    columns = [_rows_of(column) for column in columns]
    lengths = [max(map(len, cells)) for cells in zip(*columns, strict=True)]
    lines = np.arange(len(lengths)) if lines is None else lines
    rows_left = np.bincount(lines)  # of each line
    results = [None] * len(lines)
    batches = batch_rows(lengths, batch_sentences, MOST_PAIRS)
    for rows in batches.to_list():
        batch = [
            keras.utils.pad_sequences([c[row] for row in rows], padding="post", value=pad_token_id)
            for c in columns
        ]
        for row, result in zip(rows, function(*batch), strict=True):
            results[row] = result
        if on_progress is not None:
            np.subtract.at(rows_left, lines[rows], 1)
            on_progress(int(np.sum(rows_left[np.unique(lines[rows])] == 0)))
    return results


def _rows_of(ragged):
    """Returns the rows of an int32 `RaggedTensor` `(B, None)` as arrays."""
    values, splits = ragged.values.numpy(), ragged.row_splits.numpy()
    return [values[start:end] for start, end in itertools.pairwise(splits)]
