"""`TrainingStep`: the mixin that trains a model exactly on the current backend."""

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING or keras.config.backend() == "tensorflow":
    from keras_transformer.training.exact_step import ExactTraining as TrainingStep
elif keras.config.backend() == "jax":
    from keras_transformer.training.jax_step import ExactTraining as TrainingStep
else:
    from keras_transformer.training.torch_step import ExactTraining as TrainingStep

__all__ = ["TrainingStep"]
