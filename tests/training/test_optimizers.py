"""Our Adam makes the updates of Keras's Adam."""

import keras
import numpy as np
import pytest

from keras_transformer import Adam
from tests.builders import assert_close, normal, to_numpy

# Elsewhere the update is Keras's.
UPDATES = pytest.mark.tensorflow_only


def updated(kind, replicas=1, **arguments):
    """Returns the weights and the optimizer's state after five updates."""
    import tensorflow as tf

    from tests.replicas import mirrored

    strategy = mirrored() if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        weights = [keras.Variable(normal(4, 3)), keras.Variable(normal(3, seed=1))]
        optimizer = kind(0.1, beta_2=0.98, epsilon=1e-3, **arguments)
        optimizer.build(weights)

    @tf.function
    def update(*gradients):
        strategy.run(lambda: optimizer.apply([tf.identity(each) for each in gradients], weights))

    for step in range(5):
        update(*(tf.constant(normal(*weight.shape, seed=2 + step)) for weight in weights))
    if arguments.get("use_ema"):
        optimizer.finalize_variable_values(weights)
    return to_numpy([*weights, *optimizer.variables])


@UPDATES
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.5},
        {"amsgrad": True},
        {"weight_decay": 0.1, "replicas": 2},
    ],
    ids=["plain", "decay and average", "amsgrad", "replicas"],
)
def test_updates_are_those_of_keras(arguments):
    ours, theirs = (updated(kind, **arguments) for kind in (Adam, keras.optimizers.Adam))
    for actual, expected in zip(ours, theirs, strict=True):
        assert_close(actual, expected, 1e-6)


def test_names_of_the_state_and_the_config_are_those_of_keras():
    # So that a checkpoint of one can be loaded into the other.
    weight = keras.Variable(np.zeros(3), name="weight")
    ours, theirs = (kind(0.3, clipnorm=2.0, name="adam") for kind in (Adam, keras.optimizers.Adam))
    for optimizer in (ours, theirs):
        optimizer.build([weight])
    assert [v.path for v in ours.variables] == [v.path for v in theirs.variables]
    again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(again) is Adam and again.get_config() == theirs.get_config()


def test_config_holds_the_names_without_weight_decay():
    optimizer = Adam(0.3, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma"])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(again))
    weights = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias", "gamma")]
    again.apply([keras.ops.zeros(2)] * 3, weights)
    for weight, expected in zip(weights, (1 - 0.5 * 0.3, 1, 1), strict=True):
        np.testing.assert_allclose(to_numpy(weight), expected, rtol=1e-6, err_msg=weight.name)
