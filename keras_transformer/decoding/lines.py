"""Tokenizes lines of text; errors name the line that no tokenizer or model can take."""

import tensorflow as tf

from keras_transformer.data.graph_tokenizer import tokenize


def token_ids_of(graph, text):
    """Returns ragged ids; a line of spaces has none, even if the tokenizer keeps spaces."""
    text = tf.convert_to_tensor(text, tf.string)
    return tokenize(graph, tf.where(tf.strings.strip(text) == "", "", text))


def refuse_first(is_wrong, message, values, tensors):
    """Returns tensors, or raises an error about the first row that is wrong.

    Args:
        is_wrong: bool tensor `(B,)`.
        message: str with a "{}" for each of `values`.
        values: list of string tensors `(B,)`.
        tensors: nest of tensors.

    Raises:
        ValueError, or in a graph InvalidArgumentError, when it runs.
    """
    row = tf.where(is_wrong)[:1, 0]  # or none
    parts = message.split("{}")
    for number, value in enumerate(values):
        parts.insert(2 * number + 1, tf.gather(value, row))
    text = tf.strings.reduce_join(tf.strings.join(parts))
    if tf.executing_eagerly():
        if tf.size(row):
            raise ValueError(text.numpy().decode())
        return tensors
    with tf.control_dependencies([tf.debugging.Assert(tf.size(row) == 0, [text])]):
        return tf.nest.map_structure(tf.identity, tensors, expand_composites=True)


def require_at_most(most, what, token_ids, name, advice=""):
    """Raises if a line has more than `most` tokens with the end token, which is still missing."""
    lengths = token_ids.row_lengths().numpy() + 1
    if lengths.max(initial=0) > most:
        raise ValueError(
            f"A line must have at most {most:,} tokens with the end token, {what}. Received: line "
            f"{lengths.argmax() + 1} of `{name}` has {lengths.max():,} tokens. "
            + f"Shorten it {advice}".strip()
        )
