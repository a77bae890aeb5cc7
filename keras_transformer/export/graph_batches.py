"""Batches of rows in a graph, by the rules of `decoding/batches.py`."""

import tensorflow as tf

from keras_transformer.decoding.batches import BATCH_SENTENCES, MOST_PAIRS, MOST_TOKENS


def batch_rows(lengths):
    """Returns the rows of each batch, an int32 `RaggedTensor` `(batches, None)`.

    As `batch_rows` of `decoding/batches.py`, in a graph.

    Args:
        lengths: int tensor `(B,)`, the length of each row.
    """
    order = tf.argsort(lengths, stable=True)
    lengths = tf.gather(lengths, order)

    def add_batch(splits):
        # For a batch of the next 1, 2, 3, ... rows: its longest row, and how many rows it may have.
        longest = tf.maximum(lengths[splits[-1] :][:BATCH_SENTENCES], 1)
        allowed = tf.minimum(MOST_TOKENS // longest, MOST_PAIRS // longest**2)
        # Larger sizes allow fewer rows, so the number of allowed sizes is the largest of them.
        sizes = tf.range(1, tf.size(longest, tf.int64) + 1)
        size = tf.maximum(tf.math.count_nonzero(sizes <= allowed, dtype=tf.int32), 1)
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
            per option, and returns a dict of tensors.
        columns: list of int32 `RaggedTensor` `(B, None)`.
        options: list of tensors `(B,)`.
        pad_token_id: int.
        specs: dict of `tf.TensorSpec` `[None, ...]`, of the tensors that the function returns.

    Returns:
        dict of tensors `(B, ...)`.
    """
    lengths = tf.reduce_max([column.row_lengths() for column in columns], axis=0)
    batches = batch_rows(lengths)

    def add_results(index, results):
        rows = batches[index]
        batch = [tf.gather(column, rows).to_tensor(pad_token_id) for column in columns]
        batch += [tf.gather(option, rows) for option in options]
        outputs = function(*batch)
        return index + 1, {n: tf.concat([results[n], outputs[n]], axis=0) for n in results}

    empty = {name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}
    _, results = tf.while_loop(
        lambda index, results: index < batches.nrows(tf.int32),
        add_results,
        (tf.constant(0), empty),
        shape_invariants=(tf.TensorShape([]), {n: spec.shape for n, spec in specs.items()}),
        parallel_iterations=1,  # otherwise several batches are in memory at a time
    )
    order = tf.math.invert_permutation(batches.flat_values)
    return {name: tf.gather(tensor, order) for name, tensor in results.items()}
