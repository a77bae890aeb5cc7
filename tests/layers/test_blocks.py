"""EncoderBlock and DecoderBlock: compared with KerasHub's; masks, cache, dropout, errors."""

import keras
import keras_hub
import numpy as np
import pytest

from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from tests.builders import (
    HUB_NAMES,
    assert_close,
    copy_weights,
    normal,
    randomize,
    seeded_call,
    to_numpy,
    token_chunks,
)
from tests.layer_checks import check_layer

B, T, S, D, N = 2, 6, 5, 8, 2
SIZES = {"num_heads": N, "intermediate_dim": 16, "layer_norm_epsilon": 1e-5}
NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post-norm", "pre-norm"])

target, source = normal(B, T, D, seed=1), normal(B, S, D, seed=2)
source_padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
target_padding = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)


def encoder_block(**config):
    block = EncoderBlock(**SIZES | config)
    block(source)
    return randomize(block)


def decoder_block(**config):
    block = DecoderBlock(**SIZES | config)
    block(target, source)
    return randomize(block)


def peer_config(normalize_first):
    shared = {"intermediate_dim": 16, "num_heads": N, "layer_norm_epsilon": 1e-5}
    return {**shared, "normalize_first": normalize_first}


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_activity_regularizer_counts_once_as_in_keras_hub(name):
    inputs = [source] if name == "encoder" else [target, source]
    block = EncoderBlock if name == "encoder" else DecoderBlock
    block = block(**SIZES, activity_regularizer="l2")
    kind = keras_hub.layers.TransformerEncoder, keras_hub.layers.TransformerDecoder
    peer = kind[name == "decoder"](**peer_config(False), activity_regularizer="l2")
    for layer in (block, peer):
        outputs = layer(*inputs)
        expected = 0.01 * (to_numpy(outputs) ** 2).sum() / B
        assert [float(to_numpy(loss)) for loss in layer.losses] == [pytest.approx(expected, 1e-5)]
    assert type(block).from_config(block.get_config()).activity_regularizer.get_config() == {
        "l2": pytest.approx(0.01)
    }


@NORMS
def test_encoder_block_equals_keras_hub(normalize_first):
    block = encoder_block(normalize_first=normalize_first)
    peer = keras_hub.layers.TransformerEncoder(**peer_config(normalize_first))
    peer(source)
    copy_weights(block, peer, {**HUB_NAMES, "self_attention/": "self_attention_layer/"})
    ours = block(source, attention_mask=source_padding[:, None], return_attention_scores=True)
    theirs = peer(source, padding_mask=source_padding, return_attention_scores=True)
    for actual, expected in zip(to_numpy(ours), to_numpy(theirs), strict=True):
        assert_close(actual, expected, 1e-6)


@NORMS
def test_decoder_block_equals_keras_hub(normalize_first):
    block = decoder_block(normalize_first=normalize_first)
    peer = keras_hub.layers.TransformerDecoder(**peer_config(normalize_first))
    peer(target, source)
    copy_weights(block, peer, {**HUB_NAMES, "encoder_attention": "cross_attention"})
    ours = block(
        target,
        source,
        attention_mask=target_padding[:, None],
        encoder_attention_mask=source_padding[:, None],
    )
    theirs = peer(
        target,
        source,
        decoder_padding_mask=target_padding,
        encoder_padding_mask=source_padding,
    )
    assert_close(to_numpy(ours), to_numpy(theirs), 1e-6)


@NORMS
def test_blocks_return_scores_that_sum_to_one(normalize_first):
    encoder = encoder_block(normalize_first=normalize_first)
    decoder = decoder_block(normalize_first=normalize_first)
    masks = {"return_attention_scores": True}
    _, own = encoder(source, attention_mask=source_padding[:, None], **masks)
    _, both = decoder(target, source, encoder_attention_mask=source_padding[:, None], **masks)
    shapes = {(B, N, S, S): own, (B, N, T, T): both["self"], (B, N, T, S): both["encoder"]}
    for shape, scores in shapes.items():
        scores = to_numpy(scores)
        assert scores.shape == shape
        np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(own)[0, :, :, ~source_padding[0]], 0)
    np.testing.assert_array_equal(to_numpy(both["encoder"])[0, :, :, ~source_padding[0]], 0)
    np.testing.assert_array_equal(to_numpy(both["self"])[..., ~np.tri(T, dtype=bool)], 0)


@NORMS
def test_asking_for_scores_changes_no_output(normalize_first):
    encoder = encoder_block(normalize_first=normalize_first)
    decoder = decoder_block(normalize_first=normalize_first)
    for block, inputs in ((encoder, [source]), (decoder, [target, source])):
        with_scores = block(*inputs, return_attention_scores=True)[0]
        np.testing.assert_array_equal(to_numpy(with_scores), to_numpy(block(*inputs)))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_decoder_block_never_sees_the_future(dropout, training, with_scores, cached):
    block = decoder_block(dropout=dropout, attention_dropout=dropout, activation_dropout=dropout)

    def outputs(x):
        call = {"return_attention_scores": with_scores, "training": training}
        if cached:
            call["cache"] = block.init_cache(source)
        result = seeded_call(block, x, source, **call)
        return to_numpy(result[0] if isinstance(result, tuple) else result)

    before = outputs(target)
    for t in range(T - 1):
        changed = target.copy()
        changed[:, t + 1 :] += normal(B, T - t - 1, D, seed=t)
        after = outputs(changed)
        np.testing.assert_array_equal(after[:, : t + 1], before[:, : t + 1])
        assert (after[:, t + 1 :] != before[:, t + 1 :]).any()


ONE_BY_ONE = pytest.param([1] * T, marks=pytest.mark.slow_on_jax)


@NORMS
@pytest.mark.parametrize("lengths", [ONE_BY_ONE, [3, 1, 2], [T]], ids=str)
def test_cached_steps_of_the_decoder_block_equal_the_full_pass(normalize_first, lengths):
    block = decoder_block(normalize_first=normalize_first, value_dim=3)
    masks = {"encoder_attention_mask": source_padding[:, None], "return_attention_scores": True}
    full, full_scores = to_numpy(block(target, source, **masks))
    cache = block.init_cache(source)
    for start, end in token_chunks(lengths):
        outputs, scores, cache = block(target[:, start:end], cache=cache, **masks)
        scores = to_numpy(scores)
        assert_close(to_numpy(outputs), full[:, start:end], 1e-6)
        assert_close(scores["self"], full_scores["self"][:, :, start:end, :end], 1e-6)
        assert_close(scores["encoder"], full_scores["encoder"][:, :, start:end], 1e-6)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), cache)
    assert shapes["self"] == {"key": (B, N, T, D // N), "value": (B, N, T, 3)}
    assert shapes["encoder"] == {"key": (B, N, S, D // N), "value": (B, N, S, 3)}


@NORMS
def test_content_under_padding_changes_no_visible_output(normalize_first):
    encoder = encoder_block(normalize_first=normalize_first)
    decoder = decoder_block(normalize_first=normalize_first)
    mask = source_padding[:, None]
    other = np.where(source_padding[..., None], source, 100.0).astype("float32")
    encoded, other_encoded = (to_numpy(encoder(x, attention_mask=mask)) for x in (source, other))
    np.testing.assert_array_equal(other_encoded[source_padding], encoded[source_padding])
    decoded, other_decoded = (
        to_numpy(decoder(target, x, encoder_attention_mask=mask)) for x in (source, other)
    )
    np.testing.assert_array_equal(other_decoded, decoded)


@NORMS
def test_more_padding_changes_no_visible_output(normalize_first):
    block = encoder_block(normalize_first=normalize_first)
    expected = to_numpy(block(source))
    for amount in (1, 7):
        wide = np.concatenate([source, normal(B, amount, D)], axis=1)
        visible = np.arange(S + amount)[None, None] < S
        assert_close(to_numpy(block(wide, attention_mask=visible))[:, :S], expected, 1e-6)


@NORMS
def test_encoder_block_passes_the_layer_checks(normalize_first):
    config = {**SIZES, "value_dim": 3, "normalize_first": normalize_first, "activation": "gelu"}
    mask = np.broadcast_to(source_padding[:, None], (B, S, S)).copy()
    check_layer(
        EncoderBlock,
        {**config, "dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1},
        {"inputs": source, "attention_mask": mask},
        call={"return_attention_scores": True},
        no_gradient=["key/bias"],
    )


@NORMS
def test_decoder_block_passes_the_layer_checks(normalize_first):
    config = {**SIZES, "value_dim": 3, "normalize_first": normalize_first, "use_bias": False}
    check_layer(
        DecoderBlock,
        {**config, "dropout": 0.2},
        {"inputs": target, "encoder_output": source},
        call={"return_attention_scores": True},
    )


@pytest.mark.parametrize("make", [encoder_block, decoder_block])
@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_only_in_training(make, field):
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    inputs = [source] if make is encoder_block else [target, source]
    block, still = make(**{**quiet, field: 0.5}), make(**quiet)
    expected = to_numpy(still(*inputs))
    np.testing.assert_array_equal(to_numpy(block(*inputs, training=False)), expected)
    assert not np.allclose(to_numpy(block(*inputs, training=True)), expected)


def test_decoder_block_without_encoder_output_raises():
    with pytest.raises(ValueError, match="`encoder_output`.*Received: encoder_output=None"):
        decoder_block()(target)


@pytest.mark.parametrize(
    "make, inputs, argument, padding",
    [
        (encoder_block, [source], "attention_mask", source_padding),
        (decoder_block, [target, source], "attention_mask", target_padding),
        (decoder_block, [target, source], "encoder_attention_mask", source_padding),
    ],
    ids=["encoder", "decoder", "decoder to encoder"],
)
def test_padding_mask_as_attention_mask_raises(make, inputs, argument, padding):
    with pytest.raises(ValueError, match=f"`{argument}` must have 3 axes.*Received: {argument} "):
        make()(*inputs, **{argument: padding})
    make()(*inputs, **{argument: padding[:, None, :]})


@NORMS
def test_causal_encoder_of_unknown_length_never_sees_the_future(normalize_first):
    inputs = keras.Input((None, D))
    outputs = EncoderBlock(**SIZES, normalize_first=normalize_first)(inputs, use_causal_mask=True)
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
    block = encoder_block()
    both = source_padding[:, None] & np.tri(S, dtype=bool)
    expected = block(source, attention_mask=both, return_attention_scores=True)
    actual = block(
        source,
        attention_mask=source_padding[:, None],
        use_causal_mask=True,
        return_attention_scores=True,
    )
    for ours, explicit in zip(to_numpy(actual), to_numpy(expected), strict=True):
        np.testing.assert_array_equal(ours, explicit)


def test_subclass_exchanges_the_attention():
    class Unscaled(MultiHeadAttention):
        def attend(self, query, key, value, attention_mask=None, dropout=None):
            return scaled_dot_product_attention(
                query, key, value, attention_mask, scaled=False, dropout=dropout
            )

    class Block(DecoderBlock):
        self_attention_class = encoder_attention_class = Unscaled

    block, expected = Block(**SIZES), decoder_block()
    block(target, source)
    block.set_weights(expected.get_weights())
    for attention in (block.self_attention, block.encoder_attention):
        for weight in attention.query_dense.weights:
            weight.assign(weight * (D // N) ** -0.5)
    assert_close(to_numpy(block(target, source)), to_numpy(expected(target, source)), 1e-6)
