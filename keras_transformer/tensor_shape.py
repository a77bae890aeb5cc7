"""The sizes of a tensor's axes, also sizes that are unknown until a graph runs.

Depends on the backend: only graphs of TensorFlow have unknown sizes.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


def shape_of(tensor: Tensor) -> tuple[Any, ...]:
    """Like `keras.ops.shape`, but reads all unknown sizes by two operations of TensorFlow.

    Keras adds four operations for each unknown size. Every operation takes time when a graph is
    traced, and in a short decoding step.

    Returns:
        tuple of ints. An unknown size is an int32 scalar; in a functional model, `None`.
    """
    if keras.config.backend() != "tensorflow" or not tf.is_tensor(tensor):
        return ops.shape(tensor)
    static = tuple(tensor.shape)
    if None not in static:
        return static
    sizes = tf.unstack(tf.shape(tensor))
    return tuple(
        size if length is None else length for length, size in zip(static, sizes, strict=True)
    )
