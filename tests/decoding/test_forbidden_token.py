"""A model that starts with padding never generates it; the processor for it is the reference."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from keras_transformer.decoding.compiled import compile_search
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.model_search import search_model
from keras_transformer.decoding.processors import force_end, suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import new_transformer, padded_ids, token_inputs

pytestmark = pytest.mark.tensorflow_only
SPECIAL = {"pad_token_id": 9, "end_token_id": 0, "unk_token_id": 1}


@pytest.fixture(scope="module")
def models():
    """The same weights, starting with padding, and with another token whose weights are equal."""
    starting = new_transformer(60, start_token_id=9, output_bias=True, **SPECIAL)
    bias = np.zeros(60, "float32")
    bias[9] = 3.0  # padding is often the most probable token
    starting.logits_layer.bias.assign(bias)
    other = new_transformer(60, start_token_id=8, output_bias=True, **SPECIAL)
    other.set_weights(starting.get_weights())
    embeddings = starting.encoder.embedding.embeddings.numpy()
    embeddings[8] = embeddings[9]
    for model in (starting, other):
        model.encoder.embedding.embeddings.assign(embeddings)
    return starting, other


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("prefix", [None, [[5, 6]]])
def test_forbidden_token_is_as_suppressed(models, beam_size, prefix):
    starting, other = models
    source = tf.constant(np.where(padded_ids([7], 60) == 9, 10, padded_ids([7], 60)))
    rules = {"beam_size": beam_size, "max_length": 8}
    prefix = None if prefix is None else tf.constant(prefix)
    found = search_model(starting, source, SearchSettings(**rules), target_prefix=prefix)
    settings = SearchSettings(**rules, processors=[suppress_tokens([9])])
    expected = search_model(other, source, settings, target_prefix=prefix)
    assert 9 not in found.token_ids.numpy()[:, :, : int(found.lengths.numpy().max())]
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_settings_are_as_processors_and_a_prefix_is_as_given(models, beam_size):
    """The prefix has a suppressed token."""
    rules = {"beam_size": beam_size, "max_length": 5}
    source, prefix = tf.constant(padded_ids([7, 4], 60)), tf.constant([[5, 6], [7, 9]])
    constraints = [suppress_tokens([6, 7, 11]), force_end(5, SPECIAL["end_token_id"])]
    settings = SearchSettings(**rules, suppressed_tokens=[6, 7, 11], force_end=True)
    found = search_model(models[0], source, settings, target_prefix=prefix)
    settings = SearchSettings(**rules, processors=constraints)
    expected = search_model(models[0], source, settings, target_prefix=prefix)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_array_equal(found.token_ids[0, 0, :2], [5, 6])


@pytest.mark.slow
def test_compiled_search_has_the_same_forbidden_token(models):
    starting, _ = models
    source = tf.constant(padded_ids([7], 60))
    settings = SearchSettings(beam_size=3, max_length=8)
    expected = search_model(starting, source, settings)
    compiled = compile_search(starting, settings.graph_settings, 1, 1, 8, 16)
    values = tuple(tf.constant(v, d) for v, d in zip(settings.runtime_values, DTYPES, strict=True))
    found = compiled(values, source)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("form", ["model", "frozen", pytest.param("xla", marks=pytest.mark.slow)])
def test_scores_are_of_the_softmax_without_padding(form):
    fields = {"positions": "tensor2tensor", "first_position": 1, "output_bias": True, **SPECIAL}
    model = new_transformer(60, start_token_id=8, predict_padding=False, **fields)
    source = tf.constant(np.where(padded_ids([7], 60) == 9, 10, padded_ids([7], 60)))
    settings = SearchSettings(beam_size=3, max_length=8, length_penalty=None)
    if form == "xla":
        values = settings.runtime_values
        values = tuple(tf.constant(v, d) for v, d in zip(values, DTYPES, strict=True))
        found = compile_search(model, settings.graph_settings, 1, 1, 8, 16)(values, source)
    else:
        found = search_model(
            FrozenTransformer(model) if form == "frozen" else model, source, settings
        )
    tokens = found.token_ids.numpy()[0, 0, : int(found.lengths.numpy()[0, 0])]
    given = tf.constant([[8, *tokens[:-1]]])
    hidden = model(token_inputs(source, given), return_hidden=True)
    logits = hidden.numpy()[0] @ model.output_kernel.numpy().T + model.logits_layer.bias.numpy()
    log_probs = log_softmax(np.delete(np.float64(logits), 9, axis=1), axis=-1)
    expected = log_probs[np.arange(len(tokens)), tokens - (tokens > 9)].sum()
    np.testing.assert_allclose(found.scores.numpy()[0, 0], expected, rtol=1e-5)


DTYPES = tf.float32, tf.float64, tf.int32, tf.int32
