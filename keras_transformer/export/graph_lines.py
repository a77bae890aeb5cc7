"""Lines of text in a graph, by the rules of `decoding/lines.py`; errors name the line."""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding.lines import learned_positions
from keras_transformer.decoding.search_settings import SearchSettings


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


def longest_targets(
    lengths: tf.Tensor, settings: SearchSettings, config: Any, max_length: int | tf.Tensor
) -> tf.Tensor:
    """As `longest_target`, in a graph: maximum tokens, end token and prefix included.

    Args:
        lengths: int tensor `(B,)`: tokens of each source, without the end token.
        settings: `SearchSettings`, for `length_ratio` and `extra_length`.
        config: as in `SearchModel`.
        max_length: int, or int32 tensor `(B,)`: that of each line, in place of the settings'.

    Returns:
        int32 tensor `(B,)`, 0 for empty sources.
    """
    # float64 rounds as Python does. The cast is safe, because `max_length` fits into int32.
    longest = tf.floor(settings.length_ratio * tf.cast(lengths, tf.float64)) + settings.extra_length
    longest = tf.minimum(longest, tf.cast(max_length, tf.float64))
    longest = tf.maximum(tf.cast(longest, tf.int32), 1)
    longest = tf.minimum(longest, learned_positions(config) or longest)
    return tf.where(lengths > 0, longest, 0)
