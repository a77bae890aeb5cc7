"""`Engine`: searches and scores rows of token ids. `Translator`, above it, handles the text.

Plain Python and NumPy: imports neither Keras nor a backend.
"""

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.types import Tensor

TENSORFLOW_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS",)  # see `Engine.variables`


class SearchResult(NamedTuple):
    """The hypotheses of each sentence, best first.

    Args:
        token_ids: int32 tensor `(B, R, T)`, without the start token. A hypothesis ends with the end
            token, or without it at the maximum length. Padding follows. `T` is the length of the
            longest.
        lengths: int32 tensor `(B, R)`, the end token included; 0 where a hypothesis is missing.
        scores: float32 tensor `(B, R)`, the sum of the log-probs divided by the length penalty;
            -inf where a hypothesis is missing.
        log_probs: float32 tensor `(B, R, T)`, of each token, 0 at padding; or `(B, R, 1)`, their
            sum, from an engine that returns no more.
    """

    token_ids: Tensor
    lengths: Tensor
    scores: Tensor
    log_probs: Tensor


class SearchTree(NamedTuple):
    """The active hypotheses after each of T steps in W beam slots, for a picture.

    Args:
        token_ids: int32 array `(T, W)`, the last token of each.
        parents: int32 array `(T, W)`, the slot of the previous step that each one extends.
        log_probs: float32 array `(T, W)`, the log-prob of each hypothesis, -inf in empty slots.
        is_winner: bool array `(T, W)`, whether the best translation begins with this hypothesis.
    """

    token_ids: np.ndarray
    parents: np.ndarray
    log_probs: np.ndarray
    is_winner: np.ndarray


class Engine:
    """Searches and scores rows of token ids: what differs between Keras, CTranslate2 and others.

    A subclass sets the attributes, and defines `search` and `score`. Rows come and go as NumPy
    arrays. An engine knows no text: `Translator` tokenizes, splits, tags and joins it.

    Attributes:
        name: str, for errors.
        tokenizers: `TokenizerLike` of the source and of the target.
        config: has the special ids, vocabulary sizes and positions, as `TransformerConfig`.
        defaults: dict of settings that hold if a translator is not given others.
        held: dict from names of settings, and `return_attention`, to the tuple of values that the
            engine supports. It supports any value of a setting that is not named.
        model: the Keras model; `None` if the engine has none.
        has_threads: bool, whether `run_all` runs several batches at once.
        has_search_tree: bool, whether `search_tree` is defined.
        libraries: names of the modules whose versions decide its results.
        variables: names of the environment variables that decide its results.
    """

    name: str
    tokenizers: tuple[Any, Any]
    config: Any
    defaults: dict[str, Any] = {}
    held: dict[str, tuple] = {}
    model: Any = None
    has_threads = False
    has_search_tree = False
    libraries: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def search(
        self,
        source_ids: np.ndarray,
        prefix_ids: np.ndarray | None,
        settings: SearchSettings,
        n_best: int,
        language_ids: np.ndarray | None = None,
    ) -> SearchResult:
        """Finds the best translations of each row.

        Args:
            source_ids: int32 array `(B, S)`, with the end tokens, padded.
            prefix_ids: int32 array `(B, P)`, padded: the forced first tokens. Optional.
            settings: `SearchSettings`, with values that `held` allows.
            n_best: int, at most `settings.max_hypotheses`. Translations of each row.
            language_ids: int32 array `(B, 1)`: the token of each translation's language, which the
                decoder reads behind the start token. It is no token of the translation. Optional.

        Returns:
            `SearchResult` of arrays, R = `n_best`. The best translation of a row that has only the
            end token has the length 0.
        """
        raise NotImplementedError

    def score(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the log-prob of each token of given translations, float32 `(B, T)`, 0 at padding.

        Args:
            source_ids, target_ids: int32 arrays `(B, S)` and `(B, T)`, with the end tokens, padded.
            language_ids: as in `search`.
        """
        raise NotImplementedError

    def attend(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Returns the attention scores of given translations, as `Transformer.attention_scores`.

        The decoder's rows are the steps that predict the T tokens of `target_ids`. Its columns are
        the tokens that it reads: the start token, the language if there is one, and `target_ids`
        without the last. So with languages, `decoder` is `(B, N, T, T + 1)`.

        Args:
            source_ids, target_ids, language_ids: as in `score`.
        """
        raise NotImplementedError

    def search_tree(self, source_ids: np.ndarray, settings: SearchSettings) -> list[SearchTree]:
        """Returns what the search does with each row, if `has_search_tree`.

        Args:
            source_ids: int32 array `(B, S)`, with the end tokens, padded.
            settings: `SearchSettings`.
        """
        raise NotImplementedError

    def run_all(self, function: Callable[[Any], Any], batches: Iterable[Any]) -> Iterable[Any]:
        """Yields `function(batch)` of each batch, in their order."""
        return map(function, batches)

    def compile(
        self,
        source_lengths: Iterable[int],
        batch_sizes: Iterable[int],
        settings: SearchSettings,
        n_best: int,
    ) -> None:
        """Compiles searches ahead, as `KerasEngine` does; see `Translator.warm_up`."""
        raise ValueError(f"Only searches of Keras models are compiled. Received: {self.name}")


def held_settings(engine: Engine | type[Engine], settings: SearchSettings) -> SearchSettings:
    """Replaces each value that an engine does not support by the first one that it does.

    Args:
        engine: `Engine`, or a class of them.
        settings: `SearchSettings`.
    """
    names = engine.held.keys() & vars(settings).keys()
    changes = {n: engine.held[n][0] for n in names if getattr(settings, n) not in engine.held[n]}
    return replace(settings, **changes)


def require_workers(workers: int | None) -> None:
    """Raises a `ValueError` unless the `workers` of an engine are `None` or a positive integer."""
    if workers is not None and (not isinstance(workers, numbers.Integral) or workers < 1):
        raise ValueError(f"`workers` must be a positive integer. Received: {workers=}")


def require_held(engine: Engine | type[Engine], settings: Mapping[str, Any]) -> None:
    """Raises a `ValueError` if an engine does not support the value of a setting.

    Args:
        engine: `Engine`, or a class of them.
        settings: mapping of settings, and `return_attention`, to values.
    """
    for name, value in settings.items():
        values = engine.held.get(name, (value,))
        if value not in values:
            must = f"`{name}` must be {' or '.join(map(repr, values))} in {engine.name}."
            raise ValueError(f"{must} Received: {name}={value!r}")
