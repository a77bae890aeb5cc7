"""Initialisers, regularisers, constraints and seeds reach every dense layer, as in Keras."""

import json

import keras
import numpy as np
import pytest

from keras_transformer.layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from tests.builders import copy_weights, normal, randomize, to_numpy

x = normal(2, 5, 8)
OPTIONS = {
    "kernel_regularizer": "l2",
    "bias_regularizer": keras.regularizers.L1(0.1),
    "activity_regularizer": keras.regularizers.L2(0.3),
    "kernel_constraint": keras.constraints.MaxNorm(0.5),
    "bias_constraint": "non_neg",
}
LAYERS = [
    (MultiHeadAttention, {"num_heads": 2}, 2),
    (FeedForward, {"intermediate_dim": 8}, 1),
    (EncoderBlock, {"num_heads": 2, "intermediate_dim": 8}, 1),
    (DecoderBlock, {"num_heads": 2, "intermediate_dim": 8}, 2),
]
EVERY = pytest.mark.parametrize("layer_class, config, inputs", LAYERS)


def kernels(layer):
    return [to_numpy(v) for v in layer.trainable_variables if v.path.endswith("kernel")]


def built(layer_class, config, inputs, **options):
    layer = layer_class(**config, **options)
    layer(*[x] * inputs)
    return layer


def test_regularizers_equal_keras():
    inputs = {"query": x, "value": x}
    options = {k: v for k, v in OPTIONS.items() if k.endswith("regularizer")}
    layer = MultiHeadAttention(2, 4, **options)
    peer = keras.layers.MultiHeadAttention(2, 4, **options)
    for each in (layer, peer):
        each(**inputs)
    copy_weights(randomize(layer), peer, {"output/": "attention_output/"})
    losses = []
    for each in (layer, peer):
        each(**inputs)
        losses.append(float(to_numpy(sum(each.losses))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@EVERY
@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.GlorotUniform(),
        keras.initializers.GlorotUniform(seed=1),
        keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(1)),
    ],
    ids=["unseeded", "seeded", "seed generator"],
)
def test_one_initializer_gives_every_kernel_other_values(layer_class, config, inputs, initializer):
    layer = built(layer_class, config, inputs, kernel_initializer=initializer)
    drawn = kernels(layer)
    assert len(drawn) == len({kernel.tobytes() for kernel in drawn}) >= 2


@EVERY
def test_options_reach_every_dense_layer_and_the_config(layer_class, config, inputs):
    initializers = {"kernel_initializer": "ones", "bias_initializer": "he_uniform"}
    layer = built(layer_class, config, inputs, **OPTIONS, kernel_initializer="ones")
    assert all((kernel == 1).all() for kernel in kernels(layer))
    expected = 0.01 * sum(kernel.size for kernel in kernels(layer))
    weights_loss = sum(
        float(to_numpy(v.regularizer(v)))
        for v in layer.trainable_variables
        if v.path.endswith("kernel")
    )
    assert weights_loss == pytest.approx(expected, rel=1e-5)
    constrained = [v for v in layer.trainable_variables if v.constraint is not None]
    assert len(constrained) == 2 * len(kernels(layer))  # kernels and biases
    restored = layer_class.from_config(
        json.loads(json.dumps(layer_class(**config, **OPTIONS | initializers, seed=3).get_config()))
    )
    assert restored.get_config()["kernel_constraint"]["config"] == {"max_value": 0.5, "axis": 0}
    assert restored.get_config()["bias_initializer"] == "he_uniform"


@EVERY
def test_dropout_repeats_with_the_seed(layer_class, config, inputs):
    rate = {"dropout": 0.5}
    layers = [built(layer_class, config | rate, inputs, seed=seed) for seed in (1, 1, 2)]
    for layer in layers[1:]:
        layer.set_weights(layers[0].get_weights())
    first, same, other = (to_numpy(layer(*[x] * inputs, training=True)) for layer in layers)
    np.testing.assert_array_equal(same, first)
    assert not np.allclose(other, first)


@EVERY
def test_numpy_integers_become_json(layer_class, config, inputs):
    numbers = {name: np.int64(value) for name, value in config.items()} | {"seed": np.int32(4)}
    assert json.loads(json.dumps(layer_class(**numbers).get_config()))["seed"] == 4


@EVERY
def test_layer_that_is_frozen_before_it_is_built_is_frozen_in_a_model(layer_class, config, inputs):
    by_argument, by_attribute = layer_class(**config, trainable=False), layer_class(**config)
    by_attribute.trainable = False
    for layer in (by_argument, by_attribute):
        symbols = [keras.Input(x.shape[1:]) for _ in range(inputs)]
        model = keras.Model(symbols, layer(*symbols))
        assert model.trainable_weights == []
        layer.trainable = True
        assert len(model.trainable_weights) == len(model.weights) > 0
