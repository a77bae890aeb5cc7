"""Searches of few sentences, compiled by XLA.

With few sentences, a step of a search is hundreds of small operations, and starting them costs more
than computing them. XLA makes one program of the whole loop. It does so for one shape, so sources
are padded to one of few shapes. Letters: B batch, S source length, T target length.
"""

import itertools
import threading
import warnings
from functools import lru_cache
from typing import Any

import tensorflow as tf

from keras_transformer.decoding.model_search import (
    RUNTIME_DTYPES,
    learned_positions,
    longest_target,
    search_model,
)
from keras_transformer.decoding.search_settings import SearchSettings

# Token ids `(B, T)` and `SearchSettings.runtime_values` as inputs of a graph.
IDS = tf.TensorSpec([None, None], tf.int32)
RUNTIME_SPECS = tuple(tf.TensorSpec([], dtype) for dtype in RUNTIME_DTYPES)

MODES = ("auto", True, False)
_MOST_LINES = {"auto": 4, True: 8, False: 0}
# The shapes that are compiled: sources are padded to one of them.
BATCHES = (1, 2, 4, 8)
SOURCE_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
# Maximum lengths become multiples of `_TARGET_STEP`; above `_LONGEST_TARGET`, nothing compiles.
_TARGET_STEP, _LONGEST_TARGET = 16, 512
# A program takes 40 to 70 MiB even for a tiny model, and TensorFlow never frees it, so dropping one
# saves nothing. After `_EASY_SHAPES`, each further shape must be requested twice as often as the
# last: the common shapes are compiled, and memory grows with the logarithm of the calls.
_EASY_SHAPES, _REQUESTS_OF_NEXT = 16, 32
_REQUESTS_COUNTED = 1024


class CompiledSearches:
    """The compiled searches of a model, each for one shape and one set of graph settings.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        mode: `"auto"`: the second call that requests a shape compiles its search; other threads
            use the graph meanwhile. At most 4 sentences, because XLA gains little with more, and
            only float32, because it gains nothing in bfloat16 on a CPU. `True`: the first call
            compiles it, for at most 8 sentences. `False`: never.
    """

    def __init__(self, model: Any, mode: str | bool) -> None:
        if mode not in MODES:
            raise ValueError(f'`compiled` must be "auto", True or False. Received: {mode!r}')
        self._model = model
        self._mode = mode
        is_float32 = getattr(model, "compute_dtype", "float32") == "float32"
        self._is_enabled = is_float32 if mode == "auto" else mode
        self._requests = lru_cache(_REQUESTS_COUNTED)(lambda key: itertools.count(1))
        self._ready: dict[tuple, Any] = {}
        self._compiling = threading.Lock()

    def for_call(self, settings: SearchSettings, n_best: int, has_prefix: bool) -> Any:
        """Returns a function that finds the searches of one call: one request per shape.

        Args:
            settings: `SearchSettings`.
            n_best: int.
            has_prefix: bool.

        Returns:
            callable. Given the shape `(B, S)` of sources, it returns a callable `(runtime_values,
            encoder_token_ids (B, S)) -> SearchResult`, or `None`: search in the graph.
        """
        requested: set[tuple] = set()

        def find(shape):
            key = None if has_prefix else self._key(settings, n_best, shape)
            if key is None or key in requested:
                return self._ready.get(key)
            requested.add(key)
            return self._ready.get(key) or self._request(key)

        return find

    def warm_up(self, settings: SearchSettings, n_best: int, shape: tuple[int, int]) -> None:
        """Compiles the search for sources of a shape, unless it is compiled.

        Raises:
            ValueError: if searches of this kind are not compiled.
        """
        key = self._key(settings, n_best, shape)
        if not self._is_enabled:
            raise ValueError(
                f"With `compiled={self._mode!r}`, no search of this model is compiled: the mode is "
                "False, or it is 'auto' and the model is not float32, or XLA has failed before."
            )
        if key is None:
            raise ValueError(
                f"With `compiled={self._mode!r}`, searches of at most {_MOST_LINES[self._mode]} "
                f"lines of at most {SOURCE_LENGTHS[-1]} tokens are compiled, if translations have "
                f"at most {_LONGEST_TARGET} tokens, and without processors and samplers. "
                f"Received: {shape[0]} lines of {shape[1]} tokens, {settings}"
            )
        with self._compiling:
            if key not in self._ready:
                self._compile(key)

    def _key(self, settings, n_best, shape):
        """Returns what a search is compiled for, the arguments of `compile_search`, or `None`."""
        batch_size = _round_up(shape[0], BATCHES)
        source_length = _round_up(shape[1], SOURCE_LENGTHS)
        is_plain = not settings.processors and settings.sampler is None
        if not (batch_size and source_length and is_plain):
            return None
        config = self._model.config
        source_length = min(source_length, learned_positions(config) or source_length)
        longest = longest_target(source_length, settings, config)
        target_length = -(-longest // _TARGET_STEP) * _TARGET_STEP
        if batch_size > _MOST_LINES[self._mode] or target_length > _LONGEST_TARGET:
            return None
        return settings.graph_settings, n_best, batch_size, source_length, target_length

    def _is_due(self, key):
        further = len(self._ready) - _EASY_SHAPES
        first = 1 if self._mode is True else 2
        return next(self._requests(key)) >= (first if further < 0 else _REQUESTS_OF_NEXT << further)

    def _request(self, key):
        if not self._is_enabled or not self._compiling.acquire(blocking=self._mode is True):
            return None
        try:
            if self._is_due(key) and key not in self._ready:
                self._compile(key)
        except Exception as error:  # whatever it is, the graph gives the result
            self._is_enabled = False
            warnings.warn(
                "XLA cannot compile the search of this model here, so translations of few lines "
                "stay slower: `compiled=False` turns this warning off. "
                f"{type(error).__name__}: {str(error)[:300]}",
                stacklevel=2,
            )
        finally:
            self._compiling.release()
        return self._ready.get(key)

    def _compile(self, key):
        search = compile_search(self._model, *key)
        nothing = tf.zeros([1, 1], tf.int32) + self._model.config.pad_token_id
        search(tuple(tf.ones([], spec.dtype) for spec in RUNTIME_SPECS), nothing)
        self._ready[key] = search


def compile_search(model, settings, n_best, batch_size, source_length, target_length):
    """Returns a search that XLA compiles for one padded shape.

    Args:
        model: `Transformer`.
        settings: `SearchSettings` without processors and sampler.
        n_best: int.
        batch_size, source_length, target_length: ints, the padded shape.

    Returns:
        callable `(runtime_values, encoder_token_ids (B, S)) -> SearchResult`, for B and S up to
        the padded ones.
    """
    pad = model.config.pad_token_id

    @tf.function(autograph=False, jit_compile=True)
    def compiled(runtime_values, source):
        rules = settings, runtime_values, n_best
        return search_model(model, source, *rules, fixed_length=target_length)

    @tf.function(input_signature=[RUNTIME_SPECS, IDS], autograph=False)
    def search(runtime_values, source):
        count, length = tf.unstack(tf.shape(source))
        padding = [[0, batch_size - count], [0, source_length - length]]
        source = tf.pad(source, padding, constant_values=pad)
        source = tf.ensure_shape(source, [batch_size, source_length])
        result = compiled(runtime_values, source)
        result = tf.nest.map_structure(lambda tensor: tensor[:count], result)
        return result.finish(pad)

    return search.get_concrete_function()


def _round_up(number, choices):
    return next((choice for choice in choices if choice >= number), None)
