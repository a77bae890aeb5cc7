"""An ensemble against enumeration with the mean probabilities of its models."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax

import keras_transformer as kt
from keras_transformer.decoding import Ensemble, SearchSettings, search_model
from keras_transformer.runs.load import load_run
from tests.builders import (
    new_transformer,
    padded_ids,
    randomize,
    to_numpy,
    token_inputs,
    tokenizer_fixture,
)
from tests.decoding.search_oracle import all_hypotheses

V, LENGTH, CASES = 7, 3, 200
PREFIXES = np.array(list(itertools.product(range(V), repeat=LENGTH - 1)), "int32")


def model(seed, vocabulary_size=V, **fields):
    one = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16}
    return randomize(new_transformer(vocabulary_size, **one | fields), seed)


def mean_probabilities(models, sources):
    """Of each next token after each of `PREFIXES`, float64 `(B, prefixes, LENGTH, V)`."""
    prefixes = np.tile(PREFIXES, (len(sources), 1))
    start = np.full((len(prefixes), 1), models[0].config.start_token_id, "int32")
    given = np.concatenate([start, prefixes], axis=1)
    inputs = token_inputs(np.repeat(sources, len(PREFIXES), axis=0), given)
    found = np.mean([softmax(np.float64(to_numpy(each(inputs))), axis=-1) for each in models], 0)
    return found.reshape(len(sources), len(PREFIXES), LENGTH, V)


def test_search_of_an_ensemble_is_enumeration_with_mean_probabilities():
    models = [model(seed, num_encoder_layers=1 + seed % 2) for seed in range(3)]
    sources = np.concatenate([padded_ids([4], V, seed=seed) for seed in range(CASES)])
    settings = SearchSettings(beam_size=V**2, max_length=LENGTH)
    found = search_model(Ensemble(models), sources, settings, n_best=3)
    for row, log_probs in enumerate(np.log(mean_probabilities(models, sources))):

        def after(tokens, log_probs=log_probs):
            first = sum(token * V ** (LENGTH - 2 - place) for place, token in enumerate(tokens))
            return log_probs[first, len(tokens)]

        expected = all_hypotheses(after, LENGTH, ("gnmt", 0.6))[:3]
        for rank, best in enumerate(expected):
            np.testing.assert_allclose(found.scores[row, rank], best.score, rtol=1e-5)
            length = found.lengths[row, rank]
            tokens = tuple(found.token_ids[row, rank, :length].tolist())
            assert (
                tokens == best.tokens
                or np.isclose(
                    best.score, [other.score for other in expected if other != best], rtol=1e-5
                ).any()
            )


class Sure:
    """Gives one token all the probability."""

    config = model(0).config
    compute_dtype = "float32"

    def __init__(self, token):
        self._token = token

    def __call__(self, inputs):
        return np.where(np.arange(V) == self._token, 0, -np.inf).astype("float32")


def test_token_that_one_model_rules_out_keeps_what_the_others_give_it():
    log_probs = to_numpy(Ensemble([Sure(3), Sure(3), Sure(5)])({}))
    np.testing.assert_allclose(np.exp(log_probs), [0, 0, 0, 2 / 3, 0, 1 / 3, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "models, message",
    [
        (lambda: [], "must have a model"),
        (lambda: [model(0), model(0, V + 1)], r"vocabulary_size=\[7, 8\]"),
        (lambda: [model(0), model(0, end_token_id=4)], r"end_token_id=\[2, 4\]"),
    ],
)
def test_models_of_other_vocabularies_are_refused(models, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(models())


tokenizer = tokenizer_fixture([["a house", "ein Haus"]], 270)


def test_translator_of_several_models_scores_and_attends_by_their_means(tokenizer):
    models = [model(seed, 270) for seed in range(2)]
    translators = [kt.Translator(each, tokenizer, max_length=5) for each in (*models, models)]
    (first, second, both) = (each.score(["a house"], ["ein Haus"])[0] for each in translators)
    one_step = np.exp([first.log_probs[0], second.log_probs[0]]).mean()
    np.testing.assert_allclose(np.exp(both.log_probs[0]), one_step, rtol=1e-5)
    (best,) = translators[2](["a house"], return_attention=True, n_best=1)[0]
    scores = np.asarray(best.attention.encoder_decoder)
    np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-5)
    frozen = kt.Translator(models, tokenizer, max_length=5, frozen=True)
    assert frozen(["a house"]) == translators[2](["a house"])


@pytest.mark.long
@pytest.mark.tensorflow_only
def test_saved_model_of_an_ensemble_translates_as_its_translator(tokenizer, tmp_path):
    import tensorflow as tf

    translator = kt.Translator([model(n, 270) for n in range(2)], tokenizer,
                               max_length=5)  # fmt: skip
    lines = ["a house", "", "house a"]
    served = tf.saved_model.load(kt.export_saved_model(translator, tmp_path / "served"))
    found = served.serve(tf.constant(lines))["translation"].numpy()
    assert [text.decode() for text in found] == translator(lines)


@pytest.mark.parametrize(
    ("runs", "model", "named"),
    [(["a", "b"], "c.keras", "`model` must be left out"), ([], None, "must have a model")],
)
def test_runs_that_are_no_ensemble_are_refused(runs, model, named):
    with pytest.raises(ValueError, match=named):
        load_run(runs, model)
