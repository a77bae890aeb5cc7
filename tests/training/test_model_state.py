"""The state of a compiled model as arrays: what it holds, and training from a restored state."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.dropout import Dropout
from keras_transformer.runs.checkpoint_file import read_checkpoint, write_checkpoint
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.training.model_state import model_state, restore_model_state
from tests.builders import assert_same_arrays, normal
from tests.training.small_models import EAGER


def small_model(seed=0, **how):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, "tanh", name="first"),
        Dropout(0.5, name="dropout"),
        keras.layers.Dense(2, name="second"),
    ]
    model = keras.Sequential(layers, name="model")
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **EAGER | how)
    return model


def train(model, first, last):
    """Updates `first` to `last`, always from the same batches."""
    rows = slice(8 * first, 8 * last)
    inputs, targets = normal(64, 4, seed=1), normal(64, 2, seed=2)
    model.fit(inputs[rows], targets[rows], batch_size=8, shuffle=False, verbose=0)
    return model


WEIGHTS = ["first/kernel", "first/bias", "second/kernel", "second/bias"]


def test_state_holds_all_that_training_changes():
    model = train(small_model(), 0, 3)
    state = model_state(model)
    moments = [f"model_{name.replace('/', '_')}" for name in WEIGHTS]
    assert set(state) == {
        *(f"model/model/{name}" for name in WEIGHTS),
        "model/model/dropout/seed_generator/seed_generator_state",
        "optimizer/adam/iteration",
        "optimizer/adam/learning_rate",
        *(f"optimizer/adam/{name}_{m}" for name in moments for m in ("momentum", "velocity")),
        *(f"metrics/{name}/{i}" for name in ("loss", "compile_metrics") for i in (0, 1)),
    }
    assert state["optimizer/adam/iteration"] == 3
    for weight, name in zip(model.get_weights(), WEIGHTS, strict=True):
        np.testing.assert_array_equal(state[f"model/model/{name}"], weight)
    copies = {name: array.copy() for name, array in state.items()}
    train(model, 3, 4)
    assert_same_arrays(state, copies)


def test_state_of_bfloat16_weights_round_trip(tmp_path):
    layer = keras.layers.Dense(3, dtype="bfloat16", name="dense")
    model = keras.Sequential([keras.Input((2,)), layer], name="model")
    state = model_state(model)
    write_checkpoint(tmp_path / "a.npz", state, {})
    layer.set_weights([np.zeros((2, 3)), np.ones(3)])
    restore_model_state(model, read_checkpoint(tmp_path / "a.npz")[0])
    assert state["model/model/dense/kernel"].dtype == "bfloat16"
    assert_same_arrays(model_state(model), state)


def test_state_without_a_built_optimizer():
    compiled = small_model()
    assert not any(name.startswith("optimizer/") for name in model_state(compiled))
    uncompiled = keras.Sequential(compiled.layers, name="model")
    assert all(name.startswith("model/") for name in model_state(uncompiled))


class Counting(keras.layers.Layer):
    """Has a metric, and a seed generator whose path is not below the layer's."""

    def __init__(self, name, seed_generator):
        super().__init__(name=name)
        self.count = keras.metrics.Mean(name=f"{name}_count")
        self.seed_generator = seed_generator

    def call(self, inputs):
        return inputs


def counting_model(first_generator, second_generator):
    layers = [Counting("a", first_generator), Counting("b", second_generator)]
    return keras.Sequential([keras.Input((2,)), *layers])


def generator(name):
    return keras.random.SeedGenerator(1, name=name)


def test_metrics_of_layers_are_stored_once():
    assert sorted(model_state(counting_model(generator("a"), generator("b")))) == [
        *(f"metrics/{name}_count/{i}" for name in "ab" for i in (0, 1)),
        *(f"model/{name}/seed_generator_state" for name in "ab"),
    ]


def test_different_variables_of_one_name_are_rejected():
    with pytest.raises(ValueError, match="model/same/seed_generator_state"):
        model_state(counting_model(generator("same"), generator("same")))
    shared = generator("same")
    assert "model/same/seed_generator_state" in model_state(counting_model(shared, shared))


def test_restored_model_trains_on_bit_identically(tmp_path):
    model = train(small_model(seed=0), 0, 3)
    path = CheckpointFolder(tmp_path).save(3, model_state(model), {})
    arrays = read_checkpoint(path)[0]
    other = train(small_model(seed=5), 4, 6)  # far from it, and with all metrics
    restore_model_state(other, arrays)
    assert_same_arrays(model_state(other), model_state(model))
    assert_same_arrays(model_state(train(other, 3, 6)), model_state(train(model, 3, 6)))


@pytest.mark.long
@pytest.mark.tensorflow_only
def test_replicas_resume_bit_identically_also_with_the_state_of_one_device():
    from tests.replicas import mirrored

    with mirrored().scope():
        model, trained, fresh = (small_model(seed, run_eagerly=False) for seed in (0, 5, 6))
    one, state = train(small_model(7), 4, 6), model_state(train(model, 0, 3))
    for source, target in [(model, one), (one, train(trained, 4, 6))]:
        restore_model_state(target, model_state(source))
        assert_same_arrays(model_state(target), state)
    restore_model_state(fresh, state, parts=("model", "optimizer"))
    end = model_state(train(model, 3, 6))
    for restored in (trained, fresh):
        for variable in [*restored.variables, *restored.optimizer.variables]:
            first, second = variable.value.values
            np.testing.assert_array_equal(first.numpy(), second.numpy())
        assert_same_arrays(model_state(train(restored, 3, 6)), end)


def test_parts_are_restored_alone():
    state = model_state(train(small_model(), 0, 3))
    model = small_model(seed=5)
    restore_model_state(model, state | {"data/position": np.array(3)}, parts=("model",))
    assert not model.optimizer.built
    restored = model_state(model)
    for name, array in state.items():
        if name.startswith("model/"):
            np.testing.assert_array_equal(restored[name], array)
    with pytest.raises(ValueError, match="parts='model'"):
        restore_model_state(model, state, parts="model")


def without(state, name):
    return {other: array for other, array in state.items() if other != name}


LAST = "model/model/second/bias"


def test_state_that_does_not_match_changes_nothing():
    model = train(small_model(), 0, 1)
    before = model_state(model)
    other = {name: array + 1 for name, array in before.items()}
    for wrong, error in (
        (without(other, LAST), f"{LAST} is missing"),
        (other | {"model/new": np.zeros(1)}, "model/new is not in the model"),
        (other | {LAST: np.zeros(3)}, rf"{LAST} has shape \(3,\), in the .*\(2,\)"),
        (other | {LAST: np.zeros((1, 2))}, r"shape \(1, 2\)"),
        (without(other, "optimizer/adam/iteration"), "adam/iteration is missing"),
        (without(other, "metrics/loss/0"), "metrics/loss/0 is missing"),
        ({}, "is missing;.* and 14 more. Build and compile"),
    ):
        with pytest.raises(ValueError, match=error):
            restore_model_state(model, wrong)
        assert_same_arrays(model_state(model), before)


def test_metrics_that_a_model_has_not_built_are_named():
    state = model_state(train(small_model(), 0, 1))
    with pytest.raises(ValueError, match="compile_metrics/0 is not in the model.*first batch"):
        restore_model_state(small_model(), state)
