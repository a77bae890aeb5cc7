"""The loss against its definition, computed in float64 by NumPy."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy
from tests.builders import to_numpy

B, T, V = 3, 5, 11


def random_batch(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, V, (B, T)).astype("int32")
    labels[0, 3:] = 0
    return labels, rng.normal(scale=3, size=(B, T, V)).astype("float32")


def smoothed_cross_entropy(labels, logits, smoothing):
    """-sum over classes of the smoothed target times the log-softmax."""
    log_probs = log_softmax(logits.astype("float64"), axis=-1)
    target = np.eye(V)[labels] * (1 - smoothing) + smoothing / V
    return -(target * log_probs).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_per_token_is_the_cross_entropy_with_the_smoothed_label(smoothing):
    labels, logits = random_batch()
    losses = to_numpy(SmoothedCrossEntropy(smoothing).call(labels, logits))
    np.testing.assert_allclose(losses, smoothed_cross_entropy(labels, logits, smoothing), rtol=1e-5)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_with_sample_weight"])
def test_loss_without_smoothing_is_that_of_keras_for_every_reduction(reduction, is_masked):
    labels, logits = random_batch()
    if is_masked:  # the mask hides labels that are ignored and others
        logits[:2, 2:] = 0
        logits = keras.layers.Masking()(logits)
    options = {"ignore_class": 0, "reduction": reduction}
    ours = SmoothedCrossEntropy(0.0, **options)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
    for weights in (None, np.random.default_rng(1).uniform(size=(B, T))):
        expected = to_numpy(theirs(labels, logits, weights))
        np.testing.assert_allclose(to_numpy(ours(labels, logits, weights)), expected, rtol=1e-5)


@pytest.mark.parametrize("weights", ["none", "tokens", "sentences"])
def test_loss_is_the_weighted_mean_over_tokens_that_are_not_padding(weights):
    labels, logits = random_batch()
    rng = np.random.default_rng(1)
    shapes = {"none": None, "tokens": (B, T), "sentences": (B,)}
    sample_weight = None if weights == "none" else rng.uniform(size=shapes[weights])
    full = 1.0 if sample_weight is None else sample_weight.reshape(B, -1)
    token_weights = (labels != 0) * full
    losses = smoothed_cross_entropy(labels, logits, 0.1)
    expected = (losses * token_weights).sum() / token_weights.sum()
    loss = SmoothedCrossEntropy(ignore_class=0)(labels, logits, sample_weight=sample_weight)
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-5)


def test_loss_ignores_content_and_amount_of_padding():
    labels, logits = random_batch()
    padded_labels = np.pad(labels, ((0, 0), (0, 4)))
    padded_logits = np.pad(logits, ((0, 0), (0, 4), (0, 0)), constant_values=7.0)
    loss = SmoothedCrossEntropy(ignore_class=0)
    np.testing.assert_allclose(
        to_numpy(loss(padded_labels, padded_logits)), to_numpy(loss(labels, logits)), rtol=1e-6
    )


def test_loss_of_padding_alone_is_zero_and_that_of_extreme_logits_finite():
    _, logits = random_batch()
    assert to_numpy(SmoothedCrossEntropy(ignore_class=0)(np.zeros((B, T), "int32"), logits)) == 0
    extreme = np.array([[[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]]], "float32")
    assert np.isfinite(to_numpy(SmoothedCrossEntropy()(np.array([[1, 2]]), extreme)))


def test_loss_is_restored_from_its_config():
    loss = SmoothedCrossEntropy(0.3, ignore_class=7, reduction="sum", name="mine")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, SmoothedCrossEntropy)
    assert again.get_config() == loss.get_config()
    labels, logits = random_batch()
    np.testing.assert_array_equal(to_numpy(again(labels, logits)), to_numpy(loss(labels, logits)))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_outside_its_range_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing.*{smoothing}"):
        SmoothedCrossEntropy(smoothing)


@pytest.mark.parametrize("label", [-1, V])
@pytest.mark.parametrize("make", [SmoothedCrossEntropy, Perplexity])
def test_label_outside_the_vocabulary_gives_nan_unless_its_weight_is_0(make, label):
    labels, logits = np.array([[1, label]]), np.zeros((1, 2, V), "float32")
    assert np.isnan(to_numpy(make()(labels, logits)))
    assert np.isfinite(to_numpy(make()(labels, logits, sample_weight=np.array([[1.0, 0.0]]))))
    assert np.isfinite(to_numpy(make(ignore_class=label)(labels, logits)))


@pytest.fixture
def floatx_of_bfloat16():
    policy = keras.config.dtype_policy()  # Keras makes it of `floatx` when it is first asked for
    keras.config.set_floatx("bfloat16")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)


def test_loss_and_metrics_are_float32_whatever_floatx_is(floatx_of_bfloat16):
    """In bfloat16, label 1001 is 1000, and 512 + 1 is 512."""
    logits = np.zeros((1, 512, 1100), "float32")
    logits[..., 1001] = 5.0
    labels = np.full((1, 512), 1001)
    expected = np.log(np.exp(5.0) + 1099) - 5.0
    loss = SmoothedCrossEntropy(0.0)(labels, logits)
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-5)
    accuracy = TokenAccuracy()
    accuracy.update_state(labels, logits)
    for _ in range(3):
        accuracy.update_state(np.array([[7]]), logits[:, :1])
    np.testing.assert_allclose(to_numpy(accuracy.result()), 512 / 515, rtol=1e-5)
