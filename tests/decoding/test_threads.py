"""One translator in many threads: each search is traced once, and 32 are kept."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from keras import ops

from keras_transformer.decoding.search import SearchResult
from tests.decoding.test_translator import make_translator

pytestmark = [pytest.mark.backends("tensorflow", "jax"), pytest.mark.slow]

THREADS = 16


@pytest.fixture
def translator(tmp_path, monkeypatch):
    """Its search returns the source, so that graphs are traced quickly."""

    def echo(decoder, settings, n_best, fixed_length, penalties, source, longest):
        for rule in settings.processors:
            rule()
        numbers = ops.zeros_like(source[:, None], "float32")
        lengths = ops.sum(ops.cast(source[:, None] != 0, "int32"), axis=2)
        return SearchResult(source[:, None], lengths, numbers[:, :, 0], numbers)

    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 1}
    made = make_translator(tmp_path / "numbers.model", **sizes)
    monkeypatch.setattr("keras_transformer.decoding.model_search._search", echo)
    return made


class Rule:
    """A processor that counts the graphs it is traced in."""

    def __init__(self):
        self.calls = []

    def __call__(self):
        time.sleep(0.02)  # time for other threads to ask for the same graph
        self.calls.append(threading.get_ident())


def in_threads(function, arguments):
    """Calls the function with each argument, in threads that start at the same moment."""
    barrier = threading.Barrier(len(arguments))

    def wait_and_call(argument):
        barrier.wait()
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(wait_and_call, arguments))


@pytest.mark.long
def test_at_most_32_searches_are_kept(translator):
    rules = [Rule() for _ in range(40)]
    assert in_threads(lambda rule: translator("one", processors=(rule,)), rules) == ["one"] * 40
    assert [len(rule.calls) for rule in rules] == [1] * 40
    kept = [weakref.ref(rule) for rule in rules]
    del rules
    gc.collect(2)
    assert sum(rule() is not None for rule in kept) <= 32


@pytest.mark.long
def test_search_that_many_ask_for_is_traced_once(translator):
    rule = Rule()
    found = in_threads(lambda _: translator("one", processors=(rule,)), range(THREADS))
    assert found == ["one"] * THREADS
    assert len(rule.calls) == 1
