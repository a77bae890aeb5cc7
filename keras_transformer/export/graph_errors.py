"""Errors of a graph that show the first row that is wrong."""

from typing import Any

import tensorflow as tf


def require_rows(is_right: tf.Tensor, message: str, *values: Any) -> tf.Operation:
    """Returns an operation that raises an InvalidArgumentError unless all rows are right.

    Args:
        is_right: bool tensor `(B,)`.
        message: str with a "{}" for each of `values`; it shows those of the first wrong row.
        *values: tensors `(B,)`.
    """
    first_wrong = tf.where(~is_right)[:1, 0]
    wrong_values = [tf.gather(column, first_wrong) for column in values]
    text = tf.strings.format(message, wrong_values)
    return tf.debugging.Assert(tf.reduce_all(is_right), [text])
