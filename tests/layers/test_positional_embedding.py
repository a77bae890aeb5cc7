"""Embeddings times sqrt(D) plus positions, against the paper's formula element by element."""

import math

import keras
import numpy as np
import pytest

from keras_transformer.layers import PositionalEmbedding, sinusoidal_encoding
from tests.builders import assert_close, normal, randomize, to_numpy
from tests.layer_checks import EPSILON, HALF_PRECISION, check_layer
from tests.paper_reference import positional_encoding

V, D = 11, 8
LEARNED = {"positions": "learned", "max_sequence_length": 6}
POSITIONS = pytest.mark.parametrize("positions", [{}, LEARNED], ids=["sinusoidal", "learned"])
ids = np.array([[4, 5, 6, 7], [8, 9, 4, 0]], dtype="int32")


def built(**config):
    layer = PositionalEmbedding(V, D, **config)
    layer(ids)
    return randomize(layer)


def test_sinusoidal_encoding_equals_the_formula():
    actual = to_numpy(sinusoidal_encoding(np.arange(50), 16))
    assert_close(actual, positional_encoding(50, 16), 1e-5)


def test_sinusoidal_encoding_starts_at_position_zero_and_interleaves():
    first = to_numpy(sinusoidal_encoding(np.arange(1), 6))
    np.testing.assert_array_equal(first, [[0, 1, 0, 1, 0, 1]])


@pytest.mark.parametrize("position", [0, 1, 512, 5000])
@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_positions_are_exact_in_half_precision(position, policy):
    layer = PositionalEmbedding(V, 64, dtype=policy)
    layer.build()
    layer.embeddings.assign(np.zeros((V, 64)))
    encoded = layer(np.array([[4]]), start_index=position)
    assert keras.backend.standardize_dtype(encoded.dtype) == HALF_PRECISION[policy]
    expected = [
        (math.sin, math.cos)[i % 2](position / 10000 ** ((i - i % 2) / 64)) for i in range(64)
    ]
    rounding = EPSILON[HALF_PRECISION[policy]] / 2
    angle_error = position * 2.0**-23  # of float32 angles: frequency and product are rounded
    difference = np.abs(to_numpy(encoded)[0, 0] - expected)
    assert (difference <= rounding * np.abs(expected) + angle_error + 1e-6).all()


def test_embedding_is_scaled_by_the_root_of_its_width():
    layer = built()
    vectors = to_numpy(layer.embeddings).astype("float64")[ids]
    assert_close(to_numpy(layer(ids)), vectors * math.sqrt(D) + positional_encoding(4, D), 1e-6)


def test_learned_positions_are_rows_of_the_table():
    layer = built(**LEARNED)
    table = next(v for v in layer.trainable_variables if v.path.endswith("positions"))
    vectors = to_numpy(layer.embeddings)[ids] * math.sqrt(D)
    assert_close(to_numpy(layer(ids)), vectors + to_numpy(table)[:4], 1e-6)


@POSITIONS
def test_start_index_continues_where_the_prefix_ended(positions):
    layer = built(**positions)
    full = to_numpy(layer(ids))
    for start_index in (3, np.int32(3), keras.ops.convert_to_tensor(3)):
        rest = layer(ids[:, 3:], start_index=start_index)
        np.testing.assert_array_equal(to_numpy(rest), full[:, 3:])


@pytest.mark.parametrize("shape", [(2, 4, D), (5, D)])
def test_reverse_projects_with_the_same_matrix(shape):
    layer = built()
    hidden = normal(*shape)
    expected = hidden.astype("float64") @ to_numpy(layer.embeddings).T
    assert_close(to_numpy(layer(hidden, reverse=True)), expected, 1e-6)
    assert len(layer.trainable_variables) == 1


def test_reverse_gives_float32_logits_in_half_precision():
    for policy in HALF_PRECISION:
        logits = built(dtype=policy)(normal(2, 4, D), reverse=True)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_embeddings_are_drawn_from_a_normal_of_deviation_root_of_width():
    vocabulary_size, hidden_dim = 2000, 64
    layer = PositionalEmbedding(vocabulary_size, hidden_dim, **LEARNED)
    layer.build()
    matrix = to_numpy(layer.embeddings) * hidden_dim**0.5
    standard_error = (2 * matrix.size) ** -0.5
    assert abs(matrix.std() - 1) < 5 * standard_error
    assert abs(matrix.mean()) < 5 * matrix.size**-0.5
    # Within one deviation lie 68.27% of a normal distribution, not the 58% of a uniform one.
    assert abs((np.abs(matrix) < 1).mean() - math.erf(2**-0.5)) < 0.01


@POSITIONS
def test_layer_follows_the_recipe(positions, tmp_path):
    config = {"vocabulary_size": V, "hidden_dim": D, **positions}
    check_layer(PositionalEmbedding, config, {"inputs": ids}, tmp_path)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"positions": "rotary"}, "`positions` must .*Received: positions='rotary'"),
        ({"positions": "learned"}, "`max_sequence_length`.*Received: max_sequence_length=None"),
        ({"hidden_dim": 7}, "`hidden_dim` must be even.*Received: hidden_dim=7"),
        ({"hidden_dim": 0}, "`hidden_dim` must .*Received: hidden_dim=0"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must .*Received: vocabulary_size=0"),
    ],
)
def test_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding(**{"vocabulary_size": V, "hidden_dim": D, **arguments})


def test_odd_width_of_the_encoding_is_named():
    with pytest.raises(ValueError, match="`hidden_dim` must be even.*Received: hidden_dim=7"):
        sinusoidal_encoding(np.arange(3), 7)


@pytest.mark.parametrize("length, start_index", [(7, 0), (1, 6), (4, 3)])
def test_position_beyond_the_learned_table_is_named(length, start_index):
    with pytest.raises(
        ValueError, match="`max_sequence_length`.*Received: .*max_sequence_length=6"
    ):
        built(**LEARNED)(np.ones((1, length), "int32"), start_index=start_index)
