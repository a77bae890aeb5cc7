"""Reads a model's weights during `fit`, when JAX keeps them outside the model's variables."""

from typing import Any

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope


def fetch_weights(model: Any) -> None:
    """On JAX within `fit`, copies the state of the running update to the model's variables."""
    if keras.config.backend() != "jax" or not isinstance(model, keras.Model):
        return
    # In a stateless scope, reading a variable already gives the weight of the update or search.
    if not in_stateless_scope():
        model.jax_state_sync()


def present_weights(model: Any) -> list[Any]:
    """Returns the present weights of a model; an empty list if it has no attribute `weights`."""
    fetch_weights(model)
    return getattr(model, "weights", [])
