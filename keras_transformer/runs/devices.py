"""The devices that a run trains on: a strategy of TensorFlow, or those of JAX or PyTorch."""

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
    problem, all_of_them = None, "all devices" if backend == "jax" else "one device"
    if training.distribution not in ("auto", "single"):
        problem = f"`distribution` must be auto ({all_of_them}) or single, not "
        problem += training.distribution
    elif training.devices is not None:
        problem = f"`devices` must be null, not {training.devices}: hide others from the process"
    if problem:
        raise ValueError(
            f"On the {backend} backend, {problem}. Or train with KERAS_BACKEND=tensorflow."
        )
    is_divided = backend == "jax" and training.distribution == "auto"
    return LocalDevices(len(keras.distribution.list_devices()) if is_divided else 1)
