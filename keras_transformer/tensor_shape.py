"""The sizes of a tensor's axes, also those that are unknown until a graph runs.

Depends on the backend: only graphs of TensorFlow have unknown sizes.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


def shape_of(tensor: Tensor) -> tuple[Any, ...]:
    """As `keras.ops.shape`, by fewer operations: tracing and short steps take time for each.

    For each unknown size, Keras adds a slice and its three constants to the graph.

    Returns:
        tuple of ints, and of int32 scalars for unknown sizes; in a functional model, of `None`.
    """
    if keras.config.backend() != "tensorflow" or isinstance(tensor, keras.KerasTensor):
        return ops.shape(tensor)
    static = tuple(tensor.shape)
    if None not in static:
        return static
    sizes = tf.unstack(tf.shape(tensor))
    return tuple(
        size if known is None else known for known, size in zip(static, sizes, strict=True)
    )
