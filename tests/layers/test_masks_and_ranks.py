"""Wrong sizes, inputs of the wrong rank, masks of the wrong rank or dtype: a new case is a new row.

Each row is called with arrays and with symbols; both accept it, or raise the same error.
"""

import contextlib
from functools import partial

import keras
import numpy as np
import pytest

from keras_transformer import TransformerConfig, layers
from keras_transformer.models import TransformerDecoder, TransformerEncoder
from tests.builders import normal, to_numpy

B, S, T, D, V = 2, 5, 5, 8, 11
SIZES = {"num_heads": 2, "intermediate_dim": 16}
LEARNED = {"positions": "learned", "max_sequence_length": 9}
x, ids = normal(B, S, D), np.ones((B, S), "int32")
allowed = np.tril(np.ones((T, S), bool))  # query t may attend to the keys 0 to t
FLOATS = "must be boolean.*float32.*`mask > 0` if 1 means that.*`mask > -1` if 0 means that"


def additive(mask):
    return np.where(mask, 0, -np.inf).astype("float32")


def stack(kind):
    config = TransformerConfig.tiny(V, num_layers=1, hidden_dim=D, num_heads=2, intermediate_dim=16)
    return kind(config, layers.PositionalEmbedding(V, D))


attention = partial(layers.MultiHeadAttention, num_heads=2)
encoder_block, decoder_block = (
    partial(kind, **SIZES) for kind in (layers.EncoderBlock, layers.DecoderBlock)
)
encoder, decoder = partial(stack, TransformerEncoder), partial(stack, TransformerDecoder)
feed_forward, dropout = partial(layers.FeedForward, 16), partial(layers.Dropout, 0.5)
embedding = partial(layers.PositionalEmbedding, V, D)
learned = partial(layers.PositionalEmbedding, V, D, **LEARNED)
encoding = layers.PositionalEncoding


def dot_products():
    return layers.scaled_dot_product_attention


def sums():
    return partial(layers.additive_attention, score_vector=np.ones(4, "float32"))


def combine():
    return layers.combine_masks


heads = normal(B, 2, S, 4)
three, four = normal(2, 3, 5, D), normal(2, 1, 5, D)
M = "attention_mask"
# Layer, arguments (by name, or in order), part of the error; without an error, it is accepted.
ROWS = [
    # === Sizes and positions ===
    (partial(layers.FeedForward, 0), [x], "`intermediate_dim` must .*: intermediate_dim=0"),
    (partial(attention, num_heads=0), [x, x], "`num_heads` must .*Received: num_heads=0"),
    (partial(attention, key_dim=-1), [x, x], "`key_dim` must .*Received: key_dim=-1"),
    (partial(attention, value_dim=0), [x, x], "`value_dim` must .*Received: value_dim=0"),
    (partial(encoder_block, num_heads=3), [x], "`num_heads` must divide.*=3, a query of width 8"),
    (partial(encoder_block, max_relative_position=0), [x], "`max_relative_position` must .*=0"),
    (partial(embedding, positions="rotary"), [ids], "`positions` must .*: positions='rotary'"),
    (partial(embedding, positions="learned"), [ids], "`max_sequence_length`.*_length=None"),
    (partial(embedding, first_position=-1), [ids], "`first_position` must .*first_position=-1"),
    (partial(learned, first_position=1), [ids], "`first_position` must .*first_position=1"),
    (partial(layers.PositionalEmbedding, V, 0), [ids], "`hidden_dim` must .*: hidden_dim=0"),
    (partial(layers.PositionalEmbedding, 0, D), [ids], "`vocabulary_size` must .*_size=0"),
    # === Ranks ===
    (attention, [three, three], r"`query` must have 3 axes, \(B, T, D\).*\(2, 3, 5, 8\)"),
    (attention, [x, four], r"`value` must have 3 axes, \(B, S, D\).*\(2, 1, 5, 8\)"),
    (attention, {"query": x, "value": x, "key": four}, "`key` must have 3 axes"),
    (encoder_block, [four], r"`inputs` must have 3 axes, \(B, S, D\).*\(2, 1, 5, 8\)"),
    (decoder_block, [four, x], r"`inputs` must have 3 axes.*\(2, 1, 5, 8\)"),
    (decoder_block, [x, four], r"`encoder_output` must have 3 axes.*\(2, 1, 5, 8\)"),
    (feed_forward, [four], r"`inputs` must have 3 axes.*\(2, 1, 5, 8\)"),
    (encoding, [four], r"`inputs` must have 3 axes.*\(2, 1, 5, 8\)"),
    (embedding, [ids[..., None]], r"`inputs` must have 2 axes, \(B, T\).*\(2, 5, 1\)"),
    (embedding, {"inputs": four, "reverse": True}, r"`inputs` must have 3 axes"),
    (layers.PaddingMask, [ids[..., None]], r"`token_ids` must have 2 axes.*\(2, 5, 1\)"),
    (encoder, [ids[..., None]], r"`token_ids` must have 2 axes.*\(2, 5, 1\)"),
    (decoder, [ids[..., None], x], r"`token_ids` must have 2 axes.*\(2, 5, 1\)"),
    (decoder, [ids, four], r"`encoder_output` must have 3 axes.*\(2, 1, 5, 8\)"),
    (dot_products, [x, x, x], r"`query` must have 4 axes, \(B, N, L, D\).*\(2, 5, 8\)"),
    (sums, [heads, heads, x], r"`value` must have 4 axes, \(B, N, L, D\).*\(2, 5, 8\)"),
    (dropout, [four], None),
    # === Ranks of masks ===
    # With as many sentences as heads, this would broadcast without an error.
    (attention, {"query": x, "value": x, M: ids > 0}, r"\(2, 5\).*`mask\[:, None, :\]`"),
    (attention, {"query": x, "value": x, M: np.stack([allowed[None]] * 2)}, r"\(2, 1, 5, 5\)"),
    (encoder_block, {"inputs": x, M: ids > 0}, rf"`{M}` must have 3 axes.*`mask\[:, None, :\]`"),
    (
        decoder_block,
        {"inputs": x, "encoder_output": x, "encoder_attention_mask": ids > 0},
        r"`encoder_attention_mask` must have 3 axes.*\(2, 5\)",
    ),
    (
        encoder,
        {"token_ids": ids, "padding_mask": (ids > 0)[:, None, :]},
        r"`padding_mask` must have 2 axes.*\(B, S\).*\(2, 1, 5\)",
    ),
    (
        decoder,
        {"token_ids": ids, "encoder_output": x, "encoder_padding_mask": allowed[None]},
        "`encoder_padding_mask` must have 2 axes",
    ),
    (
        dot_products,
        {"query": heads, "key": heads, "value": heads, M: allowed},
        rf"`{M}` must have 4 axes.*`mask\[:, None, None, :\]`",
    ),
    # === Dtypes of masks ===
    (attention, {"query": x, "value": x, M: additive(allowed)[None]}, FLOATS),
    (encoder_block, {"inputs": x, M: additive(allowed)[None]}, f"`{M}` {FLOATS}"),
    (decoder_block, {"inputs": x, "encoder_output": x, M: additive(allowed)[None]}, FLOATS),
    (
        decoder_block,
        {"inputs": x, "encoder_output": x, "encoder_attention_mask": additive(allowed)[None]},
        f"`encoder_attention_mask` {FLOATS}",
    ),
    (encoder, {"token_ids": ids, "padding_mask": additive(ids > 0)}, f"`padding_mask` {FLOATS}"),
    (
        decoder,
        {"token_ids": ids, "encoder_output": x, "encoder_padding_mask": additive(ids > 0)},
        f"`encoder_padding_mask` {FLOATS}",
    ),
    (dot_products, {"query": heads, "key": heads, "value": heads, M: additive(heads > 0)}, FLOATS),
    (combine, [ids > 0, additive(ids > 0)], FLOATS),
    (attention, {"query": x, "value": x, M: allowed[None].astype("int32")}, None),
    (encoder, {"token_ids": ids, "padding_mask": ids}, None),
]
FUNCTIONS = dot_products, sums  # on arrays, which layers call


def symbol(value):
    if isinstance(value, np.ndarray):
        return keras.Input(batch_shape=value.shape, dtype=value.dtype.name)
    return value


@pytest.mark.parametrize(("make", "arguments", "error"), ROWS, ids=[*map(str, range(len(ROWS)))])
def test_odd_input_is_refused_by_name(make, arguments, error):
    args, kwargs = (arguments, {}) if isinstance(arguments, list) else ([], arguments)
    calls = [(args, kwargs)]
    if make not in FUNCTIONS:
        calls.append(([symbol(a) for a in args], {k: symbol(v) for k, v in kwargs.items()}))
    for args, kwargs in calls:
        refused = pytest.raises(ValueError, match=f"(?s){error}")
        with refused if error else contextlib.nullcontext():
            make()(*args, **kwargs)


@pytest.mark.parametrize("make", [encoder_block, feed_forward, encoding])
def test_a_built_layer_checks_the_rank_too(make):
    layer = make()
    layer(x)
    with pytest.raises(ValueError, match="`inputs` must have 3 axes"):
        layer(four)


@pytest.mark.parametrize("mask", [allowed, 7 * allowed], ids=["bool", "0 and 7"])
def test_masks_that_are_accepted_mean_the_same(mask):
    layer = attention()
    expected = to_numpy(layer(x, x, use_causal_mask=True))
    np.testing.assert_array_equal(to_numpy(layer(x, x, attention_mask=mask[None])), expected)
    scores = [
        to_numpy(layers.scaled_dot_product_attention(heads, heads, heads, each[None, None])[1])
        for each in (mask, allowed)
    ]
    np.testing.assert_array_equal(*scores)


class FloatMask(keras.layers.Layer):
    """Keras does not say of which dtype an implicit mask is."""

    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, mask=None):
        return keras.ops.cast(keras.ops.any(inputs != 0, axis=-1), "float32")


def test_an_implicit_mask_of_floats_works_as_one_of_bools():
    padded = x * (np.arange(S) < 3)[:, None]
    layer = encoder_block()
    inputs = keras.Input((S, D))
    models = [
        keras.Model(inputs, layer(masking(inputs)))
        for masking in (FloatMask(), keras.layers.Masking())
    ]
    actual, expected = (to_numpy(model(padded)) for model in models)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert np.abs(to_numpy(layer(padded)) - expected)[:, :3].max() > 1e-3
