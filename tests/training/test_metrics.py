"""Metrics against sums and counts over all tokens of all batches, by NumPy."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import Perplexity, TokenAccuracy
from tests.builders import to_numpy

V = 8


def batches():
    """Batches of different size and padding, so that a mean of batch means is wrong."""
    rng = np.random.default_rng(0)
    for rows, length, padding in ((4, 6, 1), (1, 2, 0), (2, 9, 7)):
        labels = rng.integers(1, V - 1, (rows, length))
        labels[:, length - padding :] = 0
        logits = rng.normal(scale=2, size=(rows, length, V)).astype("float32")
        logits[:, :, -1] = -np.inf  # a class that is ruled out
        weights = rng.uniform(size=(rows, length)).astype("float32")
        yield labels.astype("int32"), logits, weights


def is_correct(labels, logits):
    return (logits.argmax(-1) == labels).astype("float64")


def negative_log_likelihood(labels, logits):
    log_probs = log_softmax(logits.astype("float64"), axis=-1)
    return -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("metric", "value", "result"),
    [(TokenAccuracy, is_correct, float), (Perplexity, negative_log_likelihood, np.exp)],
)
def test_metric_is_the_mean_over_all_tokens_of_all_batches(metric, value, result, weighted):
    metric = metric(ignore_class=0)
    total = count = 0.0
    for labels, logits, weights in batches():
        metric.update_state(labels, logits, sample_weight=weights if weighted else None)
        token_weights = (labels != 0) * (weights if weighted else 1.0)
        total += (value(labels, logits) * token_weights).sum()
        count += token_weights.sum()
    np.testing.assert_allclose(to_numpy(metric.result()), result(total / count), rtol=1e-5)


@pytest.mark.parametrize("metric", [TokenAccuracy, Perplexity])
def test_metric_is_reset_and_restored_from_its_config(metric):
    first = metric(ignore_class=None, name="mine")
    again = keras.metrics.deserialize(keras.metrics.serialize(first))
    assert again.get_config() == first.get_config()
    all_batches = list(batches())
    for labels, logits, _ in all_batches:
        first.update_state(labels, logits)
    first.reset_state()
    for one in (first, again):
        one.update_state(*all_batches[0][:2])
    np.testing.assert_allclose(to_numpy(first.result()), to_numpy(again.result()), rtol=1e-6)


@pytest.mark.parametrize("metric, worse, better", [(TokenAccuracy, 0.5, 0.6), (Perplexity, 6, 5)])
def test_callbacks_in_mode_auto_know_which_values_are_better(metric, worse, better):
    labels, logits, _ = next(batches())
    model = keras.Sequential([keras.layers.Dense(V)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[metric()], run_eagerly=True)
    model.test_on_batch(logits, labels)  # builds the metrics, as `fit` does
    callback = keras.callbacks.EarlyStopping(f"val_{metric.default_name}")
    callback.set_model(model)
    callback.on_train_begin()
    stops = []
    for epoch, value in enumerate([worse, better, worse]):
        callback.on_epoch_end(epoch, {callback.monitor: value})
        stops.append(model.stop_training)
    assert stops == [False, False, True]
