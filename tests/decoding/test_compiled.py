"""Searches compiled by XLA against the searches in the graph, which are proved elsewhere."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.decoding import keras_engine
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.model_search import compiled_shape, search_model
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import padded_ids, randomize
from tests.decoding.test_translator import LINES, make_translator

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def translator():
    return make_translator(**SIZES)


@pytest.mark.long
@pytest.mark.parametrize(
    "config, freezes, settings, n_best",
    [
        ({}, False, {"beam_size": 3, "suppressed_tokens": [5, 9, 2], "force_end": True}, 2),
        ({}, False, {"beam_size": 1, "alpha": -1.0, "length_penalty": "mean"}, 1),
        ({}, False, {"beam_size": 4, "stopping": "first_beams"}, 4),
        ({}, False, {"beam_size": 4, "length_ratio": 0.5, "length_penalty": None}, 3),
        ({}, False, {"beam_size": 2, "length_ratio": 3.0, "max_length": 5}, 1),
        ({"positions": "learned", "max_sequence_length": 11}, False, {"beam_size": 2}, 1),
        ({"tie_embeddings": "none"}, True, {"beam_size": 2}, 1),
    ],
)
def test_compiled_search_is_the_search_in_the_graph(config, freezes, settings, n_best):
    model = randomize(Transformer(TransformerConfig.tiny(80, **SIZES, **config)), seed=1)
    model = FrozenTransformer(model) if freezes else model
    settings = SearchSettings(**({"extra_length": 7} | settings))
    sources = padded_ids([10, 0, 6], 80)
    shape = compiled_shape(*sources.shape, settings, model.config)
    for rows in (sources, sources[-1:, :9]):
        found = search_model(model, rows, settings, n_best, shape=shape)
        expected = search_model(model, rows, settings, n_best)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_translations_are_the_same_and_follow_training(translator):
    in_graph = Translator(translator.model, translator.source_tokenizer, extra_length=6)
    by_xla = copy.copy(in_graph)
    by_xla.warm_up(source_lengths=[24], batch_sizes=[4])  # those of the longest lines
    for seed in (4, 3):
        randomize(translator.model, seed=seed)
        expected = in_graph(LINES, batch_sentences=4)
        assert by_xla(LINES, batch_sentences=4) == expected and any(expected)


@pytest.mark.long
def test_only_what_was_asked_for_is_compiled(translator, monkeypatch):
    shapes = []

    def search(model, source, settings, *rest, shape):
        shapes.append(shape)
        return search_model(model, source, settings, *rest)

    monkeypatch.setattr(keras_engine, "search_model", search)
    one = copy.copy(translator)
    one.warm_up(source_lengths=[5, 8, 13], beam_size=3)
    assert len(shapes) == 2, "5 and 8 are padded to the same length"
    one("two", beam_size=3)
    assert shapes.pop() in shapes
    for options in ({}, {"n_best": 2, "beam_size": 3}, {"target_prefix": "one", "beam_size": 3}):
        one("two", **options)
    one(["two"] * 3, beam_size=3)
    assert shapes[2:] == [None] * 4


@pytest.mark.parametrize(
    "shape, settings",
    [((9, 8), {}), ((1, 129), {}), ((1, 8), {"extra_length": 600})]
    + [((1, 8), {"processors": (suppress_tokens([5]),)})],
)
def test_other_searches_are_not_compiled(translator, shape, settings):
    with pytest.raises(ValueError, match="at most 8 lines of at most 128 tokens.*Received"):
        compiled_shape(*shape, SearchSettings(**settings), translator.model.config)


def test_searches_of_a_model_of_languages_are_not_compiled(translator):
    engine = copy.copy(translator.engine)
    engine.tokenizers = (SimpleNamespace(language_ids={"en": 5}),) * 2
    with pytest.raises(ValueError, match="tokens of languages are compiled on JAX alone"):
        engine.compile([8], [1], SearchSettings(), 1)


class Changed:
    """A model with another method."""

    compute_dtype = "float32"

    def __init__(self, model, **methods):
        self.config, self.init_cache, self.decode_step = (
            methods.get(name, getattr(model, name))
            for name in ("config", "init_cache", "decode_step")
        )


@pytest.mark.long
def test_rows_that_fill_a_batch_cannot_fail_it(translator):
    def init_cache(source, **options):
        """The states of an empty source are NaN."""
        cache = translator.model.init_cache(source, **options)
        is_empty = tf.reduce_all(source == 0, axis=1)[:, None, None, None]
        for block in cache["blocks"]:
            block["encoder"] = tf.nest.map_structure(
                lambda states: tf.where(is_empty, np.nan, states), block["encoder"]
            )
        return cache

    settings, sources = SearchSettings(extra_length=3), np.array([[5, 6, 2]] * 3)
    fragile = Changed(translator.model, init_cache=init_cache)
    shape = compiled_shape(3, 3, settings, fragile.config)
    assert shape[0] == 4
    assert search_model(fragile, sources, settings, shape=shape).lengths.min() > 0


@pytest.mark.long
def test_model_with_nan_weights_raises_as_in_the_graph():
    translator = make_translator(**SIZES)
    weight = translator.model.decoder.embedding.embeddings
    weight.assign(np.full(weight.shape, np.nan))
    for source_lengths in ([], [8]):
        translator.warm_up(source_lengths, beam_size=1)
        with pytest.raises(ValueError, match="logits must not be NaN"):
            translator("two", beam_size=1)
