"""The trackers of a recipe, with stand-ins for the modules of W&B and MLflow."""

import contextlib
import sys
import types

import keras
import numpy as np
import pytest

from keras_transformer.runs.trackers import tracker_callbacks
from keras_transformer.runs.trainer import Trainer
from tests.runs import tiny_run


@pytest.fixture
def calls(monkeypatch):
    """Calls of the stand-ins, in order: they have the names that the package uses, and no more."""
    calls = []

    @contextlib.contextmanager
    def opened(service, **arguments):
        calls.append((service, arguments))
        try:
            yield
        finally:
            calls.append((service, sys.exc_info()[0] or "closed"))

    class Recorder(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(("logs", epoch, sorted(logs)))

    modules = {
        "wandb": {"run": None, "init": lambda **arguments: opened("wandb", **arguments)},
        "wandb.integration.keras": {"WandbMetricsLogger": Recorder},
        "mlflow": {
            "active_run": lambda: "open",
            "start_run": lambda **arguments: opened("mlflow", **arguments),
            "log_params": lambda params: calls.append(("params", params)),
        },
        "mlflow.keras": {"MlflowCallback": Recorder},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def fit(recipe):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with tracker_callbacks(recipe, "mine") as callbacks:
        model.fit(np.zeros((2, 1)), np.zeros((2, 1)), verbose=0, callbacks=callbacks)


def test_a_run_is_opened_with_the_recipe_gets_the_logs_and_is_closed(calls, monkeypatch):
    recipe = tiny_run.recipe(trackers=["wandb"])
    fit(recipe)
    assert calls == [
        ("wandb", {"name": "mine", "config": recipe.to_dict()}),
        ("logs", 0, ["loss"]),
        ("wandb", "closed"),
    ]
    calls.clear()
    monkeypatch.setattr(sys.modules["mlflow"], "active_run", lambda: None)
    with pytest.raises(KeyboardInterrupt):  # as Ctrl-C in `fit`
        with tracker_callbacks(tiny_run.recipe(trackers=["mlflow"]), "mine"):
            raise KeyboardInterrupt
    start, (_, params), end = calls
    assert (start, end) == (("mlflow", {"run_name": "mine"}), ("mlflow", KeyboardInterrupt))
    assert params["training.batch_tokens"] == 1024 and params["model.hidden_dim"] == 32


def test_an_open_run_is_used_and_stays_open(calls):
    fit(tiny_run.recipe(trackers=["mlflow"]))
    assert calls == [("logs", 0, ["loss"])]


def test_a_missing_package_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    recipe = tiny_run.recipe(trackers=["wandb", "mlflow"])
    with pytest.raises(ImportError, match="pip install wandb mlflow"):
        Trainer(recipe, ".", tmp_path / "run")
    assert not (tmp_path / "run").exists()
