"""Residual: LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x))."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.residual import Residual
from tests.builders import assert_close, normal, randomize, to_numpy, weights_below
from tests.layer_checks import HALF_PRECISION
from tests.paper_reference import layer_norm

x = normal(2, 5, 8) * 3 + 1


def double(x):
    return x * 2


def apply(layer, sublayer, inputs=x, training=False):
    outputs = sublayer(layer.sublayer_input(inputs))
    return to_numpy(layer(inputs, outputs, training=training))


def built(**config):
    layer = Residual(**config)
    layer.build(x.shape)
    return randomize(layer)


def norm_of(layer):
    weights = {k.split("/")[-1]: to_numpy(v) for k, v in weights_below(layer).items()}
    return lambda x: layer_norm(weights, x.astype("float64"), epsilon=layer.layer_norm_epsilon)


def test_dropout_drops_units_of_the_sublayer_only():
    layer = built(dropout=0.5, normalize_first=True)
    ones = apply(layer, keras.ops.ones_like, training=True) - x
    assert set(np.unique(ones.round(5))) == {0.0, 2.0}  # dropped, or kept and scaled by 1 / 0.5
    np.testing.assert_array_equal(apply(layer, double), apply(built(normalize_first=True), double))


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_statistics_are_float32_in_half_precision(policy):
    """Half precision rounds away small differences between large values; float16 overflows."""
    layer = built(dtype=policy)
    large = keras.ops.cast(300.0 * x, layer.compute_dtype)
    expected = norm_of(layer)(to_numpy(large))
    outputs = layer(large, keras.ops.zeros_like(large))
    assert keras.backend.standardize_dtype(outputs.dtype) == HALF_PRECISION[policy]
    assert_close(to_numpy(outputs), expected, 2.0**-7)
