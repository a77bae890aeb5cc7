"""The two attention functions, compared with NumPy and Keras; masks, dropout and dtypes."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import additive_attention, scaled_dot_product_attention
from tests.builders import assert_close, normal, to_numpy
from tests.paper_reference import attention

B, N, T, S, K, V = 2, 3, 4, 5, 6, 7
MASK = np.random.default_rng(9).random((B, 1, T, S)) < 0.6
MASK[0, 0, 1] = False  # a fully masked row
VISIBLE_ROWS = np.broadcast_to(MASK.any(axis=-1), (B, N, T))

query, key, value = (
    normal(B, N, T, K, seed=1),
    normal(B, N, S, K, seed=2),
    normal(B, N, S, V, seed=3),
)


def additive(query, key, value, **kwargs):
    return additive_attention(query, key, value, score_vector=normal(K, seed=4), **kwargs)


FUNCTIONS = pytest.mark.parametrize("function", [scaled_dot_product_attention, additive])


@pytest.mark.parametrize("is_masked", [False, True])
def test_additive_attention_equals_keras(is_masked):
    padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    ours_masked = {"attention_mask": padding[:, None, None]} if is_masked else {}
    masked = {"mask": [None, padding]} if is_masked else {}
    layer = keras.layers.AdditiveAttention()
    layer.build([(B, T, K), (B, S, V), (B, S, K)])
    layer.scale.assign(normal(K, seed=4))
    outputs, scores = to_numpy(additive(query, key, value, **ours_masked))
    for n in range(N):  # Keras's layer has one head
        inputs = [query[:, n], value[:, n], key[:, n]]
        expected = layer(inputs, **masked, return_attention_scores=True)
        for ours, theirs in zip((outputs[:, n], scores[:, n]), to_numpy(expected), strict=True):
            assert_close(ours, theirs, 1e-6)


@FUNCTIONS
def test_scores_sum_to_one_and_vanish_where_masked(function):
    """Also far from 0. Fully masked rows are zero, also with dropout."""
    hidden = ~np.broadcast_to(MASK, (B, N, T, S))
    dropouts = None, lambda scores: scores * 0.0, lambda scores: scores * 2.0
    for magnitude, dropout in itertools.product((1.0, 100.0), dropouts):
        outputs, scores = to_numpy(
            function(magnitude * query, key, value, attention_mask=MASK, dropout=dropout)
        )
        np.testing.assert_allclose(scores.sum(axis=-1)[VISIBLE_ROWS], 1, atol=1e-6)
        np.testing.assert_array_equal(scores[hidden], 0)
        np.testing.assert_array_equal(outputs[~VISIBLE_ROWS], 0)


@FUNCTIONS
def test_dropout_changes_the_outputs_but_not_the_returned_scores(function):
    outputs, scores = to_numpy(function(query, key, value))
    doubled, same = to_numpy(function(query, key, value, dropout=lambda scores: scores * 2.0))
    np.testing.assert_array_equal(same, scores)
    assert_close(doubled, 2 * outputs, 1e-6)


@FUNCTIONS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_are_float32_in_half_precision(function, dtype):
    outputs, scores = function(*(keras.ops.cast(x, dtype) for x in (query, key, value)))
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(scores).sum(axis=-1), 1, atol=1e-6)


# Close to the limits of float32, around -1e9 (a common value for masked keys), and usual values.
SIMILARITIES = np.array([-3e38, -1e30, -1e9, -1e9 + 64, 0.0, 1.0, 3e38])
# One query for every subset of visible keys; the first subset is empty.
EVERY_MASK = np.array(list(itertools.product([False, True], repeat=len(SIMILARITIES))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_masking_is_exact_at_every_finite_similarity(dtype):
    """Queries and keys have width 1 and the queries are 1, so each similarity is its key."""
    largest_finite = 65504 if dtype == "float16" else 3e38
    keys = ops.cast(np.clip(SIMILARITIES, -largest_finite, largest_finite)[:, None], dtype)
    values = ops.cast(np.arange(1.0, len(SIMILARITIES) + 1)[:, None], dtype)
    queries = ops.ones((len(EVERY_MASK), 1), dtype)
    outputs, scores = scaled_dot_product_attention(
        *(x[None, None] for x in (queries, keys, values)), attention_mask=EVERY_MASK[None, None]
    )
    outputs, scores = to_numpy((outputs, scores))
    exact = [to_numpy(x).astype("float64") for x in (queries[1:], keys, values)]
    expected_outputs, expected_scores = attention(*exact, EVERY_MASK[1:])
    assert_close(scores[0, 0, 1:], expected_scores, 1e-6)
    assert_close(outputs[0, 0, 1:], expected_outputs, 2.0**-7)
    np.testing.assert_array_equal(scores[0, 0, 0], 0)
    np.testing.assert_array_equal(outputs[0, 0, 0], 0)


def test_gradients_are_finite_with_masked_keys_and_zero_in_fully_masked_rows():
    class Attention(keras.layers.Layer):
        def build(self, mask_shape):
            shape = (1, 1, len(EVERY_MASK), 1)
            self.queries = self.add_weight(shape=shape, initializer="ones")
            self.keys = self.add_weight(shape=(1, 1, len(SIMILARITIES), 1))
            self.keys.assign(SIMILARITIES[None, None, :, None])

        def call(self, mask):
            values = ops.reshape(ops.arange(len(SIMILARITIES), dtype="float32"), (1, 1, -1, 1))
            mask = ops.cast(mask, "bool")  # `keras.Sequential` makes its inputs floats
            return scaled_dot_product_attention(self.queries, self.keys, values, mask)[0]

    mask = EVERY_MASK[None, None]
    model = keras.Sequential([Attention()])
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=lambda _, outputs: ops.sum(outputs))
    model.build(mask.shape)
    model.train_on_batch(mask, np.zeros((1, 1)))
    queries, keys = (to_numpy(v) for v in model.trainable_variables)
    gradients = 1 - queries[0, 0, :, 0]
    assert np.isfinite(gradients).all() and np.isfinite(keys).all()
    assert gradients[0] == 0
    only_0_and_1 = (EVERY_MASK == np.isin(SIMILARITIES, [0, 1])).all(axis=1)
    assert (gradients[only_0_and_1] != 0).all()
