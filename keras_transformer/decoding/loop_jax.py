"""The search on JAX: each program is compiled for the shapes of its inputs."""

import weakref
from typing import Any

import jax
import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.loop_eager import run_growing as run_growing
from keras_transformer.decoding.programs import ProgramKey, find_or_compile
from keras_transformer.present_weights import fetch_weights, present_weights


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Compiles and runs `function(model, *static, *inputs)`, or only runs it for "eager"."""
    if kind == "eager":
        fetch_weights(model)
        return function(model, *static, *map(ops.convert_to_tensor, inputs))
    weights = present_weights(model)
    shapes = tuple(array.shape for array in inputs)
    key = ProgramKey(function, static, shapes, tuple(map(id, weights)))
    program = find_or_compile(model, key, lambda: _compile(function, model, static))
    return program([weight.value for weight in weights], *inputs)


def _compile(function, model, static):
    reference = weakref.ref(model)

    # The weights are inputs, so that the program follows the training.
    def compute(weights, *inputs):
        with keras.StatelessScope(list(zip(reference().weights, weights, strict=True))):
            return function(reference(), *static, *inputs)

    return jax.jit(compute)
