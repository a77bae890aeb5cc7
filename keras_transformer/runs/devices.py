"""The devices that a run trains on: a strategy of TensorFlow, or those of JAX or PyTorch."""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.training.distribution import get_strategy


class LocalDevices:
    """Devices of this process on JAX or PyTorch, as a run uses a strategy.

    Args:
        uses_all: whether the rows of a batch are divided over all JAX devices.

    Attributes:
        num_replicas_in_sync: number of devices that the rows of a batch are divided over.
    """

    def __init__(self, uses_all: bool) -> None:
        if tf.config.list_physical_devices("GPU"):
            # TensorFlow only prepares the batches, and would take the memory of all GPUs.
            tf.config.set_visible_devices([], "GPU")
        is_divided = uses_all and keras.backend.backend() == "jax"
        self.num_replicas_in_sync = len(keras.distribution.list_devices()) if is_divided else 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope to build and train the model in."""
        if self.num_replicas_in_sync == 1:
            return contextlib.nullcontext()
        return keras.distribution.DataParallel().scope()


def run_devices(training: TrainingSettings) -> tf.distribute.Strategy | LocalDevices:
    """Returns the devices of a recipe on the current backend.

    Raises:
        ValueError: if the backend does not support a setting.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return get_strategy(training.distribution, training.devices)
    problem = None
    if training.distribution not in ("auto", "single"):
        problem = (
            f"`distribution` must be auto (all devices) or single, not {training.distribution}"
        )
    elif training.devices is not None:
        problem = f"`devices` must be null, not {training.devices}: hide others from the process"
    elif training.translation_sample is not None:
        problem = f"`translation_sample` must be null, not {training.translation_sample}"
    if problem:
        raise ValueError(
            f"On the {backend} backend, {problem}. Or train with KERAS_BACKEND=tensorflow."
        )
    return LocalDevices(uses_all=training.distribution == "auto")
