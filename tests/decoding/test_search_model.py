"""Searches with a model, on every backend, against its full pass over whole prefixes."""

import copy
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer.decoding.frozen import copy_model
from keras_transformer.decoding.model_search import search_model
from keras_transformer.decoding.processors import force_end, suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import new_transformer, padded_ids, randomize, to_numpy, token_inputs

END, V = 2, 60
# The ids of Marian's models: they start with padding, which no translation has.
MARIAN = {"pad_token_id": 9, "start_token_id": 9, "end_token_id": 0, "unk_token_id": 1}
RULES = {"beam_size": 3, "extra_length": 3}


@functools.cache
def model(**overrides):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    return new_transformer(V, **sizes, **overrides)


def sources():
    """Of different lengths, with end tokens; one is empty."""
    ids = padded_ids([7, 4, 0, 7, 2], V)
    lengths = np.count_nonzero(ids, axis=1)
    ids[np.arange(5), np.maximum(lengths - 1, 0)] = np.where(lengths > 0, END, 0)
    return ids


def found_by(made, ids, n_best=1, target_prefix=None, **settings):
    settings = SearchSettings(**{**RULES, **settings})
    return search_model(made, ids, settings, n_best, target_prefix)


def log_probs_of(made, source, tokens, excluded=None):
    """Float64 log-probs of each next token `(T, V)`, by a teacher-forced pass."""
    given = np.zeros((1, 16), "int32")  # of one length: JAX compiles each
    given[0, : len(tokens) + 1] = made.config.start_token_id, *tokens
    logits = np.float64(to_numpy(made(token_inputs(source[None], given)))[0, : len(tokens) + 1])
    if excluded is not None:
        logits[:, excluded] = -np.inf
    return log_softmax(logits, axis=-1)


def test_greedy_search_takes_the_best_token_of_the_full_pass():
    found = found_by(model(), sources(), beam_size=1)
    assert found.lengths[2] == 0 and len({*found.lengths.ravel().tolist()}) > 2
    best = found.token_ids[:, 0], found.lengths[:, 0]
    for source, tokens, length in zip(sources(), *best, strict=True):
        expected = log_probs_of(model(), source, tokens[:length])[:-1].argmax(axis=-1)
        assert tokens[:length].tolist() == expected.tolist()
        assert length == 0 or tokens[length - 1] == END or length == np.count_nonzero(source) + 2


@pytest.mark.backends("jax")
def test_wide_integers_of_jax_change_nothing():
    import jax

    expected = found_by(model(), sources())
    with jax.enable_x64(True):
        found = found_by(copy_model(model()), sources())
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.slow_on_jax  # by this mark, --long runs it
@pytest.mark.backends("jax")
def test_searches_of_a_model_of_languages_are_compiled_ahead(translator, monkeypatch):
    """Of a source of 8 tokens and that of its language, without a prefix."""
    engine = copy.copy(translator.engine)
    engine.tokenizers = (SimpleNamespace(language_ids={"en": 5, "de": 6}),) * 2
    settings, end = SearchSettings(**RULES), engine.config.end_token_id
    engine.compile([8], [1], settings, 1)
    monkeypatch.delattr("keras_transformer.decoding.loop_jax._compile")
    source, no_prefix = np.array([[5, *range(10, 17), end]]), np.zeros((1, 0), "int32")
    found = engine.search(source, no_prefix, settings, 1, np.array([[6]]))
    assert 1 <= found.lengths.item() <= 7 + RULES["extra_length"]


@pytest.mark.parametrize(
    "stopping", ["exhaustive", pytest.param("first_beams", marks=pytest.mark.long)]
)
def test_hypotheses_have_the_scores_of_the_full_pass_in_every_batch(stopping):
    found = found_by(model(), sources(), 3, stopping=stopping)
    for row, source in enumerate(sources()):
        alone = found_by(model(), source[None], 3, stopping=stopping)
        np.testing.assert_allclose(alone.scores[0], found.scores[row], rtol=1e-5)
        for tokens, length, score in zip(*(each[row] for each in found[:3]), strict=True):
            if length:
                log_probs = log_probs_of(model(), source, tokens[:length])
                total = log_probs[np.arange(length), tokens[:length]].sum()
                np.testing.assert_allclose(score, total / ((5 + length) / 6) ** 0.6, rtol=1e-4)


@pytest.mark.slow_on_jax  # by this mark, --long runs it on JAX
@pytest.mark.long
@pytest.mark.parametrize(
    "beam_size, suppressed",
    [(3, [6, 7, 11]), (1, [6, 7, 11]), (3, [6, 7, 11, *range(20, V)])],
    ids=["beam", "greedy", "many"],
)
def test_settings_are_as_processors_and_a_prefix_is_as_given(beam_size, suppressed):
    """The prefixes have suppressed tokens, and differ in length."""
    rules = {
        "beam_size": beam_size,
        "max_length": 5,
        "extra_length": 9,
        "target_prefix": [[5, 6]] * 4 + [[7, 0]],
    }
    constraints = [suppress_tokens(suppressed), force_end(5, END)]
    found = found_by(model(), sources(), suppressed_tokens=suppressed, force_end=True, **rules)
    expected = found_by(model(), sources(), processors=constraints, **rules)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert found.token_ids[0, 0, :2].tolist() == [5, 6] and found.token_ids[4, 0, 0] == 7
    for row, prefix in zip(found.token_ids, rules["target_prefix"], strict=True):
        assert not np.isin(row[:, np.count_nonzero(prefix) :], suppressed).any()


def test_search_follows_the_weights():
    made = new_transformer(V, num_encoder_layers=1, num_decoder_layers=1)
    before = found_by(made, sources())
    randomize(made, seed=5)
    after = found_by(made, sources())
    randomize(made, seed=0)
    assert before.token_ids.tolist() != after.token_ids.tolist()
    assert found_by(made, sources()).token_ids.tolist() == before.token_ids.tolist()
    for block in made.decoder.blocks:
        block.enable_lora(2)  # it adds weights
    made.decoder.embedding.train_last_rows(3)  # it adds one too
    randomize(made, seed=5)
    adapted = found_by(made, sources())
    np.testing.assert_allclose(adapted.scores, found_by(copy_model(made), sources()).scores, 1e-5)
    assert adapted.scores.tolist() != after.scores.tolist()


def test_sentences_without_numbers_raise():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "tie_embeddings": "none"}
    made, ids = new_transformer(V, **sizes), sources()
    embeddings = to_numpy(made.encoder.embedding.embeddings)
    embeddings[next(token for token in ids[0] if token not in ids[1:])] = np.nan
    made.encoder.embedding.embeddings.assign(embeddings)
    with pytest.raises(ValueError, match="logits must not be NaN"):
        found_by(made, ids)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "beam_size, target_prefix", [pytest.param(1, None, marks=pytest.mark.long), (3, [[5, 6]])]
)
def test_model_that_starts_with_padding_never_generates_it(beam_size, target_prefix):
    """Its log-probs are those of the softmax over all tokens, or over all but padding."""
    for predicts_padding in (True, False):
        options = {"output_bias": True, "predict_padding": predicts_padding}
        made = new_transformer(V, num_encoder_layers=1, num_decoder_layers=1, **MARIAN, **options)
        bias = np.zeros(V, "float32")
        bias[9] = 3.0  # padding is often the most probable token
        made.logits_layer.bias.assign(bias)
        source = np.where(padded_ids([7], V) == 9, 10, padded_ids([7], V))
        rules = {"beam_size": beam_size, "length_penalty": None}
        found = found_by(made, source, target_prefix=target_prefix, **rules)
        tokens = found.token_ids[0, 0, : found.lengths[0, 0]]
        assert 9 not in tokens and found.lengths[0, 0] > 2
        log_probs = log_probs_of(made, source[0], tokens, None if predicts_padding else 9)
        expected = log_probs[np.arange(len(tokens)), tokens].sum()
        np.testing.assert_allclose(found.scores[0, 0], expected, rtol=1e-4)
        if beam_size == 1 and target_prefix is None:
            log_probs[:, 9] = -np.inf
            assert tokens.tolist() == log_probs[:-1].argmax(axis=-1).tolist()
