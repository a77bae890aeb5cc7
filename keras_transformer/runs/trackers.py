"""Weights & Biases and MLflow: opens their runs and returns their own Keras callbacks."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_transformer.runs.recipe import Recipe


def require_trackers(names: Sequence[str] | None) -> None:
    """Checks that the packages of trackers are installed, without importing them.

    Args:
        names: the recipe's `trackers`.

    Raises:
        ImportError: one is not installed; the message has the command that installs it.
    """
    missing = [name for name in names or () if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"`trackers: [{', '.join(names or ())}]` needs a package that is not installed: "
            f"pip install {' '.join(missing)}"
        )


@contextlib.contextmanager
def tracker_callbacks(recipe: Recipe, name: str) -> Iterator[list[keras.callbacks.Callback]]:
    """Opens a run of each tracker of a recipe, yields their callbacks, and closes the runs.

    If a run of the tracker is open, it is used and stays open. A run that ends by an error, or by
    Ctrl-C, is marked as failed.

    Args:
        recipe: its keys become the configuration of the tracker's run.
        name: name of the tracker's run.
    """
    with contextlib.ExitStack() as stack:
        trackers = recipe.training.trackers or ()
        yield [_OPENERS[tracker](stack, recipe.to_dict(), name) for tracker in trackers]


def _open_wandb(stack, config, name):
    wandb = importlib.import_module("wandb")
    if wandb.run is None:
        stack.enter_context(wandb.init(name=name, config=config))
    return importlib.import_module("wandb.integration.keras").WandbMetricsLogger()


def _open_mlflow(stack, config, name):
    mlflow = importlib.import_module("mlflow")
    if mlflow.active_run() is None:
        stack.enter_context(mlflow.start_run(run_name=name))
        mlflow.log_params(dict(_flat(config)))
    return importlib.import_module("mlflow.keras").MlflowCallback()


def _flat(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields `("training.epochs", 20)` for each key of each section."""
    for section, keys in config.items():
        yield from ((f"{section}.{key}", value) for key, value in keys.items())


_OPENERS = {"wandb": _open_wandb, "mlflow": _open_mlflow}
