"""The weights of a model in the middle of an epoch: there, JAX keeps them in the running update."""

from typing import Any

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope


def fetch_weights(model: Any) -> None:
    """On JAX within `fit`, copies the state of the running update to the model's variables."""
    # In a scope, the weights are those of the update or of the search that is computed.
    is_trained = keras.config.backend() == "jax" and isinstance(model, keras.Model)
    if is_trained and not in_stateless_scope():
        model.jax_state_sync()


def present_weights(model: Any) -> list[Any]:
    """Returns the weights of a model, fetched; none if it has no attribute `weights`."""
    fetch_weights(model)
    return getattr(model, "weights", [])
