"""The rows of a batch as the exact step sees them: checked, weighed, told from filling."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf


class Rows(NamedTuple):
    """Some rows of a batch.

    Args:
        x: nest of tensors `(B, ...)`.
        y: int tensor `(B, T)`.
        sample_weight: float tensor `(B, T)` or `(B,)`.
        is_real: bool tensor `(B,)`. `False`: the row only fills a part of a batch up; such rows
            come last.
    """

    x: Any
    y: Any
    sample_weight: Any
    is_real: Any


def check_batch(batch):
    """Refuses labels and weights of other shapes, which would broadcast to a wrong loss."""
    _, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(
        batch[:3] if isinstance(batch, tuple) else batch
    )
    for name, value, ranks in (("y", labels, [2]), ("sample_weight", sample_weight, [1, 2])):
        if value is None and name == "sample_weight":
            continue
        shape = getattr(value, "shape", None)
        if (
            value is None
            or isinstance(value, dict)
            or (shape is not None and len(shape) not in ranks)
        ):
            expected = "(B, T), one token id for each logit" if name == "y" else "(B, T) or (B,)"
            raise ValueError(
                f"`{name}` must be one tensor {expected}. Received: "
                f"{'none' if value is None else f'shape {shape}'}"
            )


def rows_of(data):
    """The rows of a batch, as Keras or `split_rows` gives them."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data[:3])
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(y))
    # Only `split_rows` fills a part up, and then marks the rows.
    is_real = data[3] if len(data) == 4 else tf.fill(tf.shape(y)[:1], True)
    rows = keras.tree.map_structure(tf.convert_to_tensor, Rows(x, y, sample_weight, is_real))
    several = tf.distribute.get_replica_context().num_replicas_in_sync > 1
    return _at_least_one_row(rows) if several else rows


def number_of(rows):
    """float32 scalar: how many of the rows are real."""
    return tf.reduce_sum(tf.cast(rows.is_real, tf.float32))


def without_filling(rows):
    """The real rows; where there are none a row of zeros, since a mean over none would be NaN."""
    stays = rows.is_real | (tf.range(tf.size(rows.is_real)) == 0)
    return keras.tree.map_structure(lambda tensor: tf.boolean_mask(tensor, stays), rows)


def symbolic(spec):
    """The shape and dtype of an element of a dataset; of a replica's part, if it is distributed."""
    (spec, *_) = getattr(spec, "_value_specs", [spec])
    if not isinstance(spec, tf.TensorSpec):
        return None
    return keras.KerasTensor(spec.shape, dtype=spec.dtype.name)


def _at_least_one_row(rows):
    """Fills up the part of a replica for which Keras had no row left."""
    missing = tf.maximum(1 - tf.size(rows.is_real), 0)
    return keras.tree.map_structure(
        lambda tensor: tf.pad(tensor, [[0, missing]] + [[0, 0]] * (tensor.shape.rank - 1)), rows
    )
