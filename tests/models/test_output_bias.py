"""A bias of the logits, wherever logits are computed without calling the model."""

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, TransformerConfig
from tests.builders import (
    assert_close,
    assert_same_in_a_fresh_process,
    new_transformer,
    padded_ids,
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
