"""`TrainingStep`: the mixin that trains a model on the current backend."""

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING or keras.config.backend() == "tensorflow":
    from keras_transformer.training.exact_step import ExactTraining as TrainingStep
else:
    from keras_transformer.training.standard_step import StandardTraining as TrainingStep

__all__ = ["TrainingStep"]
