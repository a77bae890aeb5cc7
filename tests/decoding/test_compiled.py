"""Searches compiled by XLA against the searches in the graph, which are proved elsewhere."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.decoding import compiled
from keras_transformer.decoding import translator as translator_module
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.model_search import search_model
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import randomize
from tests.decoding.test_translator import LINES, make_translator

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return make_translator(tmp_path_factory.mktemp("tokenizer") / "numbers.model", **SIZES)


def with_mode(translator, mode):
    """A translator of the same model."""
    tokenizer = translator.source_tokenizer
    return Translator(translator.model, tokenizer, compiled=mode, extra_length=6)


def random_sources(count, length, vocabulary_size, seed):
    """Padded rows of different lengths; the first is as long as possible, one is empty."""
    rng = np.random.default_rng(seed)
    lengths = [length, 0, *rng.integers(2, length + 1, count)][:count]
    rows = np.zeros((count, length), "int32")
    for row, size in zip(rows, lengths, strict=True):
        row[: max(size - 1, 0)] = rng.integers(4, vocabulary_size, max(size - 1, 0))
        row[size - 1 : size] = 2
    return rows


LONG = pytest.mark.long
NO_END = {"count_end_token": False}


@pytest.mark.parametrize(
    "config, freezes, settings, n_best, count, length",
    [
        ({}, False, {"beam_size": 3, "suppressed_tokens": [5, 9, 2], "force_end": True}, 2, 4, 7),
        *(
            pytest.param(config, freezes, settings, n_best, 3, 10, marks=LONG)
            for config, freezes, settings, n_best in [
                ({}, False, {"beam_size": 1, "alpha": -1.0, "length_penalty": "mean"}, 1),
                ({}, False, {"beam_size": 4, "stopping": "first_beams", **NO_END}, 4),
                ({}, False, {"beam_size": 4, "length_ratio": 0.5, "length_penalty": None}, 3),
                ({}, False, {"beam_size": 2, "length_ratio": 3.0, "max_length": 5}, 1),
                ({"positions": "learned", "max_sequence_length": 11}, False, {"beam_size": 2}, 1),
                ({"tie_embeddings": "none"}, True, {"beam_size": 2}, 1),
            ]
        ),
    ],
)
def test_compiled_search_is_the_search_in_the_graph(
    config, freezes, settings, n_best, count, length
):
    model = randomize(Transformer(TransformerConfig.tiny(80, **SIZES, **config)), seed=1)
    model = FrozenTransformer(model) if freezes else model
    settings = SearchSettings(**({"extra_length": 7} | settings))
    sources = random_sources(count, length, 80, seed=length)
    shape = compiled.CompiledSearches(model, True).for_call(settings, n_best, False)(sources.shape)
    for rows in (sources, sources[-1:, : length - 1]):
        found = search_model(model, rows, settings, n_best, shape=shape)
        expected = search_model(model, rows, settings, n_best)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_translations_are_the_same_in_both_modes_and_follow_training(translator):
    in_graph, by_xla = with_mode(translator, False), with_mode(translator, True)
    for seed in (4, 3):
        randomize(translator.model, seed=seed)
        expected = in_graph(LINES)
        assert by_xla(LINES) == expected and any(expected)


@pytest.fixture
def made(monkeypatch):
    """The keys of searches that are compiled, without the seconds that it takes."""
    keys = []

    def compile_nothing(model, source, settings, n_best, shape):
        keys.append((settings, n_best, *shape))

    def search_in_the_graph(*arguments, shape):
        return search_model(*arguments)

    monkeypatch.setattr(compiled, "search_model", compile_nothing)
    monkeypatch.setattr(translator_module, "search_model", search_in_the_graph)
    return keys


@pytest.mark.long
def test_second_request_of_a_shape_compiles_it(translator, made):
    auto = with_mode(translator, "auto")
    translations = [auto("seven hundred and one", beam_size=1) for _ in range(3)]
    assert len(set(translations)) == 1 and len(made) == 1
    longer = "seven hundred and one twelve thousand and ninety-nine"
    assert auto(longer, beam_size=1) and len(made) == 1, "another shape"
    assert auto(longer, beam_size=1) and len(made) == 2
    auto(["two"] * 4, batch_sentences=1, beam_size=2)
    assert len(made) == 2, "a call of many batches is one request"
    auto(["two"] * 4, batch_sentences=1, beam_size=2)
    assert len(made) == 3
    for _ in range(2):
        auto(LINES * 2, beam_size=1)
    assert len(made) == 3, "larger batches stay in the graph"
    auto.warm_up(source_lengths=[5, 8, 13], batch_sizes=[1], beam_size=3)
    assert len(made) == 5, "5 and 8 are padded to the same length"
    auto("two", beam_size=3)
    assert len(made) == 5


@pytest.mark.long
def test_processors_prefixes_and_bfloat16_stay_in_the_graph(translator, made):
    by_xla = with_mode(translator, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_xla("two", processors=(suppress_tokens([5]),))
        by_xla("two", target_prefix="one")
        with pytest.raises(ValueError, match="n_best"):
            by_xla("two", n_best=5)
    bfloat16 = Translator(translator.model, translator.source_tokenizer, dtype="bfloat16")
    assert bfloat16("two", max_length=3) == bfloat16("two", max_length=3) and made == []
    with pytest.raises(ValueError, match="compiled='auto'.*not float32"):
        bfloat16.warm_up()


class Changed:
    """A model with another method."""

    compute_dtype = "float32"

    def __init__(self, model, **methods):
        self.config, self.init_cache, self.decode_step = (
            methods.get(name, getattr(model, name))
            for name in ("config", "init_cache", "decode_step")
        )


@LONG
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
    shape = compiled.CompiledSearches(fragile, True).for_call(settings, 1, False)((3, 3))
    assert shape[0] == 4
    assert search_model(fragile, sources, settings, shape=shape).lengths.min() > 0


def test_search_that_xla_cannot_compile_stays_in_the_graph_with_one_warning(translator):
    def decode_step(*args, **kwargs):
        """It calls Python, which XLA cannot."""
        logits, cache = translator.model.decode_step(*args, **kwargs)
        called = tf.py_function(lambda tensor: tensor, [logits], tf.float32)
        return tf.ensure_shape(called, logits.shape), cache

    searches = compiled.CompiledSearches(Changed(translator.model, decode_step=decode_step), True)
    settings = SearchSettings(extra_length=3)
    with pytest.warns(UserWarning, match="XLA cannot compile.*compiled=False"):
        assert searches.for_call(settings, 1, False)((1, 5)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert searches.for_call(settings, 1, False)((1, 5)) is None


@pytest.mark.long
def test_model_with_nan_weights_raises_as_in_the_graph(tmp_path):
    translator = make_translator(tmp_path / "numbers.model", **SIZES)
    weight = translator.model.decoder.embedding.embeddings
    weight.assign(np.full(weight.shape, np.nan))
    for mode in (False, True):
        with pytest.raises(ValueError, match="logits must not be NaN"):
            with_mode(translator, mode)("two", beam_size=1)


def test_number_of_compiled_shapes_is_bounded(translator, made):
    """Shapes, settings and lengths of all kinds: what is kept does not grow without end."""
    searches = compiled.CompiledSearches(translator.model, "auto")
    rng = np.random.default_rng(0)
    for _ in range(5_000):
        settings = SearchSettings(
            beam_size=int(rng.integers(1, 9)), extra_length=int(rng.integers(0, 400))
        )
        searches.for_call(settings, 1, False)((rng.integers(1, 10), rng.integers(1, 140)))
    assert 0 < len(made) <= 16


@LONG
def test_many_threads_get_their_own_translations_while_one_compiles(translator):
    auto, in_graph = with_mode(translator, "auto"), with_mode(translator, False)
    works = ["one", "two", "six", "ten", "nine"] * 2
    expected = dict(zip(works[:5], in_graph(works[:5]), strict=True))
    barrier = threading.Barrier(len(works))

    def translate(work):
        barrier.wait()
        return {auto(work) for _ in range(15)}

    with ThreadPoolExecutor(len(works)) as threads:
        found = list(threads.map(translate, works))
    assert found == [{expected[work]} for work in works]


@pytest.mark.parametrize("mode", ["always", None, 3])
def test_unknown_mode_is_named(translator, mode):
    with pytest.raises(ValueError, match="`compiled` must be.*Received"):
        with_mode(translator, mode)
