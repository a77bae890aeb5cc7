"""A bias of the logits, wherever logits are computed without calling the model."""

import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import load_model
from tests.builders import (
    assert_close,
    new_transformer,
    padded_ids,
    to_numpy,
    token_inputs,
)

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
INPUTS = token_inputs(padded_ids([5, 3], 50), padded_ids([4, 6], 50, seed=1))


@pytest.mark.parametrize("tie_embeddings, pad", [("all", None), ("none", 7), ("all", 49)])
def test_bias_is_added_and_padding_may_have_no_share_of_the_softmax(tie_embeddings, pad, tmp_path):
    fields = SMALL | {"output_bias": True, "tie_embeddings": tie_embeddings}
    if pad is not None:
        fields |= {"pad_token_id": pad, "predict_padding": False}
    model = new_transformer(**fields)
    logits, hidden = to_numpy(model(INPUTS)), to_numpy(model(INPUTS, return_hidden=True))
    bias = to_numpy(model.logits_layer.bias)
    assert np.abs(bias).max() > 0.01
    others = np.arange(50) != (-1 if pad is None else pad)
    expected = np.float64(hidden) @ np.float64(to_numpy(model.output_kernel)).T + bias
    expected[..., ~others] = -np.inf  # the softmax of Marian has no padding
    expected = log_softmax(expected, axis=-1)
    found = log_softmax(np.float64(logits), axis=-1)
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
