"""On JAX, the state between two updates is few arrays: the same updates, in fewer kernels."""

import gc
import re

import jax
import keras
import numpy as np
import pytest

from keras_transformer import Adam, SmoothedCrossEntropy, Transformer
from tests.builders import assert_close, to_numpy
from tests.training.small_models import (
    LABELS,
    SOURCE,
    TOKENS,
    WEIGHTS,
    Tagger,
    V,
    compiled,
    dtype_policy,
    transformer,
)

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]
LONG = pytest.mark.long


class KeepsLists:
    """Overrides the step: the state stays in the lists of Keras."""

    def train_step(self, state, data):
        return super().train_step(state, data)


class KerasTagger(KeepsLists, Tagger):
    pass


class KerasTransformer(KeepsLists, Transformer):
    pass


def trained(kind, adam, policy="float32", **arguments):
    """Returns losses, gradient norms, weights, and the optimizer's variables, after 40 updates."""
    keras.utils.set_random_seed(1)
    optimizer = adam(0.01, beta_2=0.98, name="adam", **arguments)
    if optimizer.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    with dtype_policy(policy):
        model = compiled(kind, optimizer, dropout=0.2)
    history = model.fit(
        TOKENS, LABELS, 4, epochs=20, sample_weight=WEIGHTS, shuffle=False, verbose=0
    )
    variables = {variable.path: to_numpy(variable) for variable in model.optimizer.variables}
    return history.history, to_numpy(model.weights), variables


@pytest.mark.parametrize(
    "arguments",
    [
        {"weight_decay": 0.1, "global_clipnorm": 0.3, "use_ema": True},
        pytest.param({}, marks=LONG),
        pytest.param({"clipnorm": 0.1, "amsgrad": True}, marks=LONG),
        # The optimizer is inside of one that scales the loss.
        pytest.param({"policy": "mixed_float16"}, marks=LONG),
        pytest.param({"policy": "bfloat16"}, marks=LONG),
    ],
    ids=["decay, clip and average", "plain", "amsgrad", "loss scale", "half precision"],
)
def test_updates_are_those_of_keras(arguments):
    ours = trained(Tagger, Adam, **arguments)
    theirs = trained(KerasTagger, keras.optimizers.Adam, **arguments)
    assert ours[2].keys() == theirs[2].keys()
    keras.tree.map_structure(lambda a, b: assert_close(a, b, 1e-6), ours, theirs)


def test_update_of_a_subclass_is_used():
    class Halving(Adam):
        def update_step(self, gradient, variable, learning_rate):
            variable.assign(variable / 2)

    model = compiled(Tagger, Halving())
    before = to_numpy(model.trainable_variables)
    model.train_on_batch(TOKENS, LABELS)
    for halved, weight in zip(to_numpy(model.trainable_variables), before, strict=True):
        np.testing.assert_array_equal(halved, weight / 2)


def test_weights_of_two_dtypes_keep_them():
    states = []
    for kind, adam in ((Tagger, Adam), (KerasTagger, keras.optimizers.Adam)):
        keras.utils.set_random_seed(1)
        tokens = keras.Input((None,), dtype="int32")
        hidden = keras.layers.Embedding(V, 6, dtype="bfloat16")(tokens)
        model = kind(tokens, keras.layers.Dense(V)(hidden))
        model.compile(adam(0.01, beta_2=0.98), loss=SmoothedCrossEntropy(ignore_class=0))
        model.fit(TOKENS, LABELS, 4, epochs=2, shuffle=False, verbose=0)
        variables = model.weights + model.optimizer.variables
        assert {"float32", "bfloat16"} < {variable.dtype for variable in variables}
        states.append([(variable.dtype, to_numpy(variable)) for variable in variables])
    for (dtype, ours), (dtype_of_keras, theirs) in zip(*states, strict=True):
        assert dtype == dtype_of_keras
        assert_close(ours, theirs, 1e-6)


def kernels_of(kind, adam):
    """Returns how many kernels XLA starts for an update, and how many arrays it is given."""
    model = transformer(kind)
    model.compile(adam(0.01), loss=SmoothedCrossEntropy(0.1))
    batch = {"encoder_token_ids": SOURCE, "decoder_token_ids": TOKENS}, LABELS, WEIGHTS
    model._symbolic_build(data_batch=batch)
    model.optimizer.build(model.trainable_variables)
    parts = "trainable_variables", "non_trainable_variables"
    parts += "optimizer_variables", "metrics_variables", "purge_model_variables"
    state = model._get_jax_state(**dict.fromkeys(parts, True))
    program = jax.jit(model.train_step).lower(state, batch).compile()
    entry = program.as_text().split("\nENTRY ")[1]
    return len(re.findall(r" fusion\(", entry)), len(jax.tree.leaves(state))


@LONG
def test_an_update_is_fewer_kernels_and_arrays():
    kernels, arrays = kernels_of(Transformer, Adam)
    kernels_of_keras, arrays_of_keras = kernels_of(KerasTransformer, keras.optimizers.Adam)
    assert kernels < 0.8 * kernels_of_keras
    assert arrays < 0.5 * arrays_of_keras


def test_moments_are_held_once_after_a_callback_read_them():
    """By the state of `fit` or by the variables, not by both."""
    held = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(held) == 2:
                self.model.jax_state_sync()
            gc.collect()
            held.append(sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted()))

    model = compiled(Tagger, Adam())
    model.fit(TOKENS[:2], LABELS[:2], 1, epochs=3, verbose=0, callbacks=[Reads()])
    assert len(held) == 6 and max(held) < 1.1 * held[0]
