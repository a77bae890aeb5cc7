"""Saving and restoring a model: its state as arrays, or the whole model as a file."""

import collections
import contextlib
import pathlib
import re
import shutil
import zipfile
from collections.abc import Collection, Mapping

import keras
import numpy as np
from keras import ops

from keras_transformer.atomic_file import atomic_path
from keras_transformer.present_weights import fetch_weights
from keras_transformer.training.optimizers import build_optimizer, optimizer_of
from keras_transformer.types import Path

PARTS = ("model", "optimizer", "metrics")
TRAINED = "trained"  # in place of "model", to leave out frozen weights


def model_state(model: keras.Model, parts: Collection[str] = PARTS) -> dict[str, np.ndarray]:
    """Returns everything that training changes in a model.

    Args:
        model: built.
        parts: which of `"model"`, `"optimizer"` and `"metrics"` to return, or `"trained"` in place
            of `"model"`. Defaults to the first three.

    Returns:
        arrays by name:

        - `model/<path>`: weights, and the states of random number generators, which Keras does not
          save;
        - `trained/<path>`: the same, without weights that are frozen;
        - `optimizer/<path>`: only if the optimizer is built. The path begins with `adam` also for
          an optimizer that Keras has numbered, such as `adam_1`;
        - `metrics/<name>/<index>`.

    Raises:
        ValueError: if two variables have the same name.
    """
    fetch_weights(model)
    return {
        # `copy` makes a tensor of the variable: convert_to_numpy(variable) warns under NumPy 2.
        name: ops.convert_to_numpy(ops.copy(variable))
        for name, variable in _state_variables(model, parts).items()
    }


def check_model_state(
    model: keras.Model, shapes: Mapping[str, tuple[int, ...]], parts: Collection[str] = PARTS
) -> None:
    """Checks that saved shapes match a model, before the arrays are read.

    Keras numbers unnamed layers and random number generators in a process, such as `dense_1`. If
    only such numbers differ, variables are matched by their order.

    Args:
        model: the model to restore. Its optimizer is built if it has not been built yet.
        shapes: shapes by name.
        parts: which of `"model"`, `"optimizer"` and `"metrics"` to check. Other names are ignored.
            Defaults to all.

    Raises:
        ValueError: if names are missing or unknown, or shapes differ.
    """
    if "optimizer" in parts:
        build_optimizer(model)
    variables = _state_variables(model, parts)
    shapes = _renamed(shapes, variables, parts)
    problems = [f"{name} is missing" for name in variables if name not in shapes]
    problems += [f"{name} is not in the model" for name in shapes if name not in variables]
    for name, shape in shapes.items():
        if name in variables and shape != tuple(variables[name].shape):
            expected = tuple(variables[name].shape)
            problems.append(f"{name} has shape {shape}, in the model {expected}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"`arrays` must match the variables of the model. Received: {'; '.join(problems[:5])}"
            f"{more}. Build and compile the model as before saving; metrics are built with the "
            "first batch. `parts=('model',)` restores only the weights."
        )


def restore_model_state(
    model: keras.Model, arrays: Mapping[str, np.ndarray], parts: Collection[str] = PARTS
) -> None:
    """Restores what `model_state` returned. On an error, nothing is changed.

    The optimizer is built if it has not been built yet. Restore `"metrics"` only after Keras has
    built the compiled metrics: with the first batch, in `fit` before `on_train_begin`.

    Args:
        model: a model built and compiled as the saved one.
        arrays: arrays by name.
        parts: which of `"model"`, `"optimizer"` and `"metrics"` to restore. Other names are
            ignored. Defaults to all.

    Raises:
        ValueError: if names are missing or unknown, or shapes differ.
    """
    check_model_state(model, {name: np.shape(array) for name, array in arrays.items()}, parts)
    variables = _state_variables(model, parts)
    arrays = _renamed(arrays, variables, parts)
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _renamed(saved, variables, parts):
    """Returns the saved values of some parts, renamed as in the model if only numbers differ."""
    saved = {name: value for name, value in saved.items() if name.split("/")[0] in parts}
    if saved.keys() == variables.keys():
        return saved
    if [unnumbered(name) for name in saved] == [unnumbered(name) for name in variables]:
        return dict(zip(variables, saved.values(), strict=True))
    return saved


def unnumbered(name: str) -> str:
    """Returns a name without numbers of Keras or `parts_of`: `dense`, not `dense_1`, `dense#2`."""
    return re.sub(r"[_#]\d+(?=[/_]|$)", "", name)


def _state_variables(model, parts):
    """Returns the variables of some parts by the names that `model_state` gives them."""
    if not set(parts) <= {*PARTS, TRAINED}:
        raise ValueError(f"`parts` must be some of {(*PARTS, TRAINED)}. Received: {parts=}")
    metric_ids = {id(v) for v in model.metrics_variables}
    frozen_ids = {id(v) for v in model.weights if not v.trainable}
    model_variables = [v for v in model.variables if id(v) not in metric_ids]
    optimizer = optimizer_of(model)
    states = optimizer.variables if optimizer is not None and optimizer.built else []
    named = {
        "model": [(v.path, v) for v in model_variables],
        TRAINED: [(v.path, v) for v in model_variables if id(v) not in frozen_ids],
        "optimizer": _named_states(states),
        "metrics": [(f"{m.name}/{i}", v) for m in model.metrics for i, v in enumerate(m.variables)],
    }
    variables = {}
    for part in parts:
        for path, variable in named[part]:
            name = f"{part}/{path}"
            if variables.setdefault(name, variable) is not variable:
                raise ValueError(
                    f"Variables must have unique names to be saved. Received twice: {name}. Give "
                    "their layers, seed generators or metrics a `name`."
                )
    return variables


def _named_states(variables):
    """Returns pairs of name and variable for the variables of an optimizer.

    Keras numbers the optimizers of a process, `adam`, `adam_1`; the names leave this number out.
    Keras's Adafactor gives the states of equally named weights the same path, so repeated names get
    a number.
    """
    counts: collections.Counter[str] = collections.Counter()
    named = []
    for variable in variables:
        name = re.sub(r"^([^/]*?)(_\d+)?/", r"\1/", variable.path)
        counts[name] += 1
        named.append((f"{name}:{counts[name]}" if counts[name] > 1 else name, variable))
    return named


def save_model(model: keras.Model, path: Path) -> None:
    """Writes a model to a `.keras` file atomically, without a second copy of its weights."""
    with atomic_path(path) as partial, _emptied(partial.with_suffix(".unzipped")) as folder:
        # With `zipped=True`, Keras would make the file of the weights in memory first.
        model.save(folder, zipped=False)
        with zipfile.ZipFile(partial, "w") as archive:
            for file in filter(pathlib.Path.is_file, sorted(folder.rglob("*"))):
                archive.write(file, file.relative_to(folder))


@contextlib.contextmanager
def _emptied(folder):
    """Yields a new, empty folder, and deletes it at the end."""
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left it
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
