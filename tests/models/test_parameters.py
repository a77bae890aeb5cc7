"""The number of parameters and their initial values, compared with the paper's."""

import functools

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from tests.builders import to_numpy

pytestmark = pytest.mark.tensorflow_only  # sizes and initializers are the same elsewhere
V = 1000


@functools.cache
def count(size="base", vocabulary_size=V, **overrides):
    config = getattr(TransformerConfig, size)(vocabulary_size, **overrides)
    return Transformer(config).count_params()


def long(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.long)


@pytest.mark.parametrize("size, expected", [("base", 63_082_496), long("big", 214_245_376)])
def test_presets_have_the_papers_parameters(size, expected):
    assert count(size, vocabulary_size=37_000) == expected


TINY_D = 128
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.mark.parametrize(
    "change, difference",
    [
        ({"normalize_first": True}, 4 * TINY_D),  # a final norm of each stack
        ({"tie_embeddings": "decoder"}, V * TINY_D),
        ({"tie_embeddings": "none"}, 2 * V * TINY_D),
        ({"tie_embeddings": "none", "source_vocabulary_size": 300}, (V + 300) * TINY_D),
        ({"positions": "learned", "max_sequence_length": 64}, 64 * TINY_D),
        (
            {"positions": "learned", "max_sequence_length": 64, "tie_embeddings": "decoder"},
            (V + 2 * 64) * TINY_D,
        ),
        # 2 * 3 + 1 vectors of the width of a head, in the self-attention of each side.
        ({"positions": "relative", "max_relative_position": 3}, 2 * 7 * TINY_D // 4),
        # Three attentions of four projections, two feed-forward networks of two.
        ({"use_bias": False}, -3 * 4 * TINY_D - 2 * (256 + TINY_D)),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_options_change_the_number_of_parameters_as_expected(change, difference):
    assert count("tiny", **ONE_LAYER, **change) - count("tiny", **ONE_LAYER) == difference


def draw_weights(**changes):
    keras.utils.set_random_seed(0)
    sizes = {**ONE_LAYER, "key_dim": 24, "value_dim": 40, "tie_embeddings": "none"}
    model = Transformer(TransformerConfig.tiny(V, **sizes | changes))
    return {v.path: to_numpy(v) for v in model.trainable_variables}


@pytest.fixture(scope="module")
def initial_weights():
    return draw_weights()


# Columns and rows of the paper's matrices: 4 heads of key_dim 24 and value_dim 40.
FANS = {
    "attention/query/kernel": (TINY_D, 4 * 24),
    "attention/key/kernel": (TINY_D, 4 * 24),
    "attention/value/kernel": (TINY_D, 4 * 40),
    "attention/output/kernel": (4 * 40, TINY_D),
    "feed_forward/intermediate/kernel": (TINY_D, 256),
    "feed_forward/output/kernel": (256, TINY_D),
    "output_projection/kernel": (TINY_D, V),
}


@pytest.mark.parametrize("name", FANS)
def test_kernels_are_glorot_uniform_of_the_papers_matrices(name, initial_weights):
    limit = (6 / sum(FANS[name])) ** 0.5
    kernels = [w for path, w in initial_weights.items() if path.endswith(name)]
    assert kernels
    for kernel in kernels:
        assert kernel.size == np.prod(FANS[name])
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        # The variance of a uniform distribution's square is 4/45 limit^4.
        error = limit**2 * (4 / 45 / kernel.size) ** 0.5
        assert abs((kernel**2).mean() - limit**2 / 3) < 5 * error


def test_attention_gain_scales_queries_keys_and_values_of_every_attention(initial_weights):
    scaled = draw_weights(attention_gain=0.5)
    is_scaled = {path: path.endswith(tuple(FANS)[:3]) for path in initial_weights}
    assert sum(is_scaled.values()) == 9  # one layer each: two self-attentions, one of the encoder
    for path, weight in initial_weights.items():
        expected = 0.5 * weight if is_scaled[path] else weight
        np.testing.assert_array_equal(scaled[path], expected, err_msg=path)


def test_embeddings_biases_and_norms_start_as_in_the_paper(initial_weights):
    tables = [w for path, w in initial_weights.items() if path.endswith("embeddings")]
    assert len(tables) == 2
    for table in tables:
        relative_deviation = table.std() * TINY_D**0.5
        assert abs(relative_deviation - 1) < 5 * (2 * table.size) ** -0.5
        assert np.abs(table).max() > 3 * TINY_D**-0.5  # a uniform distribution has no tails
    for path, weight in initial_weights.items():
        if path.endswith(("bias", "beta", "gamma")):
            np.testing.assert_array_equal(weight, float(path.endswith("gamma")))


def test_equal_kernels_are_drawn_independently(initial_weights):
    names = "query/kernel", "key/kernel"
    kernels = [w.ravel() for path, w in initial_weights.items() if path.endswith(names)]
    correlations = np.corrcoef(kernels)[np.triu_indices(len(kernels), 1)]
    assert np.abs(correlations).max() < 5 * kernels[0].size ** -0.5
