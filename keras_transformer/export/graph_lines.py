"""Tokenizes lines of text in a graph; errors name the line that is wrong."""

import tensorflow as tf


def token_ids_of(graph, text):
    """As `encode_lines`, in a graph: ragged ids of a string tensor `(B,)`.

    Args:
        graph: that of a tokenizer.
        text: string tensor.
    """
    return graph.tokenize(tf.where(tf.strings.strip(text) == "", "", text))


def refuse_first(is_wrong, message, values, tensors):
    """Returns tensors; raises an InvalidArgumentError about the first row that is wrong, if any.

    Args:
        is_wrong: bool tensor `(B,)`.
        message: str with a "{}" for each of `values`.
        values: list of string tensors `(B,)`, or `()` for all rows.
        tensors: nest of tensors.
    """
    row = tf.where(is_wrong)[:1, 0]  # or none
    parts = message.split("{}")
    for number, value in enumerate(values):
        parts.insert(2 * number + 1, tf.gather(value, row) if value.shape.rank else value)
    text = tf.strings.reduce_join(tf.strings.join(parts))
    with tf.control_dependencies([tf.debugging.Assert(tf.size(row) == 0, [text])]):
        return tf.nest.map_structure(tf.identity, tensors, expand_composites=True)
