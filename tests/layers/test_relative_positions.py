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


@pytest.mark.parametrize("causal", [False, True])
def test_layer_equals_the_equation(causal):
    layer = MultiHeadAttention(**SIZES, value_dim=4)
    layer(query=x, value=x)
    weights = weights_below(randomize(layer)).items()
    weights = {path: np.float64(to_numpy(variable)) for path, variable in weights}
    call = {"attention_mask": mask, "use_causal_mask": causal, "return_attention_scores": True}
    found = to_numpy(layer(query=x, value=x, **call))
    visible = mask & np.tri(T, dtype=bool) if causal else mask
    pairs = zip(x, visible, strict=True)
    expected = [multi_head(weights, N, row, row, seen) for row, seen in pairs]
    for one, other in zip(found, map(np.stack, zip(*expected, strict=True)), strict=True):
        assert_close(one, other, 1e-6)


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
