"""A bias of the logits, wherever logits are computed without calling the model."""

import json

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, TransformerConfig, load_model
from tests.builders import (
    assert_close,
    assert_same_in_a_fresh_process,
    new_transformer,
    padded_ids,
    rewrite_config,
    to_numpy,
    token_inputs,
)

INPUTS = token_inputs(padded_ids([5, 3], 50), padded_ids([4, 6], 50, seed=1))


@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_output_bias_is_added_to_the_logits(tie_embeddings):
    model = new_transformer(output_bias=True, tie_embeddings=tie_embeddings)
    logits, bias = to_numpy(model(INPUTS)), to_numpy(model.output_bias)
    hidden = to_numpy(model(INPUTS, return_hidden=True))
    expected = hidden @ to_numpy(model.output_kernel).T + bias
    assert_close(logits, expected, 1e-5)
    assert np.abs(bias).max() > 0.01
    step, _ = model.decode_step(
        INPUTS["decoder_token_ids"][:, :1], model.init_cache(INPUTS["encoder_token_ids"]), 0
    )
    assert_close(to_numpy(step), logits[:, :1], 1e-5)


def test_fused_loss_trains_an_output_bias_as_the_logits_do():
    model = new_transformer(output_bias=True, dropout=0.0)
    before, found = model.get_weights(), []
    labels = padded_ids([4, 6], 50, seed=2)
    for fused in (True, False):
        model.set_weights(before)
        model.compile(keras.optimizers.SGD(0.1), SmoothedCrossEntropy(0.1, ignore_class=0))
        model.fused_loss = fused
        logs = model.train_on_batch(INPUTS, labels, return_dict=True)
        found.append([np.array([float(logs["loss"])]), *map(to_numpy, model.weights)])
    for one, other, old in zip(*found, [np.zeros(1), *before], strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()
        if one.shape == (50,):
            assert np.abs(one - old).max() > 1e-4


def log_probs_without(excluded, hidden, kernel, bias):
    """Marian's softmax, which has no padding, in float64; -inf for padding."""
    logits = np.float64(hidden) @ np.float64(kernel).T + bias
    logits[..., excluded] = -np.inf
    return log_softmax(logits, axis=-1)


@pytest.mark.parametrize("tie_embeddings, pad", [("all", 0), ("none", 7), ("all", 49)])
def test_padding_may_have_no_share_of_the_softmax(tie_embeddings, pad, tmp_path):
    fields = {"pad_token_id": pad, "tie_embeddings": tie_embeddings}
    model = new_transformer(output_bias=True, predict_padding=False, **fields)
    logits, hidden = to_numpy(model(INPUTS)), to_numpy(model(INPUTS, return_hidden=True))
    bias = to_numpy(model.logits_layer.bias)
    expected = log_probs_without(pad, hidden, to_numpy(model.output_kernel), bias)
    found = log_softmax(np.float64(logits), axis=-1)
    others = np.arange(50) != pad
    assert_close(found[..., others], expected[..., others], 1e-6)
    assert (np.exp(found[..., pad]) == 0).all()
    product = hidden @ to_numpy(model.output_kernel).T
    assert_close((product + to_numpy(model.output_bias))[..., others], logits[..., others], 1e-5)
    for max_length in (None, 8):
        cache = model.init_cache(INPUTS["encoder_token_ids"], max_length)
        step = to_numpy(model.decode_step(INPUTS["decoder_token_ids"], cache, 0)[0])
        assert_close(step[..., others], logits[..., others], 1e-5)
        assert (step[..., pad] < -1e8).all()
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(to_numpy(loaded(INPUTS)), logits)


def test_file_of_a_version_without_these_fields_is_loaded(tmp_path):
    model = new_transformer()
    model.save(tmp_path / "new.keras")

    def remove_fields(config):
        config = json.loads(config)
        del config["config"]["config"]["first_position"]
        del config["config"]["config"]["predict_padding"]
        return json.dumps(config)

    rewrite_config(tmp_path / "new.keras", tmp_path / "old.keras", remove_fields)
    loaded = load_model(tmp_path / "old.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(to_numpy(loaded(INPUTS)), to_numpy(model(INPUTS)))


def test_training_leaves_padding_without_probability():
    """Padding is token 7. Both losses are the definition, and their updates are the same."""
    pad, labels = 7, padded_ids([4, 6], 50, seed=2)
    labels[labels == pad], labels[labels == 0] = 8, pad
    fields = {"pad_token_id": pad, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = new_transformer(output_bias=True, predict_padding=False, dropout=0.0, **fields)
    hidden = to_numpy(model(INPUTS, return_hidden=True))
    kernel, bias = to_numpy(model.output_kernel), to_numpy(model.logits_layer.bias)
    log_probs = np.delete(log_probs_without(pad, hidden, kernel, bias), pad, axis=-1)
    nll = -np.take_along_axis(log_probs, (labels - (labels > pad))[..., None], -1)[..., 0]
    losses = 0.9 * nll - 0.1 * log_probs.mean(-1)  # without dropout, R-Drop adds 0
    before, found = model.get_weights(), []
    for fused in (True, False):
        model.set_weights(before)
        loss = SmoothedCrossEntropy(0.1, ignore_class=pad)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=[TokenAccuracy(pad)])
        model.fused_loss, model.r_drop = fused, 2.0
        logs = model.train_on_batch(INPUTS, labels, return_dict=True)
        assert_close(float(logs["loss"]), losses[labels != pad].mean(), 1e-5)
        found.append([np.array([float(logs["accuracy"])]), *map(to_numpy, model.weights)])
        for updates in (0, 19):
            for _ in range(updates):
                model.train_on_batch(INPUTS, labels)
            logits = np.float64(to_numpy(model(INPUTS)))
            assert (np.exp(log_softmax(logits, axis=-1)[..., pad]) == 0).all()
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


@pytest.mark.slow
def test_model_with_output_bias_is_saved(tmp_path):
    model = new_transformer(output_bias=True)
    model.save(tmp_path / "model.keras")
    load = "import keras_transformer\nmodel = keras_transformer.load_model('{folder}/model.keras')"
    assert_same_in_a_fresh_process(model, INPUTS, load, tmp_path)


def test_start_may_be_padding_and_nothing_else():
    ids = {"pad_token_id": 9, "start_token_id": 9}
    config = TransformerConfig.tiny(10, **ids)
    assert config.forbidden_token_id == 9
    assert TransformerConfig.tiny(10).forbidden_token_id is None
    with pytest.raises(ValueError, match="but `start_token_id` may be `pad_token_id`"):
        TransformerConfig.tiny(10, start_token_id=2)
    with pytest.raises(ValueError, match="different ids"):
        TransformerConfig.tiny(10, pad_token_id=2)
