"""Dropout: the fraction dropped, what the masks depend on, and the path of the random state."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.dropout import Dropout
from tests.builders import to_numpy
from tests.layer_checks import check_config


def masks(layer, number, size=2**16):
    inputs = np.ones(size, "float32")
    return [to_numpy(layer(inputs, training=True)) > 0 for _ in range(number)]


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_fraction_dropped_is_the_rate_and_the_mean_is_kept(rate):
    outputs = to_numpy(Dropout(rate, seed=1)(np.ones((1000, 1001), "float32"), training=True))
    five_deviations = 5 * (rate * (1 - rate) / outputs.size) ** 0.5
    assert abs((outputs == 0).mean() - rate) < five_deviations
    np.testing.assert_allclose(outputs[outputs > 0], 1 / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("rate", [1e-9, 1 - 1e-9])
def test_rates_close_to_0_and_1(rate):
    (kept,) = masks(Dropout(rate), 1, size=2**16 + 1)
    assert kept.shape == (2**16 + 1,) and abs(kept.mean() - (1 - rate)) < 1e-3


def test_masks_of_steps_and_layers_are_uncorrelated():
    first, second = Dropout(0.5), Dropout(0.5)
    drawn = [mask - 0.5 for mask in (*masks(first, 2), *masks(second, 2))]
    for index, mask in enumerate(drawn):
        for other in drawn[index + 1 :]:
            assert abs((mask * other).mean() * 4) < 5 / len(mask) ** 0.5


def test_masks_repeat_with_the_seed():
    first, second = masks(Dropout(0.5, seed=3), 2), masks(Dropout(0.5, seed=3), 2)
    np.testing.assert_array_equal(first, second)
    keras.utils.set_random_seed(5)
    first = masks(Dropout(0.5), 1)
    keras.utils.set_random_seed(5)
    np.testing.assert_array_equal(first, masks(Dropout(0.5), 1))


def test_random_state_is_below_the_layers_path_and_can_be_restored():
    layer = Dropout(0.5, name="outer")
    layer.build()
    (state,) = layer.non_trainable_variables
    assert state.path == "outer/seed_generator/seed_generator_state"
    value, first = to_numpy(state), masks(layer, 1)
    state.assign(value)
    np.testing.assert_array_equal(first, masks(layer, 1))


def test_nothing_is_dropped_outside_training_or_at_rate_0():
    inputs = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(to_numpy(Dropout(0.5)(inputs)), inputs)
    np.testing.assert_array_equal(to_numpy(Dropout(0.0)(inputs, training=True)), inputs)
    assert not Dropout(0.0).variables


@pytest.mark.tensorflow_only
def test_replicas_draw_different_masks_which_repeat_with_the_seed():
    import tensorflow as tf

    from tests.replicas import mirrored

    def draw():
        with mirrored().scope():
            layer = Dropout(0.5, seed=1)
            layer.build()
        run = tf.function(
            lambda: mirrored().run(lambda: layer(tf.ones(1024), training=True)),
            jit_compile=False,
            autograph=False,
        )
        return [[to_numpy(value) for value in run().values] for _ in range(2)]

    (first, second), (third, fourth) = steps = draw()
    for one, other in ((first, second), (first, third), (second, fourth)):
        assert abs(((one > 0) == (other > 0)).mean() - 0.5) < 0.1
    np.testing.assert_array_equal(steps, draw())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rate_of_numpy_keeps_half_precision(dtype):
    outputs = Dropout(np.float32(0.5), dtype=dtype)(np.ones((2, 3)), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype


def test_config_and_errors():
    check_config(Dropout, {"rate": 0.2, "seed": 3})
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match="rate"):
            Dropout(rate)
