"""The exact step on JAX and PyTorch: however a batch is split, the update of Keras's own step.

The reference is `keras.Model` on one device without micro-batches, with the same weights.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
from keras.metrics import SparseCategoricalCrossentropy
from keras.optimizers import SGD, Adam, AdamW, Lion, Muon

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, layers
from keras_transformer.training import TrainingStep
from tests.builders import padded_ids, to_numpy

BACKEND = keras.backend.backend()
# On TensorFlow, `test_token_loss.py` and `test_exactness.py` prove the same.
pytestmark = [pytest.mark.skipif(BACKEND == "tensorflow", reason="not on TensorFlow")]
jax_only = pytest.mark.skipif(BACKEND != "jax", reason="only JAX has several devices")

V = 11
LENGTHS = [4, 3, 6, 2, 5, 1, 6, 3]
TOKENS, LABELS = padded_ids(LENGTHS, V), padded_ids(LENGTHS, V, seed=1)
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2, LABELS.shape).astype("float32")


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


# (devices, micro-batches, rows): 5 rows are divisible neither by the devices nor by 3.
CUTS = [(1, 3, 8), long((1, 3, 5))]
if BACKEND == "jax":
    CUTS += [long((2, 1, 8)), long((2, 3, 8)), (4, 1, 8), (4, 2, 5)]


class Tagger(TrainingStep, keras.Model):
    """Token ids `(B, T)` -> logits `(B, T, V)`, with the step under test."""


class AddsLoss(keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def network(kind, dropout=0.0):
    """The same small network with the same weights; the embedding is frozen."""
    tokens = keras.Input((None,), dtype="int32")
    x = AddsLoss()(keras.layers.Embedding(V, 6, trainable=False)(tokens))
    x = layers.Dropout(dropout, seed=1)(x)
    regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}
    model = kind(tokens, keras.layers.Dense(V, name="logits", **regularizers)(x))
    rng = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(rng.normal(size=variable.shape))
    return model


def on_devices(number):
    if number == 1:
        return contextlib.nullcontext()
    devices = keras.distribution.list_devices()[:number]
    return keras.distribution.DataParallel(devices=devices).scope()


def dataset_of(rows):
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((TOKENS[:rows], LABELS[:rows], WEIGHTS[:rows]))


def trained(kind, cut, dropout=0.0, optimizer=AdamW, with_metrics=False, **compiled):
    """Returns what `fit` and `evaluate` report for three updates, and the weights after them."""
    devices, accumulation_steps, rows = cut
    with on_devices(devices):
        model = network(kind, dropout)
        if with_metrics:
            compiled["metrics"] = [SparseCategoricalCrossentropy(from_logits=True, name="plain")]
            compiled["weighted_metrics"] = [TokenAccuracy(ignore_class=0)]
        model.compile(optimizer(0.1), **{"loss": SmoothedCrossEntropy(ignore_class=0), **compiled})
        if kind is Tagger:
            model.accumulation_steps = accumulation_steps
        history = model.fit(dataset_of(rows), epochs=3, verbose=0, shuffle=False).history
        tested = model.evaluate(dataset_of(rows), verbose=0, return_dict=True)
        return {**history, "tested": tested}, [to_numpy(v) for v in model.weights]


def assert_same_as_keras(cut, **arguments):
    expected, weights = trained(keras.Model, (1, 1, cut[-1]), **arguments)
    found, found_weights = trained(Tagger, cut, **arguments)
    assert len(found.pop("gradient_norm")) == 3
    for value, other in zip(found_weights, weights, strict=True):
        np.testing.assert_allclose(value, other, atol=1e-5)
    tested = expected.pop("tested")
    assert found.pop("tested") == pytest.approx(tested, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_update_is_that_of_keras_however_the_batch_is_split(cut):
    """With regularizers, `add_loss`, a frozen embedding, sample weights and all kinds of metrics.

    Also an unweighted metric, which counts every row of the data.
    """
    assert_same_as_keras(cut, with_metrics=True)


@jax_only
def test_devices_share_the_dropout_masks_of_one_device():
    assert_same_as_keras((4, 1, 8), dropout=0.5)


@pytest.mark.parametrize("reduction", ["sum", long("sum_over_batch_size")])
def test_reduction_of_the_loss_is_used(reduction):
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=0, reduction=reduction)
    assert_same_as_keras((1, 3, 8), loss=loss, loss_weights=[0.25])


@pytest.mark.long
@pytest.mark.parametrize("cut", [(1, 3, 8), (4, 2, 8)][: 2 if BACKEND == "jax" else 1])
@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(SGD, clipnorm=0.5),
        functools.partial(Adam, global_clipnorm=0.5, use_ema=True),
        Lion,
        Muon,
    ],
)
def test_every_optimizer_gets_the_gradient_of_the_batch(optimizer, cut):
    assert_same_as_keras(cut, optimizer=optimizer)


def test_gradient_norm_is_that_of_the_whole_batch():
    before = [to_numpy(v) for v in network(Tagger).trainable_variables]
    model = network(Tagger)
    model.compile(SGD(1.0, global_clipnorm=1e9), SmoothedCrossEntropy(ignore_class=0))
    model.accumulation_steps = 3
    logs = model.fit(dataset_of(8), verbose=0, shuffle=False).history
    gradients = [b - to_numpy(v) for b, v in zip(before, model.trainable_variables, strict=True)]
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
    assert logs["gradient_norm"][0] == pytest.approx(norm, rel=1e-5)


def test_micro_batches_draw_masks_of_their_own():
    model = network(Tagger, dropout=0.5)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    model.accumulation_steps = 3
    state = model.layers[3].seed_generator.state
    before = to_numpy(state)
    model.fit(dataset_of(8), verbose=0, shuffle=False)
    assert to_numpy(state)[1] == before[1] + 3


@jax_only
def test_arrays_that_devices_cannot_share_are_refused():
    with on_devices(4):
        model = network(Tagger)
        model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
        for method in (model.fit, model.train_on_batch):
            with pytest.raises(ValueError, match="divisible by the number of devices, 4"):
                method(TOKENS[:5], LABELS[:5])


def test_step_on_one_batch_returns_what_keras_returns():
    model = network(Tagger)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    tested = model.test_on_batch(TOKENS, LABELS)
    assert model.train_on_batch(TOKENS, LABELS) == pytest.approx(tested, rel=1e-6)
    assert model.train_on_batch(TOKENS, LABELS, return_dict=True).keys() == {
        "loss",
        "gradient_norm",
    }


def test_label_outside_the_vocabulary_makes_the_loss_nan():
    labels = LABELS.copy()
    labels[2, 1] = V
    model = network(Tagger)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isnan(model.test_on_batch(TOKENS, labels))
    weights = np.ones(labels.shape)
    weights[2, 1] = 0
    assert np.isfinite(model.test_on_batch(TOKENS, labels, weights))


class OwnLoss(Tagger):
    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        return 3 * super().compute_loss(x, y, y_pred, sample_weight, training)


def test_what_cannot_be_split_is_refused():
    model = network(OwnLoss)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    tripled = model.test_on_batch(TOKENS, LABELS)
    plain = network(Tagger)
    plain.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    assert tripled == pytest.approx(3 * plain.test_on_batch(TOKENS, LABELS), rel=1e-6)
    model.accumulation_steps = 2
    plain.compile(SGD(gradient_accumulation_steps=2), SmoothedCrossEntropy(ignore_class=0))
    other = network(Tagger)
    other.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    for each, labels, message in [
        (model, LABELS, "OwnLoss.compute_loss"),
        (plain, LABELS, "`accumulation_steps`"),
        (other, LABELS[..., None], "`y` must be one tensor"),
        (other, None, "`y` must be one tensor"),
    ]:
        for method in (each.fit, each.train_on_batch):
            with pytest.raises(ValueError, match=message):
                method(TOKENS, labels)
