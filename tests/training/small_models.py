"""Small models and batches for the tests of the training step, and its devices on each backend."""

import contextlib

import keras
import numpy as np

from keras_transformer import SmoothedCrossEntropy, Transformer, layers, models
from keras_transformer.training import TrainingStep
from tests.builders import padded_ids, randomize

BACKEND = keras.config.backend()
# Tracing would take most of the time.
EAGER = {"run_eagerly": True} if BACKEND == "tensorflow" else {}

V = 11
LENGTHS = [4, 3, 6, 2, 5, 1, 6, 3]
TOKENS, LABELS, SOURCE = (padded_ids(LENGTHS, V, seed=seed) for seed in range(3))
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2, LABELS.shape).astype("float32")
WEIGHTS[[1, 5]] = 0  # rows that count in unweighted metrics
WEIGHTS[2] *= -0.1


class Tagger(TrainingStep, keras.Model):
    """Token ids `(B, T)` -> logits `(B, T, V)`, with the step under test."""


class OwnLoss(Tagger):
    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        return 3 * super().compute_loss(x, y, y_pred, sample_weight, training)


class OwnStep(Tagger):
    """Overrides the steps, and unpacks batches as Keras's steps do."""

    def train_step(self, data):
        keras.utils.unpack_x_y_sample_weight(data)
        return super().train_step(data)

    def test_step(self, data):
        keras.utils.unpack_x_y_sample_weight(data)
        return super().test_step(data)


class AddsLoss(keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def tagger(kind=Tagger, dropout=0.0):
    """The same small network with the same weights. The embedding is frozen.

    (For one that is not, Keras gives optimizers one gradient per token instead of their sum.)
    """
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 6, trainable=False)(tokens)
    x = layers.Dropout(dropout, seed=1, name="dropout")(AddsLoss()(x))
    regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}
    model = kind(tokens, keras.layers.Dense(V, name="logits", **regularizers)(x))
    rng = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(rng.normal(size=variable.shape))
    return model


def compiled(kind=Tagger, optimizer="sgd", dropout=0.0, **arguments):
    model = tagger(kind, dropout)
    model.compile(optimizer, **{"loss": SmoothedCrossEntropy(ignore_class=0)} | EAGER | arguments)
    return model


@keras.saving.register_keras_serializable()
class RegularizedEncoder(models.TransformerEncoder):
    """Adds the mean square of its outputs to the loss."""

    def call(self, token_ids, padding_mask=None, return_attention_scores=False, training=None):
        outputs = super().call(token_ids, padding_mask, return_attention_scores, training)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(outputs)))
        return outputs


class RegularizedTransformer(Transformer):
    encoder_class = RegularizedEncoder


@keras.saving.register_keras_serializable()
class TwoFacedEncoder(models.TransformerEncoder):
    """Trains every second row otherwise: as dropout does, but not at random."""

    def call(self, token_ids, padding_mask=None, return_attention_scores=False, training=None):
        outputs = super().call(token_ids, padding_mask, return_attention_scores, training)
        if not training:
            return outputs
        is_second = keras.ops.arange(keras.ops.shape(outputs)[0]) % 2
        return outputs * (1.0 - 0.5 * keras.ops.cast(is_second, "float32")[:, None, None])


class TwoFacedTransformer(Transformer):
    encoder_class = TwoFacedEncoder


SIZES = {
    "vocabulary_size": V,
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
    "activation": "gelu",  # a dead unit of relu would only show rounding
}
WITHOUT_PADDING = {"output_bias": True, "predict_padding": False}


def transformer(kind=Transformer, **fields):
    """A Transformer with random weights, without dropout."""
    return randomize(kind(**SIZES | {"dropout": 0.0} | fields))


def on_devices(number):
    """The scope of a model on so many devices of TensorFlow or JAX."""
    if number == 1:
        return contextlib.nullcontext()
    if BACKEND == "tensorflow":
        from tests.replicas import mirrored

        return mirrored().scope()
    devices = keras.distribution.list_devices()[:number]
    return keras.distribution.DataParallel(devices=devices).scope()


@contextlib.contextmanager
def dtype_policy(policy):
    """The default policy of the layers that are made within."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
