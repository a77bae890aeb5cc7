"""Which searches of few sentences XLA compiles on TensorFlow.

With few sentences, a step of a search is hundreds of small operations, and starting them costs more
than computing them. XLA makes one program of the whole loop, for one shape. Letters: B batch, S
source length, T target length.
"""

import itertools
import threading
import warnings
from functools import lru_cache
from typing import Any

import numpy as np

from keras_transformer.decoding.loop import BACKEND
from keras_transformer.decoding.model_search import padded_shape, search_model
from keras_transformer.decoding.search_settings import SearchSettings

MODES = ("auto", True, False)
_MOST_LINES = {"auto": 4, True: 8, False: 0}
_LONGEST_SOURCE, _LONGEST_TARGET = 128, 512  # tokens: above, nothing is compiled
# A program takes 40 to 70 MiB even for a tiny model, and TensorFlow never frees it, so dropping one
# saves nothing. After `_EASY_SHAPES`, each further shape must be requested twice as often as the
# last: the common shapes are compiled, and memory grows with the logarithm of the calls.
_EASY_SHAPES, _REQUESTS_OF_NEXT = 16, 32
_REQUESTS_COUNTED = 1024


class CompiledSearches:
    """The compiled searches of a model, each for one shape and one set of graph settings.

    JAX compiles every search, and PyTorch none: there it decides nothing.

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
        self._is_enabled = BACKEND == "tensorflow" and (is_float32 if mode == "auto" else mode)
        self._requests = lru_cache(_REQUESTS_COUNTED)(lambda key: itertools.count(1))
        self._ready: set[tuple] = set()
        self._compiling = threading.Lock()

    def for_call(self, settings: SearchSettings, n_best: int, has_prefix: bool) -> Any:
        """Returns a function that finds the shapes of one call: one request per shape.

        Args:
            settings: `SearchSettings`.
            n_best: int.
            has_prefix: bool.

        Returns:
            callable. Given the shape `(B, S)` of sources, it returns the `shape` for
            `search_model`; `None`: search in the graph.
        """
        requested: set[tuple] = set()

        def find(shape):
            if has_prefix or not self._is_enabled:
                return None
            key = self._key(settings, n_best, shape)
            if key is None:
                return None
            if key not in self._ready and key not in requested:
                requested.add(key)
                self._request(key)
            return key[2:] if key in self._ready else None

        return find

    def warm_up(self, settings: SearchSettings, n_best: int, shape: tuple[int, int]) -> None:
        """Compiles the search for sources of a shape, unless it is compiled.

        Raises:
            ValueError: if searches of this kind are not compiled.
        """
        if BACKEND == "jax":
            search_model(self._model, self._nothing(shape), settings, n_best)
            return
        key = self._key(settings, n_best, shape)
        if not self._is_enabled:
            raise ValueError(
                f"With `compiled={self._mode!r}`, no search of this model is compiled: the mode is "
                "False, or it is 'auto' and the model is not float32, or XLA has failed before, or "
                f"the backend, {BACKEND}, compiles none."
            )
        if key is None:
            raise ValueError(
                f"With `compiled={self._mode!r}`, searches of at most {_MOST_LINES[self._mode]} "
                f"lines of at most {_LONGEST_SOURCE} tokens are compiled, if translations have "
                f"at most {_LONGEST_TARGET} tokens, and without processors and samplers. "
                f"Received: {shape[0]} lines of {shape[1]} tokens, {settings}"
            )
        with self._compiling:
            if key not in self._ready:
                self._compile(key)

    def _key(self, settings, n_best, shape):
        """Returns what a search is compiled for: settings, `n_best`, B, S and T; or `None`."""
        padded = padded_shape(shape[0], shape[1], settings, self._model.config)
        bounds = _MOST_LINES[self._mode], _LONGEST_SOURCE, _LONGEST_TARGET
        is_small = all(size <= bound for size, bound in zip(padded, bounds, strict=True))
        if not is_small or settings.processors or settings.sampler is not None:
            return None
        return settings.graph_settings, n_best, *padded

    def _is_due(self, key):
        further = len(self._ready) - _EASY_SHAPES
        first = 1 if self._mode is True else 2
        return next(self._requests(key)) >= (first if further < 0 else _REQUESTS_OF_NEXT << further)

    def _request(self, key):
        if not self._compiling.acquire(blocking=self._mode is True):
            return
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

    def _compile(self, key):
        settings, n_best, *shape = key
        search_model(self._model, self._nothing(shape[:2]), settings, n_best, shape=tuple(shape))
        self._ready.add(key)

    def _nothing(self, shape):
        return np.full(shape, self._model.config.pad_token_id)
