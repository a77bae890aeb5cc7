"""The loss without logits equals its definition in NumPy, with its gradients."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import log_softmax

from keras_transformer.training.linear_cross_entropy import OutputHead, linear_cross_entropy
from tests.builders import assert_close, normal, to_numpy

BACKEND = keras.backend.backend()
V, D = 37, 6


def reference(hidden, kernel, labels, weights, label_smoothing, excluded=None):
    """Sum of the weighted losses, losses, nll and both gradients, in float64."""
    is_included = np.arange(V) != (V if excluded is None else excluded)
    logits = np.where(is_included, hidden.astype(float) @ kernel.T.astype(float), -1e9)
    log_probs = log_softmax(logits, axis=-1)
    target = np.eye(V)[labels] * (1 - label_smoothing)
    target += label_smoothing / is_included.sum() * is_included
    losses = -(target * log_probs).sum(-1)
    of_logits = weights[:, None] * (np.exp(log_probs) - target)
    nll = -log_probs[np.arange(len(labels)), labels]
    return (weights * losses).sum(), losses, nll, of_logits @ kernel, of_logits.T @ hidden


def computed(hidden, kernel, labels, weights, label_smoothing, excluded=None):
    labels, weights = map(ops.convert_to_tensor, (labels, weights))

    def twice(hidden, kernel):  # the gradient is scaled by what follows
        head = OutputHead(kernel, excluded_class=excluded)
        total, scores = linear_cross_entropy(hidden, head, labels, weights, label_smoothing)
        return 2 * total, scores

    (double, scores), gradients = value_and_gradients(twice, hidden, kernel)
    scores = type(scores)(*map(ops.convert_to_numpy, scores))
    return double / 2, scores, [each / 2 for each in gradients]


def value_and_gradients(function, *arrays):
    """The outputs, and the gradients of the first of them by the arrays."""
    arrays = [ops.convert_to_tensor(each) for each in arrays]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(arrays)
            value, others = tf.function(function)(*arrays)
        zero = tf.UnconnectedGradients.ZERO
        return (value, others), tape.gradient(value, arrays, unconnected_gradients=zero)
    if BACKEND == "jax":
        import jax

        function = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)
        return jax.jit(function)(*arrays)
    arrays = [each.requires_grad_() for each in arrays]
    value, others = function(*arrays)
    if value.requires_grad:
        value.backward()
    gradients = [ops.zeros_like(each) if each.grad is None else each.grad for each in arrays]
    return (value.detach(), others), gradients


def example(count, scale=1.0):
    rng = np.random.default_rng(count)
    labels = rng.integers(0, V, count).astype("int32")
    weights = rng.uniform(0, 2, count).astype("float32") * (rng.random(count) < 0.8)
    return scale * normal(count, D), normal(V, D, seed=1), labels, weights.astype("float32")


def assert_equal(found, expected, tolerance=1e-6):
    (total, scores, gradients), (expected_total, losses, nll, *expected_gradients) = found, expected
    assert_close(total, expected_total, 1e-6)
    assert_close(scores.losses, losses, 1e-6)
    assert_close(scores.nll, nll, 1e-6)
    for actual, each in zip(gradients, expected_gradients, strict=True):
        assert_close(actual, each, tolerance)


# One chunk, exactly one, several of equal size, and a last one that is not full.
@pytest.mark.parametrize(
    "count, label_smoothing",
    [pytest.param(1, 0.1, marks=pytest.mark.long), (256, 0.0), (257, 0.1)]
    + [pytest.param(700, 0.1, marks=pytest.mark.long)],
)
def test_values_and_gradients_are_those_of_the_definition(count, label_smoothing):
    arguments = (*example(count), label_smoothing)
    hidden, kernel, *_ = arguments
    found = _, scores, _ = computed(*arguments)
    assert_equal(found, reference(*arguments))
    np.testing.assert_array_equal(scores.predictions, (hidden @ kernel.T).argmax(-1))


@pytest.mark.parametrize("excluded", [0, V - 1])
def test_excluded_class_has_no_part(excluded):
    hidden, kernel, labels, weights = example(300)
    weights[labels == excluded] = 0
    arguments = hidden, kernel, labels, weights, 0.1, excluded
    total, losses, _, *expected_gradients = reference(*arguments)
    found, scores, gradients = computed(*arguments)
    counts = weights != 0
    assert_close(found, total, 1e-6)
    assert_close(scores.losses[counts], losses[counts], 1e-6)
    for actual, expected in zip(gradients, expected_gradients, strict=True):
        assert_close(actual, expected, 1e-6)
    assert not to_numpy(gradients[1])[excluded].any()
    others = np.arange(V) != excluded
    predictions = np.where(others, hidden @ kernel.T, -np.inf).argmax(-1)
    np.testing.assert_array_equal(scores.predictions, predictions)


def test_logits_far_apart_lose_nothing():
    # Probabilities of e^-300 are 0 in float32; their logarithms are not.
    arguments = (*example(300, scale=60.0), 0.1)
    expected = reference(*arguments)
    assert expected[2].max() > 300
    assert_equal(computed(*arguments), expected, 1e-5)


def test_of_equal_logits_the_first_class_is_predicted():
    hidden, kernel, labels, weights = example(300)
    hidden, kernel = np.round(4 * hidden), np.round(4 * kernel)  # so that products are exact
    kernel[V // 2 : -1] = kernel[: V // 2]
    _, scores, _ = computed(hidden, kernel, labels, weights, 0.1)
    np.testing.assert_array_equal(scores.predictions, (hidden @ kernel.T).argmax(-1))


def test_no_tokens_have_no_loss_and_no_gradient():
    total, scores, gradients = computed(*example(0), 0.1)
    assert float(total) == 0
    assert scores.losses.shape == scores.nll.shape == scores.predictions.shape == (0,)
    assert gradients[0].shape == (0, D)
    assert not to_numpy(gradients[1]).any()


def test_arguments_keep_their_values():
    hidden, kernel, labels, weights = map(ops.convert_to_tensor, example(300))
    before = ops.copy(hidden)
    linear_cross_entropy(hidden, OutputHead(kernel), labels, weights, 0.1)
    np.testing.assert_array_equal(to_numpy(hidden), to_numpy(before))


def test_half_precision_is_as_exact_as_a_product_in_it():
    hidden, kernel, labels, weights = example(300)
    halves = [ops.cast(each, "bfloat16") for each in (hidden, kernel)]
    rounded = [to_numpy(each) for each in halves]
    total, losses, _, *gradients = reference(*rounded, labels, weights, 0.1)
    computed_total, scores, computed_gradients = computed(*halves, labels, weights, 0.1)
    assert_close(computed_total, total, 2**-8)
    assert_close(scores.losses, losses, 2**-7)
    for actual, expected in zip(computed_gradients, gradients, strict=True):
        assert keras.backend.standardize_dtype(actual.dtype) == "bfloat16"
        assert_close(to_numpy(actual), expected, 2**-6)
