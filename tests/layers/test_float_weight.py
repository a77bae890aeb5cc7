"""`float_weight` is the matrix by which a layer multiplies, whatever was done to the layer."""

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.layers.float_weight import float_weight
from tests.builders import normal, quantize, to_numpy

D, UNITS = 8, 6
HALF = 2.0**-7  # bfloat16 has 8 bits


def quantized(layer, mode, **options):
    quantize(layer, mode, **options)
    return layer


def without_activations(layer):
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    return quantized(layer, None, config=config)


def with_lora(layer):
    layer.enable_lora(2, lora_alpha=6)
    for weight in layer.trainable_variables:
        if "lora" in weight.name:
            weight.assign(0.3 * normal(*weight.shape, seed=len(weight.path)))
    return layer


# What is done to a built layer; the dtype policy; the tolerance, or the error.
STATES = {
    "plain": (lambda layer: layer, "float32", 1e-6),
    "LoRA": (with_lora, "float32", 1e-6),
    "int8": (lambda layer: quantized(layer, "int8"), "float32", 1e-6),
    "cast": (lambda layer: layer, "bfloat16", 1e-6),
    "mixed": (lambda layer: layer, "mixed_bfloat16", HALF),
    "mixed, LoRA": (with_lora, "mixed_bfloat16", HALF),
    "mixed, int8": (lambda layer: quantized(layer, "int8"), "mixed_bfloat16", HALF),
}
OF_DENSE = {
    "int8, LoRA": (lambda layer: with_lora(quantized(layer, "int8")), "float32", 1e-6),
    "int8 weights only": (without_activations, "float32", 1e-6),
    "int4": (lambda layer: quantized(layer, "int4"), "float32", "quantization_mode='int4'"),
    "float8": (lambda layer: quantized(layer, "float8"), "float32", "quantization_mode='float8'"),
}
CASES = [
    pytest.param(name, *case, id=f"{name}: {state}")
    for name, states in (("kernel", STATES | OF_DENSE), ("embeddings", STATES))
    for state, case in states.items()
]


def layer_and_matrix(name, policy):
    """A layer, and a function that returns the matrix by which it multiplies."""
    if name == "kernel":
        layer = keras.layers.Dense(UNITS, use_bias=False, dtype=policy)
        layer.build((None, D))
        return layer, lambda: to_numpy(layer(np.eye(D, dtype="float32")))
    layer = layers.PositionalEmbedding(UNITS, D, dtype=policy)
    layer.build()
    unit_vectors = np.eye(D, dtype="float32")[None]
    return layer, lambda: to_numpy(layer(unit_vectors, reverse=True))[0].T


@pytest.mark.parametrize(("name", "adapt", "policy", "expected"), CASES)
def test_float_weight_is_the_matrix_of_the_layer(name, adapt, policy, expected):
    layer, matrix = layer_and_matrix(name, policy)
    before = matrix()
    layer = adapt(layer)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"int8 only.*{expected}.*before `quantize`"):
            float_weight(layer, name)
        return
    weight = float_weight(layer, name)
    assert weight.dtype == np.float32 and weight.shape == before.shape
    np.testing.assert_allclose(weight, matrix(), atol=expected)
    assert adapt is not with_lora or np.abs(weight - before).max() > 0.1
