"""On JAX, weights are outside of the model while it computes: Ctrl-C leaves it those it has."""

import os
import signal

import jax
import keras
import numpy as np
import pytest

from keras_transformer import Adam, SmoothedCrossEntropy
from tests.builders import to_numpy
from tests.training.small_models import LABELS, TOKENS, WEIGHTS, Tagger, V

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]


class Bell:
    """Sends Ctrl-C when it is rung for the third time after it was set."""

    rings = -np.inf

    def set(self):
        self.rings = 0

    def ring(self, *_, **__):
        self.rings += 1
        if self.rings == 3:
            os.kill(os.getpid(), signal.SIGINT)


class Rings(keras.layers.Layer):
    """Rings a bell whenever the compiled program runs."""

    def __init__(self, bell):
        super().__init__()
        self.bell = bell

    def call(self, inputs):
        jax.debug.callback(self.bell.ring)
        return inputs


def tagger(bell, steps_per_execution=1):
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    hidden = Rings(bell)(keras.layers.Embedding(V, 6)(tokens))
    model = Tagger(tokens, keras.layers.Dense(V)(hidden))
    loss = SmoothedCrossEntropy(ignore_class=0)
    model.compile(Adam(name="adam"), loss, steps_per_execution=steps_per_execution)
    return model


def batches(bell):
    while True:
        bell.ring()
        yield TOKENS, LABELS, WEIGHTS


def state_of(model):
    return to_numpy(model.weights), to_numpy(model.optimizer.variables)


@pytest.mark.parametrize(
    "place, steps_per_execution",
    [("program", 1), ("program", 2), ("data", 1), ("callback", 1)]
    + [pytest.param(place, 2, marks=pytest.mark.long) for place in ("data", "callback")],
)
def test_interrupted_model_has_the_weights_of_its_last_update(place, steps_per_execution):
    bells = {name: Bell() for name in ("program", "data", "callback")}
    bell = bells[place]
    model = tagger(bells["program"], steps_per_execution)
    ring = bells["callback"].ring
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=ring)
    callback.on_test_batch_end = callback.on_predict_batch_end = ring

    def interrupted(method, **arguments):
        bell.set()
        with pytest.raises(KeyboardInterrupt):
            method(batches(bells["data"]), callbacks=[callback], verbose=0, **arguments)
        bell.rings = -np.inf
        return state_of(model)

    state = interrupted(model.fit, steps_per_epoch=20, shuffle=False)
    updates = int(model.optimizer.iterations)
    assert 0 < updates < 20
    twin = tagger(Bell())
    twin.fit(batches(Bell()), steps_per_epoch=updates, shuffle=False, verbose=0)
    for again in (
        state,
        interrupted(model.evaluate, steps=20),
        interrupted(model.predict, steps=20),
    ):
        keras.tree.map_structure(np.testing.assert_array_equal, again, state_of(twin))
    model.fit(batches(Bell()), steps_per_epoch=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == updates + 2


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_error_of_a_batch_leaves_the_weights_of_the_batch_before(method):
    model = tagger(Bell())
    model.train_on_batch(TOKENS, LABELS)
    before = state_of(model)
    with pytest.raises(ValueError):
        getattr(model, method)(TOKENS, LABELS[:3])
    keras.tree.map_structure(np.testing.assert_array_equal, state_of(model), before)
    model.train_on_batch(TOKENS, LABELS)


def test_weights_that_a_callback_loads_after_a_batch_stay(tmp_path):
    """The callback has the model from elsewhere: `self.model` would fetch the weights."""
    model = tagger(Bell())
    model.train_on_batch(TOKENS, LABELS)
    model.save_weights(tmp_path / "model.weights.h5")
    weights = to_numpy(model.weights)
    loader = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: model.load_weights(tmp_path / "model.weights.h5")
    )
    model.fit(TOKENS, LABELS, verbose=0, callbacks=[loader])
    keras.tree.map_structure(np.testing.assert_array_equal, to_numpy(model.weights), weights)
