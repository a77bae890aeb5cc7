"""Relative positions of attention, compared with their equation in NumPy, at any length."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.composite_layer import Projection
from keras_transformer.layers.relative_positions import relative_similarity
from tests.builders import assert_close, normal, randomize, to_numpy, weights_below
from tests.layer_checks import check_layer
from tests.paper_reference import multi_head

B, T, D, N, K, M = 2, 7, 8, 2, 3, 2
SIZES = {"num_heads": N, "key_dim": K, "max_relative_position": M}
x = normal(B, T, D)
mask = np.random.default_rng(4).random((B, T, T)) < 0.5
mask[:, :, 0] = True


def attention_layer(**config):
    layer = MultiHeadAttention(**SIZES, **config)
    layer(query=x, value=x)
    return randomize(layer)


def expected(layer, rows, visible):
    """Outputs and scores in float64."""
    weights = {path: np.float64(to_numpy(v)) for path, v in weights_below(layer).items()}
    pairs = zip(rows, visible, strict=True)
    found = [multi_head(weights, N, row, row, seen) for row, seen in pairs]
    return map(np.stack, zip(*found, strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_layer_equals_the_equation(causal):
    layer = attention_layer(value_dim=4)
    call = {"attention_mask": mask, "use_causal_mask": causal, "return_attention_scores": True}
    visible = mask & np.tri(T, dtype=bool) if causal else mask
    found = to_numpy(layer(query=x, value=x, **call))
    for one, other in zip(found, expected(layer, x, visible), strict=True):
        assert_close(one, other, 1e-6)


@pytest.mark.parametrize("length", [pytest.param(None, marks=pytest.mark.slow_on_jax), 40])
def test_alternatives_in_a_cache_have_one_position(length):
    """As in beam search: three queries a step, of which each sees its ancestors and itself."""
    layer, slots = attention_layer(), 3
    steps = [normal(B, slots, D, seed=step) for step in range(T)]
    cache = layer.init_cache(B, length)
    parents = np.random.default_rng(1).integers(0, slots, (T, slots))
    chosen = [np.arange(slots)]  # the slot of each hypothesis in every step
    for step, rows in enumerate(steps):
        if step:
            chosen = [c[parents[step]] for c in chosen] + [np.arange(slots)]
        seen = np.zeros((B, slots, length or slots * (step + 1)), bool)
        for n, slot in enumerate(chosen):
            seen[:, np.arange(slots), n * slots + slot] = True
        outputs, cache = layer(query=rows, value=rows, attention_mask=seen, cache=cache)
    for slot in range(slots):
        hypothesis = np.stack([steps[n][:, c[slot]] for n, c in enumerate(chosen)], axis=1)
        full, _ = expected(layer, hypothesis, [np.tri(T, dtype=bool)] * B)
        assert_close(to_numpy(outputs)[:, slot], full[:, -1], 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_distances_are_whole_numbers_at_any_length(dtype):
    """Above 256, bfloat16 has no odd numbers."""
    most, start, steps = 300, 4001, 2
    dense = Projection(2 * most + 1, use_bias=False, dtype=dtype)
    dense.build((None, K))
    randomize(dense)
    query = ops.ones((1, 1, steps, K), dense.compute_dtype)
    found = relative_similarity(query, dense, start + steps, start, 1)
    by_distance = to_numpy(dense(query[:, 0, 0] * K**-0.5))[0]
    distances = [[s - start - t for s in range(start + steps)] for t in range(steps)]
    wanted = by_distance[np.clip(distances, -most, most) + most]
    np.testing.assert_allclose(to_numpy(found)[0, 0], wanted, rtol=0, atol=1e-6)


def test_layers_pass_the_layer_checks():
    call = {"return_attention_scores": True}
    check_layer(MultiHeadAttention, SIZES, {"query": x, "value": x}, call)
