"""The layers in functional models of other authors: implicit masks."""

import re
import textwrap

import keras
import keras_hub
import numpy as np
import pytest

from keras_transformer import layers
from tests.builders import (
    HUB_NAMES,
    ROOT,
    assert_close,
    copy_weights,
    normal,
    padded_ids,
    randomize,
    to_numpy,
)

V = 50
SIZES = {"num_heads": 2, "key_dim": 8, "intermediate_dim": 32}
source, target = padded_ids([4, 4], V, seed=1), padded_ids([5, 5], V, seed=2)


def embedded(name):
    token_ids = keras.Input((None,), dtype="int32", name=name)
    return token_ids, keras.layers.Embedding(V, 16, mask_zero=True)(token_ids)


def two_towers(normalize_first):
    (source_ids, x), (target_ids, y) = embedded("source"), embedded("target")
    x = layers.EncoderBlock(**SIZES, normalize_first=normalize_first)(x)
    x = layers.FeedForward(intermediate_dim=16)(x)
    y = layers.DecoderBlock(**SIZES, normalize_first=normalize_first)(y, x)
    return randomize(keras.Model({"source": source_ids, "target": target_ids}, y))


@pytest.mark.parametrize("normalize_first, compiled", [(False, True), (True, False)])
def test_decoder_block_applies_the_implicit_masks_of_both_sides(normalize_first, compiled):
    model = two_towers(normalize_first)
    call = model.predict_on_batch if compiled else model
    expected = to_numpy(model({"source": source, "target": target}))
    padded = {
        "source": np.pad(source, [(0, 0), (0, 3)]),
        "target": np.pad(target, [(0, 0), (2, 0)]),
    }
    # The target is padded on the left, which the causal mask does not hide.
    assert_close(to_numpy(call(padded))[:, 2:], expected, 1e-6)


HUB_SIZES = {"intermediate_dim": 16, "num_heads": 2, "layer_norm_epsilon": 1e-5}
# Our layer and the one of Keras or KerasHub, which takes its masks from its inputs; names; inputs.
PEERS = {
    "attention": lambda: (
        layers.MultiHeadAttention(2, 8),
        keras.layers.MultiHeadAttention(2, 8),
        {"output/": "attention_output/"},
        2,
    ),
    "encoder": lambda: (
        layers.EncoderBlock(**HUB_SIZES),
        keras_hub.layers.TransformerEncoder(**HUB_SIZES),
        {**HUB_NAMES, "self_attention/": "self_attention_layer/"},
        1,
    ),
    "decoder": lambda: (
        layers.DecoderBlock(**HUB_SIZES),
        keras_hub.layers.TransformerDecoder(**HUB_SIZES),
        {**HUB_NAMES, "encoder_attention": "cross_attention"},
        2,
    ),
}


def masked_inputs(number):
    """Made anew for each call: `keras.layers.MultiHeadAttention` takes the masks off its inputs."""
    return [
        keras.layers.Masking()(
            np.where(np.arange(5)[:, None] < length, normal(2, 5, 16, seed=s), 0)
        )
        for s, length in [(1, 4), (2, 3)][:number]
    ]


# KerasHub's decoder passes its mask on to layers without masks.
@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask")
@pytest.mark.parametrize("name", PEERS)
def test_implicit_masks_mean_the_same_as_in_keras(name):
    """The average over the positions that the mask of the outputs keeps."""
    ours, peer, names, number = PEERS[name]()
    for layer in (ours, peer):
        layer(*masked_inputs(number))
    copy_weights(randomize(ours), peer, names)
    average = keras.layers.GlobalAveragePooling1D()
    actual, expected = (to_numpy(average(layer(*masked_inputs(number)))) for layer in (ours, peer))
    assert_close(actual, expected, 1e-5)
    unmasked = [keras.ops.copy(x) for x in masked_inputs(number)]
    assert not np.allclose(to_numpy(average(ours(*unmasked))), actual, atol=1e-3)


@pytest.mark.slow_on_jax
def test_padding_changes_no_logits_of_the_classifier_of_the_docs():
    page = (ROOT / "docs" / "pages" / "layers.md").read_text("utf-8")
    names, ids = {}, padded_ids([4, 2, 3], V).astype("int64")
    exec(textwrap.dedent(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]), names)
    model = randomize(names["classifier"])
    expected = to_numpy(model(ids))
    wider = np.pad(ids, [(0, 0), (0, 24)])
    assert_close(to_numpy(model(wider)), expected, 1e-5)
    assert_close(model.predict(wider, verbose=0), expected, 1e-5)
    for row, length in enumerate([4, 2, 3]):
        alone = to_numpy(model(ids[row : row + 1, :length]))
        assert_close(alone[0], expected[row], 1e-5)


@pytest.mark.parametrize(
    "layer_class, config",
    [
        (layers.EncoderBlock, SIZES),
        (layers.FeedForward, {"intermediate_dim": 8}),
        (layers.PositionalEncoding, {}),
    ],
)
def test_time_distributed_applies_a_layer_to_each_slice(layer_class, config):
    layer, slices, symbol = layer_class(**config), normal(2, 3, 5, 16), keras.Input((3, 5, 16))
    outputs = keras.layers.TimeDistributed(layer)(symbol)
    assert outputs.shape == (None, 3, 5, 16)
    expected = np.stack([to_numpy(layer(slices[:, n])) for n in range(3)], axis=1)
    assert_close(to_numpy(keras.Model(symbol, outputs)(slices)), expected, 1e-6)
