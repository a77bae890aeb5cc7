"""The state of a compiled model as arrays, and back."""

import contextlib
import functools
import re

import numpy as np
from keras import ops

PARTS = ("model", "optimizer", "metrics")


def model_state(model):
    """Returns all that training changes in a model.

    Args:
        model: `keras.Model`.

    Returns:
        dict of name to NumPy array: `model/<path>` for weights and the states of random numbers
        (which Keras saves nowhere), `optimizer/<path>` if the optimizer is built (`adam`, also
        where Keras calls it `adam_1`), and `metrics/<name>/<index>`.

    Raises:
        ValueError: two variables have the same name.
    """
    return {
        # `copy` makes a tensor of the variable: convert_to_numpy(variable) warns under NumPy 2.
        name: ops.convert_to_numpy(ops.copy(variable))
        for name, variable in _state_variables(model, PARTS).items()
    }


def check_model_state(model, shapes, parts=PARTS):
    """Checks, before any array is read, that a state can be put into a model.

    Args:
        model: `keras.Model`. An optimizer that is not built is built.
        shapes: dict of name to shape, as of `read_shapes`.
        parts: which of `"model"`, `"optimizer"` and `"metrics"`; all else is ignored. Defaults to
            all.

    Raises:
        ValueError: missing or additional names, or other shapes.
    """
    optimizer = getattr(model, "optimizer", None)
    if "optimizer" in parts and optimizer is not None and not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's models have one
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
    variables = _state_variables(model, parts)
    shapes = {name: shape for name, shape in shapes.items() if name.split("/")[0] in parts}
    problems = [f"{name} is missing" for name in variables if name not in shapes]
    problems += [f"{name} is not in the model" for name in shapes if name not in variables]
    for name, shape in shapes.items():
        expected = tuple(variables[name].shape) if name in variables else shape
        if shape != expected:
            problems.append(f"{name} has shape {shape}, in the model {expected}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"`arrays` must be the state of such a model. Received: {'; '.join(problems[:5])}"
            f"{more}. Make and compile the model as the one that was saved; metrics are built with "
            "the first batch; `parts=('model',)` restores the model alone."
        )


def restore_model_state(model, arrays, parts=PARTS):
    """Puts back what `model_state` returned. All of it, or, on an error, nothing.

    An optimizer that is not built is built. Keras builds the metrics given to `compile` with the
    first batch: in `fit`, before `on_train_begin`.

    Args:
        model: `keras.Model` made and compiled as the one that was saved.
        arrays: dict of name to array. What belongs to none of `parts` is ignored.
        parts: which of `"model"`, `"optimizer"` and `"metrics"`. Defaults to all.

    Raises:
        ValueError: missing or additional names, or other shapes.
    """
    check_model_state(model, {name: np.shape(array) for name, array in arrays.items()}, parts)
    for name, variable in _state_variables(model, parts).items():
        variable.assign(arrays[name])


def _state_variables(model, parts):
    """{name in a checkpoint: variable} of the given parts of a model's state."""
    if not set(parts) <= set(PARTS):
        raise ValueError(f"`parts` must be some of {PARTS}. Received: parts={parts!r}")
    of_metrics = {id(v) for v in model.metrics_variables}
    optimizer = getattr(model, "optimizer", None)
    built = optimizer is not None and optimizer.built
    # Keras numbers optimizers by how many were made before in the process: adam, adam_1.
    unnumbered = functools.partial(re.sub, r"^([^/]*?)(_\d+)?/", r"\1/")
    named = {
        "model": [(v.path, v) for v in model.variables if id(v) not in of_metrics],
        "optimizer": [(unnumbered(v.path), v) for v in optimizer.variables] if built else [],
        "metrics": [(f"{m.name}/{i}", v) for m in model.metrics for i, v in enumerate(m.variables)],
    }
    variables = {}
    for name, variable in ((f"{part}/{name}", v) for part in parts for name, v in named[part]):
        if variables.setdefault(name, variable) is not variable:
            raise ValueError(
                "Variables must have names of their own to be saved. Received: two that are "
                f"named {name}. Give their layers, seed generators or metrics a `name`."
            )
    return variables
