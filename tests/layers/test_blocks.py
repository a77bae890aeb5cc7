"""EncoderBlock and DecoderBlock: compared with KerasHub's; masks, cache, dropout, errors."""

import keras
import keras_hub
import numpy as np
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.models import TransformerDecoder, TransformerEncoder
from tests.builders import (
    HUB_NAMES,
    assert_close,
    copy_weights,
    normal,
    padded_ids,
    randomize,
    to_numpy,
)
from tests.layer_checks import check_layer

B, T, S, D, N, V = 2, 6, 5, 8, 2, 11
SIZES = {"num_heads": N, "intermediate_dim": 16, "layer_norm_epsilon": 1e-5}
NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post-norm", "pre-norm"])
KINDS = pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
STACKS = {EncoderBlock: TransformerEncoder, DecoderBlock: TransformerDecoder}
CONFIG = TransformerConfig(vocabulary_size=V, hidden_dim=D, num_layers=1, **SIZES)

target, source = normal(B, T, D, seed=1), normal(B, S, D, seed=2)
source_padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
target_padding = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
INPUTS = {EncoderBlock: [source], DecoderBlock: [target, source]}
MASKS = {
    EncoderBlock: {"attention_mask": source_padding[:, None]},
    DecoderBlock: {
        "attention_mask": target_padding[:, None],
        "encoder_attention_mask": source_padding[:, None],
    },
}
PEERS = {
    EncoderBlock: (
        keras_hub.layers.TransformerEncoder,
        {"padding_mask": source_padding},
        HUB_NAMES | {"self_attention/": "self_attention_layer/"},
    ),
    DecoderBlock: (
        keras_hub.layers.TransformerDecoder,
        {"decoder_padding_mask": target_padding, "encoder_padding_mask": source_padding},
        HUB_NAMES | {"encoder_attention": "cross_attention"},
    ),
}


def built(kind, **config):
    block = kind(**SIZES | config)
    block(*INPUTS[kind])
    return randomize(block)


@KINDS
def test_activity_regularizer_counts_once_as_in_keras_hub(kind):
    regularizer = {"activity_regularizer": "l2"}
    block, peer = built(kind, **regularizer), PEERS[kind][0](**SIZES, **regularizer)
    for layer in (block, peer):
        outputs = to_numpy(layer(*INPUTS[kind]))
        expected = 0.01 * (outputs**2).sum() / B
        assert [float(to_numpy(loss)) for loss in layer.losses] == [pytest.approx(expected, 1e-5)]
    stack = STACKS[kind](CONFIG, PositionalEmbedding(V, D))
    stack.blocks[0].activity_regularizer = keras.regularizers.L2(0.01)
    outputs = to_numpy(stack(padded_ids([T, T], V), *INPUTS[kind][1:]))  # of its only block
    expected = 0.01 * (outputs**2).sum() / B
    assert [float(to_numpy(loss)) for loss in stack.losses] == [pytest.approx(expected, 1e-5)]
    again = kind.from_config(block.get_config())
    assert again.activity_regularizer.get_config() == {"l2": pytest.approx(0.01)}


def assert_equal_to_keras_hub(kind, normalize_first, **call):
    block = built(kind, normalize_first=normalize_first)
    make_peer, masks, names = PEERS[kind]
    peer = make_peer(**SIZES, normalize_first=normalize_first)
    peer(*INPUTS[kind])
    copy_weights(block, peer, names)
    pair = block(*INPUTS[kind], **MASKS[kind], **call), peer(*INPUTS[kind], **masks, **call)
    for actual, expected in zip(*map(keras.tree.flatten, map(to_numpy, pair)), strict=True):
        assert_close(actual, expected, 1e-6)


@NORMS
def test_encoder_block_equals_keras_hub(normalize_first):
    assert_equal_to_keras_hub(EncoderBlock, normalize_first, return_attention_scores=True)


@NORMS
def test_decoder_block_equals_keras_hub(normalize_first):
    assert_equal_to_keras_hub(DecoderBlock, normalize_first)


@KINDS
@NORMS
def test_asking_for_scores_changes_no_output(kind, normalize_first):
    """The scores of each query sum to 1, and are 0 where masked."""
    block = built(kind, normalize_first=normalize_first)
    outputs, scores = to_numpy(block(*INPUTS[kind], **MASKS[kind], return_attention_scores=True))
    np.testing.assert_array_equal(outputs, to_numpy(block(*INPUTS[kind], **MASKS[kind])))
    hidden = {"encoder": ~source_padding[:, None, None]}
    if kind is EncoderBlock:
        scores = {"encoder": scores}
    else:
        hidden["self"] = ~(target_padding[:, None, None] & np.tri(T, dtype=bool))
    for name, each in scores.items():
        np.testing.assert_allclose(each.sum(axis=-1), 1, atol=1e-6)
        np.testing.assert_array_equal(each[np.broadcast_to(hidden[name], each.shape)], 0)


@NORMS
def test_content_under_padding_changes_no_visible_output(normalize_first):
    encoder = built(EncoderBlock, normalize_first=normalize_first)
    decoder = built(DecoderBlock, normalize_first=normalize_first)
    mask = source_padding[:, None]
    other = np.where(source_padding[..., None], source, 100.0).astype("float32")
    encoded, other_encoded = (to_numpy(encoder(x, attention_mask=mask)) for x in (source, other))
    np.testing.assert_array_equal(other_encoded[source_padding], encoded[source_padding])
    decoded, other_decoded = (
        to_numpy(decoder(target, x, encoder_attention_mask=mask)) for x in (source, other)
    )
    np.testing.assert_array_equal(other_decoded, decoded)
    wide = np.concatenate([source, normal(B, 7, D)], axis=1)
    visible = np.arange(S + 7)[None, None] < S
    found = to_numpy(encoder(wide, attention_mask=visible))[:, :S]
    assert_close(found, to_numpy(encoder(source)), 1e-6)


def test_encoder_block_passes_the_layer_checks():
    rates = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
    config = {**SIZES, **rates, "value_dim": 3, "normalize_first": True, "activation": "gelu"}
    mask = np.broadcast_to(source_padding[:, None], (B, S, S)).copy()
    inputs, call = {"inputs": source, "attention_mask": mask}, {"return_attention_scores": True}
    check_layer(EncoderBlock, config, inputs, call)


def test_decoder_block_passes_the_layer_checks():
    config = {**SIZES, "dropout": 0.2, "value_dim": 3, "use_bias": False, "attention_gain": 0.5}
    inputs = {"inputs": target, "encoder_output": source}
    check_layer(DecoderBlock, config, inputs, call={"return_attention_scores": True})


@KINDS
@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_only_in_training(kind, field):
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    block, still = built(kind, **{**quiet, field: 0.5}), built(kind, **quiet)
    expected = to_numpy(still(*INPUTS[kind]))
    np.testing.assert_array_equal(to_numpy(block(*INPUTS[kind], training=False)), expected)
    assert not np.allclose(to_numpy(block(*INPUTS[kind], training=True)), expected)


def test_decoder_block_without_encoder_output_raises():
    with pytest.raises(ValueError, match="`encoder_output`.*Received: encoder_output=None"):
        built(DecoderBlock)(target)


def test_causal_encoder_of_unknown_length_never_sees_the_future():
    inputs = keras.Input((None, D))
    outputs = EncoderBlock(**SIZES, normalize_first=True)(inputs, use_causal_mask=True)
    outputs = EncoderBlock(**SIZES)(outputs, use_causal_mask=True)
    model = randomize(keras.Model(inputs, outputs))
    before = model.predict_on_batch(source)
    assert_close(model.predict_on_batch(source[:, :2]), before[:, :2], 1e-6)
    for t in range(S):
        changed = source.copy()
        changed[:, t] += 1.0
        difference = np.abs(model.predict_on_batch(changed) - before).max(axis=(0, 2))
        assert (difference[:t] <= 1e-6).all() and (difference[t:] > 1e-4).all()


def test_causal_encoder_also_applies_the_attention_mask():
    block, mask = built(EncoderBlock), source_padding[:, None]
    expected = block(source, attention_mask=mask & np.tri(S, dtype=bool))
    actual = block(source, attention_mask=mask, use_causal_mask=True)
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


def test_subclass_exchanges_the_attention():
    class Unscaled(MultiHeadAttention):
        def attend(self, query, key, value, attention_mask=None, dropout=None):
            return scaled_dot_product_attention(
                query, key, value, attention_mask, scaled=False, dropout=dropout
            )

    class Block(DecoderBlock):
        self_attention_class = encoder_attention_class = Unscaled

    block, expected = Block(**SIZES), built(DecoderBlock)
    block(target, source)
    block.set_weights(expected.get_weights())
    for attention in (block.self_attention, block.encoder_attention):
        for weight in attention.query_dense.weights:
            weight.assign(weight * (D // N) ** -0.5)
    assert_close(to_numpy(block(target, source)), to_numpy(expected(target, source)), 1e-6)
