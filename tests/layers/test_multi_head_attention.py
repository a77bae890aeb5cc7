"""MultiHeadAttention, compared with Keras's; decoding with a cache, compared with the full pass."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from tests.builders import (
    assert_close,
    copy_weights,
    normal,
    randomize,
    seeded_call,
    to_numpy,
    token_chunks,
)
from tests.layer_checks import check_layer

B, T, S, D, N, K = 2, 6, 5, 8, 2, 3
SIZES = {"num_heads": N, "key_dim": K}
KERAS_NAMES = {"output/": "attention_output/"}

query, value, key = normal(B, T, D, seed=1), normal(B, S, 7, seed=2), normal(B, S, 9, seed=3)
mask = np.random.default_rng(4).random((B, T, S)) < 0.5
mask[:, :, 0] = True  # in fully masked rows, Keras's layer returns uniform attention


def attention_layer(inputs, **config):
    layer = MultiHeadAttention(**SIZES, **config)
    layer(**inputs)
    return randomize(layer)


@pytest.mark.parametrize(
    "inputs, call",
    [
        ({"query": query, "value": query}, {}),
        ({"query": query, "value": query}, {"use_causal_mask": True}),
        ({"query": query, "value": value}, {"use_causal_mask": True}),
        ({"query": query[:, :3], "value": value}, {"use_causal_mask": True}),
        ({"query": query[:, :1], "value": value}, {"use_causal_mask": True}),
        ({"query": query, "value": value}, {"attention_mask": mask}),
        ({"query": query, "value": value}, {"attention_mask": mask[:, :1]}),
        ({"query": query, "value": value, "key": key}, {"attention_mask": mask}),
        (
            {"query": query, "value": query},
            {"use_causal_mask": True, "attention_mask": np.eye(T) > 0},
        ),
    ],
    ids=[
        "self",
        "causal",
        "causal, T > S",
        "causal, T < S",
        "causal, one query",
        "masked",
        "masked for all queries",
        "own key",
        "causal and masked",
    ],
)
@pytest.mark.parametrize(
    "config, keras_config",
    [
        ({}, {}),
        ({"value_dim": 4, "output_dim": 5}, {"value_dim": 4, "output_shape": 5}),
        ({"use_bias": False}, {"use_bias": False}),
    ],
    ids=["default", "value_dim and output_dim", "no bias"],
)
def test_layer_equals_keras_with_the_same_weights(inputs, call, config, keras_config):
    if "attention_mask" in call and call["attention_mask"].ndim == 2:
        call = {**call, "attention_mask": np.broadcast_to(call["attention_mask"], (B, T, T))}
    layer = attention_layer(inputs, **config)
    peer = keras.layers.MultiHeadAttention(**SIZES, **keras_config)
    peer(**inputs, return_attention_scores=True)  # without scores Keras fails on JAX
    copy_weights(layer, peer, KERAS_NAMES)
    ours = layer(**inputs, **call, return_attention_scores=True)
    theirs = peer(**inputs, **call, return_attention_scores=True)
    for actual, expected in zip(to_numpy(ours), to_numpy(theirs), strict=True):
        assert_close(actual, expected, 1e-6)


def test_use_causal_mask_equals_an_explicit_causal_mask():
    layer = attention_layer({"query": query, "value": query})
    expected = layer(query=query, value=query, attention_mask=np.tri(T, dtype=bool)[None])
    actual = layer(query=query, value=query, use_causal_mask=True)
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("training", [False, True])
def test_scores_sum_to_one_and_fully_masked_rows_are_zero(dropout, training):
    masked = mask.copy()
    masked[0, 2] = False
    inputs = {"query": query, "value": value}
    layer = attention_layer(inputs, dropout=dropout)
    outputs, scores = layer(
        **inputs, attention_mask=masked, return_attention_scores=True, training=training
    )
    outputs, scores = to_numpy((outputs, scores))
    sums = np.broadcast_to(masked.any(axis=-1)[:, None], (B, N, T)).astype("float32")
    np.testing.assert_allclose(scores.sum(axis=-1), sums, atol=1e-6)
    np.testing.assert_array_equal(scores[~np.broadcast_to(masked[:, None], scores.shape)], 0)
    np.testing.assert_array_equal(outputs[0, 2], to_numpy(layer.output_dense.bias))


def test_dropout_changes_the_outputs_but_not_the_returned_scores():
    inputs = {"query": query, "value": value}
    layer = attention_layer(inputs, dropout=0.5)
    outputs, scores = to_numpy(layer(**inputs, return_attention_scores=True, training=False))
    dropped, same_scores = to_numpy(layer(**inputs, return_attention_scores=True, training=True))
    np.testing.assert_array_equal(same_scores, scores)
    assert not np.allclose(dropped, outputs)


def test_dropout_does_not_change_the_mean_output():
    inputs = {
        "query": np.repeat(query[:1, :1], 4000, axis=0),
        "value": np.repeat(value[:1], 4000, axis=0),
    }
    layer = attention_layer(inputs, dropout=0.3)
    outputs, dropped = (to_numpy(layer(**inputs, training=t))[:, 0] for t in (False, True))
    standard_error = dropped.std(axis=0) / np.sqrt(len(dropped))
    assert (np.abs((dropped - outputs).mean(axis=0)) < 5 * standard_error).all()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_the_future_never_leaks(dropout, training, with_scores, cached):
    layer = attention_layer({"query": query, "value": query}, dropout=dropout)

    def outputs(x):
        cache = {"cache": layer.init_cache(B)} if cached else {}
        call = {
            "use_causal_mask": True,
            "return_attention_scores": with_scores,
            "training": training,
        }
        result = seeded_call(layer, query=x, value=x, **call, **cache)
        return to_numpy(result[0] if isinstance(result, tuple) else result)

    before = outputs(query)
    for t in range(T - 1):
        changed = query.copy()
        changed[:, t + 1 :] += 1.0
        np.testing.assert_array_equal(outputs(changed)[:, : t + 1], before[:, : t + 1])


@pytest.mark.parametrize("lengths", [[1] * T, [3, 1, 2], [T]])
@pytest.mark.parametrize("length", [None, T + 3], ids=["growing", "fixed"])
def test_cached_steps_equal_the_full_pass(lengths, length):
    layer = attention_layer({"query": query, "value": query}, value_dim=4)
    full, full_scores = to_numpy(
        layer(query=query, value=query, use_causal_mask=True, return_attention_scores=True)
    )
    cache = layer.init_cache(B, length)
    for start, end in token_chunks(lengths):
        x = query[:, start:end]
        outputs, scores, cache = layer(
            query=x, value=x, use_causal_mask=True, return_attention_scores=True, cache=cache
        )
        assert_close(to_numpy(outputs), full[:, start:end], 1e-6)
        assert_close(to_numpy(scores)[..., :end], full_scores[:, :, start:end, :end], 1e-6)
        assert not to_numpy(scores)[..., end:].any(), "positions after the new ones are masked"
    assert tuple(cache["key"].shape) == (B, N, length or T, K)
    assert tuple(cache["value"].shape) == (B, N, length or T, 4)


def test_make_cache_projects_once_for_every_query():
    inputs = {"query": query, "value": value, "key": key}
    layer = attention_layer(inputs)
    expected = to_numpy(layer(**inputs, attention_mask=mask))
    cache = layer.make_cache(value, key)
    for t in range(T):
        outputs, cache = layer(
            query=query[:, t : t + 1], cache=cache, attention_mask=mask[:, t : t + 1]
        )
        assert_close(to_numpy(outputs)[:, 0], expected[:, t], 1e-6)
    assert tuple(cache["key"].shape) == (B, N, S, K)


def test_masked_content_changes_nothing():
    inputs = {"query": query, "value": value}
    layer = attention_layer(inputs)
    visible = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
    other = np.where(visible[..., None], value, 1e3).astype("float32")
    expected = layer(**inputs, attention_mask=visible[:, None])
    actual = layer(query=query, value=other, attention_mask=visible[:, None])
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


def test_layer_passes_the_layer_checks():
    check_layer(
        MultiHeadAttention,
        {**SIZES, "value_dim": 4, "output_dim": 5, "dropout": 0.2, "name": "attention"},
        {"query": query, "value": value, "attention_mask": mask},
        call={"return_attention_scores": True},
        no_gradient=["key/bias"],  # softmax is invariant to shifts
    )


@pytest.mark.parametrize("argument", ["num_heads", "key_dim", "value_dim"])
@pytest.mark.parametrize("wrong", [0, -1])
def test_width_that_is_not_positive_raises(argument, wrong):
    with pytest.raises(ValueError, match=f"`{argument}` must .*Received: {argument}={wrong}"):
        MultiHeadAttention(**{**SIZES, argument: wrong})


def test_missing_value_raises():
    with pytest.raises(ValueError, match="`value`.*Received: value=None"):
        attention_layer({"query": query, "value": value})(query=query)


@pytest.mark.parametrize("batch", [1, N, N + 1])
@pytest.mark.parametrize("symbolic", [False, True])
def test_padding_mask_as_attention_mask_raises(batch, symbolic):
    """With a batch of 1 or `num_heads`, the mask would broadcast without an error."""
    layer = MultiHeadAttention(**SIZES)
    x = keras.Input((S, D)) if symbolic else normal(batch, S, D)
    padding = keras.Input((S,), dtype="bool") if symbolic else np.ones((batch, S), bool)
    message = r"`attention_mask` must have 3 axes.*Received: .*Pass .* as `mask\[:, None, :\]`"
    with pytest.raises(ValueError, match=message):
        layer(query=x, value=x, attention_mask=padding)
    layer(query=x, value=x, attention_mask=padding[:, None, :])


def test_one_mask_per_head_raises():
    layer = MultiHeadAttention(**SIZES)
    with pytest.raises(ValueError, match=r"Received: attention_mask of shape \(2, 2, 6, 6\)"):
        layer(query=query, value=query, attention_mask=np.ones((B, N, T, T), bool))
