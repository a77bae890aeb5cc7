"""Residual: LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x))."""

import inspect

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.layers.residual import Residual
from tests.builders import assert_close, normal, randomize, to_numpy, weights_below
from tests.layer_checks import HALF_PRECISION
from tests.paper_reference import layer_norm

x = normal(2, 5, 8) * 3 + 1


def double(x):
    return x * 2


def built(**config):
    layer = Residual(**config)
    layer.build(x.shape)
    return randomize(layer)


def norm_of(layer):
    weights = {k.split("/")[-1]: to_numpy(v) for k, v in weights_below(layer).items()}
    return lambda x: layer_norm(weights, x.astype("float64"), epsilon=layer.layer_norm_epsilon)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_post_norm_normalises_the_sum(epsilon):
    layer = built(layer_norm_epsilon=epsilon)
    assert_close(to_numpy(layer(x, sublayer=double)), norm_of(layer)(x + double(x)), 1e-6)


def test_pre_norm_normalises_what_the_sublayer_sees():
    layer = built(normalize_first=True)
    assert_close(to_numpy(layer(x, sublayer=double)), x + double(norm_of(layer)(x)), 1e-6)


def test_dropout_drops_units_of_the_sublayer_alone():
    layer = built(dropout=0.5, normalize_first=True)
    ones = to_numpy(layer(x, sublayer=keras.ops.ones_like, training=True)) - x
    assert set(np.unique(ones.round(5))) == {0.0, 2.0}  # dropped, or kept and scaled by 1 / 0.5
    np.testing.assert_array_equal(
        to_numpy(layer(x, sublayer=double, training=False)),
        to_numpy(built(normalize_first=True)(x, sublayer=double)),
    )


def test_further_outputs_of_the_sublayer_are_passed_on():
    outputs, extra, more = built()(x, sublayer=lambda x: (x, "extra", "more"))
    assert (extra, more) == ("extra", "more")
    assert outputs.shape == x.shape


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_statistics_are_float32_in_half_precision(policy):
    """A large common offset vanishes in half precision, and its variance overflows float16."""
    layer = built(dtype=policy)
    large = keras.ops.cast(300.0 * x, layer.compute_dtype)
    expected = norm_of(layer)(to_numpy(large))
    outputs = layer(large, sublayer=keras.ops.zeros_like)
    assert keras.backend.standardize_dtype(outputs.dtype) == HALF_PRECISION[policy]
    assert_close(to_numpy(outputs), expected, 2.0**-7)


def test_no_public_layer_takes_a_sublayer_as_call_argument():
    """A functional model neither trains nor saves a layer among call arguments."""
    public = [getattr(layers, name) for name in layers.__all__]
    public = [c for c in public if inspect.isclass(c) and issubclass(c, keras.layers.Layer)]
    assert public and Residual not in public
    assert not [c for c in public if "sublayer" in inspect.signature(c.call).parameters]
