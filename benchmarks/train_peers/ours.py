"""Our model with the exact step, which is the default, and with the train step of Keras."""

import keras

import keras_transformer as kt
from train_peers import LABEL_SMOOTHING
from train_peers.keras_engine import KerasEngine, optimizer_of


class KerasStepTransformer(kt.Transformer):
    """The same model with Keras's own steps."""

    train_step = keras.Model.train_step
    test_step = keras.Model.test_step


class Ours(KerasEngine):
    model_class = kt.Transformer

    def make_model(self, config, policy):
        return compiled(self.model_class(config, dtype=policy))


class KerasStep(Ours):
    model_class = KerasStepTransformer


def compiled(model, **options):
    """Compiles our model as the README does; `options` are further arguments of `compile`."""
    loss = kt.SmoothedCrossEntropy(label_smoothing=LABEL_SMOOTHING)
    model.compile(optimizer_of(model.config), loss=loss, **options)
    return model
