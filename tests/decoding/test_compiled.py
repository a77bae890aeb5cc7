"""Searches compiled by XLA against the searches in the graph, which are proved elsewhere."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.decoding import compiled
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.model_search import runtime_inputs, search_model
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import randomize
from tests.decoding.test_translator import LINES, make_translator

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return make_translator(tmp_path_factory.mktemp("tokenizer") / "numbers.model")


def with_mode(translator, mode):
    """A translator of the same model; `_compiled` counts what it compiles."""
    settings = {"extra_length": translator.settings.extra_length}
    return type(translator)(
        translator.model, translator.source_tokenizer, compiled=mode, **settings
    )


def random_sources(count, length, vocabulary_size, seed):
    """Padded rows of different lengths; the first is as long as possible, one is empty."""
    rng = np.random.default_rng(seed)
    lengths = [length, 0, *rng.integers(2, length + 1, count)][:count]
    rows = np.zeros((count, length), "int32")
    for row, size in zip(rows, lengths, strict=True):
        row[: max(size - 1, 0)] = rng.integers(4, vocabulary_size, max(size - 1, 0))
        row[size - 1 : size] = 2
    return tf.constant(rows)


@pytest.mark.parametrize(
    ("settings", "n_best", "count", "length"),
    [
        ({"beam_size": 1, "alpha": -1.0, "length_penalty": "mean"}, 1, 7, 13),
        ({"beam_size": 4, "length_ratio": 0.5, "extra_length": 3}, 3, 5, 20),
        ({"beam_size": 3, "length_penalty": None}, 3, 8, 9),
        ({"beam_size": 4, "stopping": "first_beams", "count_end_token": False}, 4, 3, 9),
        ({"beam_size": 2, "length_ratio": 3.0, "max_length": 5}, 1, 1, 6),
        ({"beam_size": 3, "suppressed_tokens": [5, 9, 2], "force_end": True}, 2, 4, 7),
        ({"beam_size": 1, "suppressed_tokens": [5, 9], "force_end": True}, 1, 4, 7),
    ],
)
def test_compiled_search_is_the_search_in_the_graph(translator, settings, n_best, count, length):
    check_compiled_search(translator.model, settings, n_best, count, length)


@pytest.mark.parametrize(
    "config, freeze",
    [
        ({"positions": "learned", "max_sequence_length": 11}, lambda model: model),
        ({"tie_embeddings": "none"}, FrozenTransformer),
    ],
    ids=["learned positions", "no tied embeddings, frozen"],
)
def test_compiled_search_of_other_models(config, freeze):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}
    model = randomize(Transformer(TransformerConfig.tiny(30, **sizes, **config)), seed=1)
    check_compiled_search(freeze(model), {"beam_size": 2}, 1, 3, 10)


def check_compiled_search(model, settings, n_best, count, length):
    settings = SearchSettings(**({"extra_length": 7} | settings))
    sources = random_sources(count, length, model.config.vocabulary_size, seed=length)
    searches = compiled.CompiledSearches(model, True)
    found = searches.for_call(settings, n_best, False)(sources.shape)
    for rows in (sources, sources[:1], sources[-1:, : length - 1]):
        values = runtime_inputs(settings)
        expected = search_model(model, rows, settings, values, n_best)
        for one, other in zip(found(values, rows), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_translations_are_the_same_in_both_modes_and_follow_training(translator):
    in_graph, by_xla = with_mode(translator, False), with_mode(translator, True)
    for seed in (3, 4):
        randomize(translator.model, seed=seed)
        for beam_size in (1, 4):
            for lines in (LINES, LINES[:1]):
                expected = in_graph(lines, beam_size=beam_size)
                assert by_xla(lines, beam_size=beam_size) == expected
                assert any(expected)
    randomize(translator.model, seed=3)
    assert ready(by_xla) > 0 and ready(in_graph) == 0


def ready(translator):
    return len(translator._compiled._ready)


def test_second_request_of_a_shape_compiles_it(translator):
    auto = with_mode(translator, "auto")
    translations = [auto("seven hundred and one") for _ in range(3)]
    assert len(set(translations)) == 1 and ready(auto) == 1
    longer = "seven hundred and one twelve thousand and ninety-nine"
    assert auto(longer) and ready(auto) == 1, "another shape"
    assert auto(longer) and ready(auto) == 2
    many = LINES * 8
    assert auto(many) and auto(many) and ready(auto) == 2, "larger batches stay in the graph"


def test_warm_up_compiles_before_the_first_request(translator):
    auto = with_mode(translator, "auto")
    auto.warm_up(source_lengths=[5, 8, 13], batch_sizes=[1], beam_size=2)
    assert ready(auto) == 2, "5 and 8 are padded to the same length"
    auto("two", beam_size=2)
    assert ready(auto) == 2


def test_processors_prefixes_and_bfloat16_stay_in_the_graph(translator):
    by_xla = with_mode(translator, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_xla("two", processors=(suppress_tokens([5]),))
        by_xla("two", target_prefix="one")
        with pytest.raises(ValueError, match="n_best"):
            by_xla("two", n_best=5)
    assert ready(by_xla) == 0
    bfloat16 = Translator(
        translator.model, translator.source_tokenizer, dtype="bfloat16", extra_length=3
    )
    assert bfloat16("two") == bfloat16("two") and ready(bfloat16) == 0
    with pytest.raises(ValueError, match="compiled='auto'.*at most 0 lines"):
        bfloat16.warm_up()


def test_call_of_many_batches_is_one_request(translator):
    auto = with_mode(translator, "auto")
    auto(["two"] * 4, batch_sentences=1)
    assert ready(auto) == 0
    auto(["two"] * 4, batch_sentences=1)
    assert ready(auto) == 1


def test_rows_that_fill_a_batch_cannot_fail_it(translator):
    class Fragile:
        """A model whose states of an empty source are NaN."""

        config = translator.model.config
        decode_step = staticmethod(translator.model.decode_step)

        @staticmethod
        def init_cache(source, **options):
            cache = translator.model.init_cache(source, **options)
            is_empty = tf.reduce_all(source == 0, axis=1)[:, None, None, None]
            for block in cache["blocks"]:
                block["encoder"] = tf.nest.map_structure(
                    lambda states: tf.where(is_empty, np.nan, states), block["encoder"]
                )
            return cache

    settings = SearchSettings(extra_length=3)
    sources = tf.constant([[5, 6, 2]] * 3)
    search = compiled.CompiledSearches(Fragile(), True).for_call(settings, 1, False)((3, 3))
    assert search(runtime_inputs(settings), sources).lengths.numpy().min() > 0


def test_search_that_xla_cannot_compile_stays_in_the_graph_with_one_warning(translator):
    class Eager:
        """A model whose step calls Python, which XLA cannot."""

        config = translator.model.config
        init_cache = staticmethod(translator.model.init_cache)
        compute_dtype = "float32"

        @staticmethod
        def decode_step(*args, **kwargs):
            logits, cache = translator.model.decode_step(*args, **kwargs)
            called = tf.py_function(lambda tensor: tensor, [logits], tf.float32)
            return tf.ensure_shape(called, logits.shape), cache

    searches = compiled.CompiledSearches(Eager(), True)
    settings = SearchSettings(extra_length=3)
    with pytest.warns(UserWarning, match="XLA cannot compile.*compiled=False"):
        assert searches.for_call(settings, 1, False)((1, 5)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert searches.for_call(settings, 1, False)((1, 5)) is None


def test_model_with_nan_weights_raises_as_in_the_graph(tmp_path):
    translator = make_translator(tmp_path / "numbers.model", num_decoder_layers=1)
    weight = translator.model.decoder.embedding.embeddings
    weight.assign(np.full(weight.shape, np.nan))
    for mode in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match="logits must not be NaN"):
            with_mode(translator, mode)("two")


@pytest.fixture
def made(monkeypatch):
    """The keys of searches that are compiled, without the seconds that it takes."""
    keys = []
    monkeypatch.setattr(
        compiled, "compile_search", lambda *key: keys.append(key) or (lambda *_: None)
    )
    return keys


@pytest.mark.parametrize("mode", ["auto", True])
def test_common_shape_is_compiled_though_others_came_first(translator, made, mode):
    searches = compiled.CompiledSearches(translator.model, mode)

    def request(beam_size, times):
        settings = SearchSettings(beam_size=beam_size)
        for _ in range(times):
            searches.for_call(settings, 1, False)((1, 8))
        return len(made)

    assert [request(beam_size, 2) for beam_size in range(1, 17)] == [*range(1, 17)]
    assert request(17, 31) == 16, "odd shapes no longer take memory"
    assert request(17, 1) == 17
    assert request(18, 63) == 17 and request(18, 1) == 18
    searches.warm_up(SearchSettings(beam_size=19), 1, (1, 8))
    assert len(made) == 19


def test_number_of_compiled_shapes_is_bounded(translator, made):
    """Shapes, settings and lengths of all kinds: what is kept does not grow without end."""
    searches = compiled.CompiledSearches(translator.model, "auto")
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        settings = SearchSettings(
            beam_size=int(rng.integers(1, 9)), extra_length=int(rng.integers(0, 400))
        )
        searches.for_call(settings, 1, False)((rng.integers(1, 10), rng.integers(1, 140)))
    assert 0 < len(made) <= 16


def test_many_threads_get_their_own_translations_while_one_compiles(translator):
    auto = with_mode(translator, "auto")
    names = ["one", "two", "six", "ten", "nine"]
    works = [(names[i % 5], 1 + i // 5 % 2) for i in range(16)]
    in_graph = with_mode(translator, False)
    expected = {work: in_graph(work[0], beam_size=work[1]) for work in set(works)}
    barrier = threading.Barrier(len(works))

    def translate(work):
        barrier.wait()
        return {auto(work[0], beam_size=work[1]) for _ in range(60)}

    with ThreadPoolExecutor(len(works)) as threads:
        found = list(threads.map(translate, works))
    assert found == [{expected[work]} for work in works]
    assert ready(auto) > 0


@pytest.mark.parametrize("mode", ["always", None, 3])
def test_unknown_mode_is_named(translator, mode):
    with pytest.raises(ValueError, match="`compiled` must be.*Received"):
        with_mode(translator, mode)
