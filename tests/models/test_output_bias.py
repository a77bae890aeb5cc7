"""A bias of the logits, wherever logits are computed without calling the model."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, load_model
from tests.builders import (
    assert_close,
    new_transformer,
    padded_ids,
    to_numpy,
    token_inputs,
)

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
INPUTS = token_inputs(padded_ids([5, 3], 50), padded_ids([4, 6], 50, seed=1))


def log_probs_without(excluded, hidden, kernel, bias):
    """Marian's softmax, which has no padding, in float64; -inf for padding."""
    logits = np.float64(hidden) @ np.float64(kernel).T + bias
    if excluded is not None:
        logits[..., excluded] = -np.inf
    return log_softmax(logits, axis=-1)


@pytest.mark.parametrize("tie_embeddings, pad", [("all", None), ("none", 7), ("all", 49)])
def test_bias_is_added_and_padding_may_have_no_share_of_the_softmax(tie_embeddings, pad, tmp_path):
    fields = SMALL | {"output_bias": True, "tie_embeddings": tie_embeddings}
    if pad is not None:
        fields |= {"pad_token_id": pad, "predict_padding": False}
    model = new_transformer(**fields)
    logits, hidden = to_numpy(model(INPUTS)), to_numpy(model(INPUTS, return_hidden=True))
    bias = to_numpy(model.logits_layer.bias)
    assert np.abs(bias).max() > 0.01
    expected = log_probs_without(pad, hidden, to_numpy(model.output_kernel), bias)
    found = log_softmax(np.float64(logits), axis=-1)
    others = np.arange(50) != (-1 if pad is None else pad)
    assert_close(found[..., others], expected[..., others], 1e-6)
    assert (np.exp(found[..., ~others]) == 0).all()
    product = hidden @ to_numpy(model.output_kernel).T
    assert_close((product + to_numpy(model.output_bias))[..., others], logits[..., others], 1e-5)
    for max_length in (None, 8):
        cache = model.init_cache(INPUTS["encoder_token_ids"], max_length)
        step = to_numpy(model.decode_step(INPUTS["decoder_token_ids"], cache, 0)[0])
        assert_close(step[..., others], logits[..., others], 1e-5)
        assert (step[..., ~others] < -1e8).all()
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(to_numpy(loaded(INPUTS)), logits)


def test_training_leaves_padding_without_probability():
    """Padding is token 7. Both losses are the definition, and their updates are the same."""
    pad, labels = 7, padded_ids([4, 6], 50, seed=2)
    labels[labels == pad], labels[labels == 0] = 8, pad
    fields = SMALL | {"pad_token_id": pad, "dropout": 0.0}
    model = new_transformer(output_bias=True, predict_padding=False, **fields)
    hidden = to_numpy(model(INPUTS, return_hidden=True))
    kernel, bias = to_numpy(model.output_kernel), to_numpy(model.logits_layer.bias)
    log_probs = np.delete(log_probs_without(pad, hidden, kernel, bias), pad, axis=-1)
    nll = -np.take_along_axis(log_probs, (labels - (labels > pad))[..., None], -1)[..., 0]
    losses = 0.9 * nll - 0.1 * log_probs.mean(-1)  # without dropout, R-Drop adds 0
    before, found = model.get_weights(), []
    for fused in (True, False):
        model.set_weights(before)
        loss = SmoothedCrossEntropy(0.1, ignore_class=pad)
        how = {"run_eagerly": True} if keras.config.backend() == "tensorflow" else {}
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=[TokenAccuracy(pad)], **how)
        model.fused_loss, model.r_drop = fused, 2.0
        logs = model.train_on_batch(INPUTS, labels, return_dict=True)
        assert_close(float(logs["loss"]), losses[labels != pad].mean(), 1e-5)
        found.append([np.array([float(logs["accuracy"])]), *map(to_numpy, model.weights)])
        for updates in (0, 3):
            for _ in range(updates):
                model.train_on_batch(INPUTS, labels)
            logits = np.float64(to_numpy(model(INPUTS)))
            assert (np.exp(log_softmax(logits, axis=-1)[..., pad]) == 0).all()
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()
