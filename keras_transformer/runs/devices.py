"""The devices that a run trains on: a strategy on TensorFlow, `LocalDevices` on JAX and PyTorch."""

import keras

from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.training.workers import LocalDevices, Strategy


def run_devices(training: TrainingSettings) -> Strategy:
    """Returns the devices of a recipe on the current backend.

    Raises:
        ValueError: if the backend does not support a setting.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        from keras_transformer.training.distribution import get_strategy

        return get_strategy(training.distribution, training.devices)
    if training.distribution not in ("auto", "single") or training.devices is not None:
        raise ValueError(
            f"On the {backend} backend, `distribution` must be auto or single, and `devices` null: "
            "hide devices from the process, or train with KERAS_BACKEND=tensorflow. Received: "
            f"distribution={training.distribution!r}, devices={training.devices}"
        )
    is_divided = backend == "jax" and training.distribution == "auto"
    return LocalDevices(len(keras.distribution.list_devices()) if is_divided else 1)
