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
SELF = np.broadcast_to(np.eye(T, dtype=bool), (B, T, T))


def attention_layer(inputs, **config):
    layer = MultiHeadAttention(**SIZES, **config)
    layer(**inputs)
    return randomize(layer)


CAUSAL = {"use_causal_mask": True}
WIDTHS = {"value_dim": 4, "output_dim": 5}


ON_ITSELF, ON_OTHERS = {"query": query, "value": query}, {"query": query, "value": value}
NO_BIAS = {"use_bias": False}
# The inputs, the other call arguments, and the config.
CASES = {
    "self": (ON_ITSELF, {}, {}),
    "causal": (ON_ITSELF, CAUSAL, NO_BIAS),
    "causal, T > S": (ON_OTHERS, CAUSAL, WIDTHS),
    "causal, T < S": ({"query": query[:, :3], "value": value}, CAUSAL, {}),
    "causal, one query": ({"query": query[:, :1], "value": value}, CAUSAL, {}),
    "masked": (ON_OTHERS, {"attention_mask": mask}, {}),
    "masked for all queries": (ON_OTHERS, {"attention_mask": mask[:, :1]}, WIDTHS),
    "own key": ({"query": query, "value": value, "key": key}, {"attention_mask": mask}, WIDTHS),
    "causal and masked": (ON_ITSELF, CAUSAL | {"attention_mask": SELF}, NO_BIAS),
}


@pytest.mark.parametrize("inputs, call, config", CASES.values(), ids=CASES)
def test_layer_equals_keras_with_the_same_weights(inputs, call, config):
    layer = attention_layer(inputs, **config)
    config = {name.replace("output_dim", "output_shape"): width for name, width in config.items()}
    peer = keras.layers.MultiHeadAttention(**SIZES, **config)
    peer(**inputs, return_attention_scores=True)  # without scores Keras fails on JAX
    copy_weights(layer, peer, KERAS_NAMES)
    ours = layer(**inputs, **call, return_attention_scores=True)
    theirs = peer(**inputs, **call, return_attention_scores=True)
    for actual, expected in zip(to_numpy(ours), to_numpy(theirs), strict=True):
        assert_close(actual, expected, 1e-6)


@pytest.mark.parametrize("lengths, length", [([3, 1, 2], None), ([1] * T, T + 3), ([T], T + 3)])
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
    assert tuple(cache.key.shape) == (B, N, length or T, K)
    assert tuple(cache.value.shape) == (B, N, length or T, 4)


def test_layer_passes_the_layer_checks():
    check_layer(
        MultiHeadAttention,
        {**SIZES, **WIDTHS, "dropout": 0.2, "gain": 0.5, "name": "attention"},
        {"query": query, "value": value, "attention_mask": mask},
        call={"return_attention_scores": True},
    )


def test_missing_value_raises():
    with pytest.raises(ValueError, match="`value`.*Received: value=None"):
        attention_layer({"query": query, "value": value})(query=query)
