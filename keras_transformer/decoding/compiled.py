"""Searches of few sentences that XLA has compiled on TensorFlow, see `Translator.warm_up`.

With few sentences, a step of a search is hundreds of small operations, and starting them costs more
than computing them. XLA makes one program of the whole loop, for one shape. A program takes 40 to
70 MiB even for a tiny model, and TensorFlow never frees it, so a user asks for each.
"""

from typing import Any

import numpy as np

from keras_transformer.decoding.loop import BACKEND
from keras_transformer.decoding.model_search import padded_shape, search_model
from keras_transformer.decoding.search_settings import SearchSettings

# Lines, and tokens of source and target: above, XLA gains little.
LARGEST = 8, 128, 512


class CompiledSearches:
    """The compiled searches of a model, each for one shape and one set of graph settings.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._ready: set[tuple] = set()

    def warm_up(self, settings: SearchSettings, n_best: int, shape: tuple[int, int]) -> None:
        """Compiles the search for sources of a shape `(B, S)`, unless it is compiled.

        Raises:
            ValueError: if searches of this kind are not compiled.
        """
        padded = padded_shape(*shape, settings, self._model.config)
        is_large = any(size > most for size, most in zip(padded, LARGEST, strict=True))
        is_graph = BACKEND == "tensorflow" and (is_large or bool(settings.processors))
        if BACKEND == "torch" or is_graph or settings.sampler is not None:
            most_lines, longest_source, longest_target = LARGEST
            raise ValueError(
                "Searches without a sampler are compiled on JAX; on TensorFlow those of at most "
                f"{most_lines} lines of at most {longest_source} tokens, with translations of at "
                f"most {longest_target} tokens, and without processors. Received: {shape[0]} lines "
                f"of {shape[1]} tokens on {BACKEND}, {settings}"
            )
        key = settings.graph_settings, n_best, *padded
        if key not in self._ready:
            fixed = padded if BACKEND == "tensorflow" else None  # JAX pads every search
            nothing = np.full(padded[:2], self._model.config.pad_token_id)
            search_model(self._model, nothing, settings, n_best, shape=fixed)
            self._ready |= {key} if fixed else set()

    def find(
        self, settings: SearchSettings, n_best: int, shape: tuple[int, int]
    ) -> tuple[int, int, int] | None:
        """Returns the `shape` for `search_model` if its search is compiled, else `None`."""
        padded = padded_shape(*shape, settings, self._model.config)
        return padded if (settings.graph_settings, n_best, *padded) in self._ready else None
