"""Our layer normalisation equals Keras's: outputs, gradients, weights and names."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.layer_normalization import LayerNormalization
from tests.builders import assert_close, normal, randomize, to_numpy

pytestmark = pytest.mark.tensorflow_only  # elsewhere it is Keras's


def outputs_and_gradients(layer, inputs, upstream):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
    watched = [inputs, *(variable.value for variable in layer.trainable_variables)]
    return outputs, tape.gradient(outputs, watched, output_gradients=upstream)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("shape", [(7, 16), (3, 5, 16)])
def test_outputs_and_gradients_are_those_of_keras(dtype, shape):
    import tensorflow as tf

    pair = [
        kind(epsilon=1e-3, dtype=dtype)
        for kind in (LayerNormalization, keras.layers.LayerNormalization)
    ]
    for layer in pair:
        layer.build(shape)
        randomize(layer)
    inputs = tf.cast(3 + normal(*shape), pair[0].compute_dtype)
    upstream = tf.cast(normal(*shape, seed=1), pair[0].compute_dtype)
    tolerance = 1e-6 if dtype == "float32" else 2**-7
    (ours, our_gradients), (theirs, their_gradients) = (
        outputs_and_gradients(layer, inputs, upstream) for layer in pair
    )
    assert ours.dtype == theirs.dtype
    assert_close(to_numpy(ours), to_numpy(theirs), tolerance)
    for actual, expected in zip(our_gradients, their_gradients, strict=True):
        assert actual.dtype == expected.dtype
        assert_close(to_numpy(actual), to_numpy(expected), tolerance)


def test_gradient_is_that_of_differences():
    import tensorflow as tf

    layer = LayerNormalization(dtype="float64")
    layer.build((4, 8))
    randomize(layer)
    _, numerical = tf.test.compute_gradient(layer, [tf.constant(normal(4, 8), tf.float64)])
    analytic, _ = tf.test.compute_gradient(layer, [tf.constant(normal(4, 8), tf.float64)])
    assert_close(analytic[0], numerical[0], 1e-4)


def test_a_constant_row_has_finite_gradients():
    import tensorflow as tf

    layer = LayerNormalization()
    layer.build((1, 4))
    _, gradients = outputs_and_gradients(layer, tf.ones((1, 4)), tf.ones((1, 4)))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
