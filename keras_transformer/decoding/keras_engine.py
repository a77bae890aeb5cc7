"""`KerasEngine`: a Keras model as an engine, on TensorFlow, JAX and PyTorch."""

import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer_like import check_tokenizers, require_matching_vocabularies
from keras_transformer.decoding.engine import TENSORFLOW_VARIABLES, Engine, SearchResult
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.forks import BACKEND, require_own_process
from keras_transformer.decoding.frozen import FrozenTransformer, freeze
from keras_transformer.decoding.model_search import (
    SearchModel,
    attend_model,
    compiled_shape,
    padded_shape,
    run_on_pairs,
    score_model,
    search_model,
)
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.processor import computed_types, is_emulated, say_if_emulated


class KerasEngine(Engine):
    """Searches with a Keras model, or with several as one.

    Args:
        model, tokenizer, target_tokenizer, frozen, dtype: as in `Translator`.

    Attributes:
        model: `Transformer` or `Ensemble`.

    Raises:
        TypeError: if a tokenizer lacks a member of `TokenizerLike`.
        ValueError: if the vocabularies of model and tokenizer differ.
        RuntimeError: in a process that was forked from the one that runs models.
    """

    name = f"Keras on {BACKEND}"
    libraries = ("keras", BACKEND)
    variables = TENSORFLOW_VARIABLES if BACKEND == "tensorflow" else ()

    def __init__(
        self,
        model: SearchModel | Sequence[SearchModel],
        tokenizer: Any,
        target_tokenizer: Any = None,
        *,
        frozen: bool = False,
        dtype: str | None = None,
    ) -> None:
        # PyTorch starts no threads before a model runs, so the process may still be forked.
        require_own_process(starts=BACKEND != "torch")
        decoder: Any = Ensemble(model) if isinstance(model, Sequence) else model
        self.tokenizers = check_tokenizers(tokenizer, target_tokenizer)
        require_matching_vocabularies(decoder.config, *self.tokenizers)
        if frozen or dtype is not None:
            decoder = freeze(decoder, dtype)
        self._decoder = decoder
        self.model: Any = decoder.model if isinstance(decoder, FrozenTransformer) else decoder
        self.config = decoder.config
        for dtype_name in filter(is_emulated, computed_types(self.model)):
            require_own_process()  # `say_if_emulated` measures a matrix product
            say_if_emulated(dtype_name, warnings.warn)
        self._compiled: set[tuple] = set()  # (graph settings, hypotheses, shape) of searches

    def __reduce__(self):
        """For `pickle` and `copy`: compiled searches belong to a process."""
        return type(self), (self._decoder, *self.tokenizers)

    def search(
        self,
        source_ids: np.ndarray,
        prefix_ids: np.ndarray | None,
        settings: SearchSettings,
        n_best: int,
        language_ids: np.ndarray | None = None,
    ) -> SearchResult:
        """Finds the best translations of each row; see `Engine`."""
        rows, length = source_ids.shape
        padded = padded_shape(rows, length, settings, self.config)
        key = settings.graph_settings, n_best, padded
        is_plain = prefix_ids is None and language_ids is None
        # On TensorFlow, a shape means XLA: use it only if `compile` has compiled this search.
        shape = padded if is_plain and key in self._compiled else None
        return search_model(
            self._decoder, source_ids, settings, n_best, prefix_ids, language_ids, shape=shape
        )

    def score(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the log-prob of each token of given translations; see `Engine`."""
        log_probs = run_on_pairs(score_model, self._decoder, source_ids, target_ids, language_ids)
        return log_probs[: len(target_ids), : target_ids.shape[1]]

    def attend(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Returns the attention scores of given translations; see `Engine`."""
        return run_on_pairs(attend_model, self._decoder, source_ids, target_ids, language_ids)

    def compile(
        self,
        source_lengths: Iterable[int],
        batch_sizes: Iterable[int],
        settings: SearchSettings,
        n_best: int,
    ) -> None:
        """Compiles searches by XLA; the arguments are as in `Translator.warm_up`."""
        has_languages = bool(self.tokenizers[0].language_ids)
        if has_languages and BACKEND == "tensorflow":
            must = "Searches of a model with tokens of languages are compiled on JAX alone."
            raise ValueError(f"{must} Received: {self.name}")
        shapes = {
            # A source has the token of its language in front.
            compiled_shape(rows, length + has_languages, settings, self.config)
            for rows, length in itertools.product(batch_sizes, source_lengths)
        }
        for shape in shapes:
            only_padding = np.full(shape[:2], self.config.pad_token_id)
            languages = only_padding[:, :1] if has_languages else None
            search_model(
                self._decoder, only_padding, settings, n_best, None, languages, shape=shape
            )
            self._compiled.add((settings.graph_settings, n_best, shape))
