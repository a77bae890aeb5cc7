"""FeedForward: its activation, its checks, and what a subclass may change."""

import keras
import numpy as np

from keras_transformer.layers.feed_forward import FeedForward
from tests.builders import assert_close, normal, randomize, to_numpy
from tests.layer_checks import check_layer

x = normal(2, 5, 8)


def built(**config):
    layer = FeedForward(intermediate_dim=32, **config)
    layer.build(x.shape)
    return randomize(layer)


def test_activation_is_applied_between_the_layers():
    layer = built(activation="gelu")
    hidden = keras.activations.gelu(
        keras.ops.matmul(x, layer.intermediate.kernel) + layer.intermediate.bias
    )
    expected = keras.ops.matmul(hidden, layer.output_dense.kernel) + layer.output_dense.bias
    assert_close(to_numpy(layer(x)), to_numpy(expected), 1e-6)


def test_layer_passes_the_layer_checks():
    config = {"intermediate_dim": 32, "dropout": 0.1, "activation": "gelu"}
    check_layer(FeedForward, config, {"inputs": x})


def test_inputs_of_length_0_keep_their_batch_axis():
    layer = built()
    assert tuple(layer(np.zeros((2, 0, 8))).shape)[:2] == (2, 0)


def test_subclass_chooses_the_widths():
    class Wider(FeedForward):
        def build(self, inputs_shape):
            super().build(inputs_shape)
            self.output_dense = keras.layers.Dense(2 * inputs_shape[-1])
            self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))

    layer = Wider(8)
    outputs = layer(x)
    assert outputs.shape == (2, 5, 16)
    assert_close(to_numpy(outputs), to_numpy(layer.output_dense(layer.intermediate(x))), 1e-6)
