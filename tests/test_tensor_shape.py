"""Sizes of a tensor: those that are known are ints, the others are computed by two operations."""

import keras
import numpy as np
import pytest

from keras_transformer.tensor_shape import shape_of


def test_sizes_are_those_of_numpy():
    for shape in ((), (0,), (2, 3, 1)):
        sizes = shape_of(keras.ops.ones(shape))
        assert sizes == shape and all(type(size) is int for size in sizes)
    assert shape_of(keras.Input((None, 3))) == (None, None, 3)


@pytest.mark.tensorflow_only
def test_unknown_sizes_take_two_operations():
    import tensorflow as tf

    def sizes(tensor):
        before = len(tf.compat.v1.get_default_graph().get_operations())
        rows, columns, length = shape_of(tensor)
        added = tf.compat.v1.get_default_graph().get_operations()[before:]
        assert [operation.type for operation in added] == ["Shape", "Unpack"] and columns == 3
        return rows, length

    compiled = tf.function(sizes, [tf.TensorSpec((None, 3, None))])
    for shape in ((2, 3, 5), (0, 3, 1)):
        assert [int(size) for size in compiled(np.zeros(shape, "float32"))] == [shape[0], shape[2]]
