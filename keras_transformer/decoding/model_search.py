"""Search and scores with a model: token ids in and out, inside the graph.

Connects the searches to the model: neither imports the other. Letters: B batch, W beam slots, S
source length, T target length.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from keras import ops

from keras_transformer.decoding.beam import make_search
from keras_transformer.decoding.loop import BACKEND, run_with_weights
from keras_transformer.decoding.search import Search, SearchResult, StepOutput, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.types import Tensor

# Dtypes of `SearchSettings.runtime_values` as inputs of a graph.
RUNTIME_DTYPES = ("float32", "float64", "int32", "int32")


class SearchModel(Protocol):
    """Interface that decoding uses. `Transformer` and `FrozenTransformer` implement it."""

    config: Any  # special token ids, vocabulary sizes and positions, as in `TransformerConfig`

    def __call__(self, inputs: dict[str, Tensor], /) -> Tensor: ...

    def attention_scores(self, inputs: dict[str, Tensor], /) -> dict[str, list[Tensor]]: ...

    def init_cache(self, encoder_token_ids: Tensor, /, **options: Any) -> Any: ...

    def decode_step(
        self, token_ids: Tensor, cache: Any, index: Tensor, /, **options: Any
    ) -> Any: ...


def search_model(
    model: SearchModel,
    encoder_token_ids: Tensor,
    settings: SearchSettings,
    runtime_values: tuple[Tensor, ...] | None = None,
    n_best: int = 1,
    target_prefix: Tensor | None = None,
    **options: Any,
) -> SearchResult:
    """Finds the best translations of sentences, on any backend.

    TensorFlow runs it in a graph or eagerly; JAX compiles it for the shape of the ids; PyTorch runs
    it step by step.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        settings: `SearchSettings`. A sampler does not run on JAX.
        runtime_values: tensors of the dtypes of `RUNTIME_DTYPES`, scalars or `(B,)`; on TensorFlow
            only. Defaults to those of the settings.
        n_best: int. Translations of each sentence. Defaults to `1`.
        target_prefix: int32 tensor `(B, P)`, padded: the forced first tokens. Those beyond the
            maximum length are cut off. Optional.
        **options: `wanted`, `strict` and `fixed_length` of `Search`. On TensorFlow, XLA can compile
            the search if `fixed_length` is at least `longest_target` of S, the shape of the ids is
            static, and there are no processors, no sampler and no prefix.

    Returns:
        `SearchResult`.

    Raises:
        ValueError: if `n_best` exceeds the beam, or log-probs are invalid (on TensorFlow an
            InvalidArgumentError).

    Example:

    >>> config = keras_transformer.TransformerConfig.tiny(50)
    >>> settings = keras_transformer.SearchSettings(beam_size=2, max_length=4)
    >>> model = keras_transformer.Transformer(config)
    >>> search_model(model, np.array([[5, 6, 2], [7, 2, 0]]), settings).token_ids.shape[:2]
    TensorShape([2, 1])
    """
    if BACKEND != "tensorflow":
        return _search_arrays(model, encoder_token_ids, settings, n_best, target_prefix, **options)
    given = model, encoder_token_ids, settings, runtime_values, n_best
    search, inputs = search_of_model(*given, **options)
    return search.run(*inputs, target_prefix)


def search_of_model(
    model: SearchModel,
    encoder_token_ids: Tensor,
    settings: SearchSettings,
    runtime_values: tuple[Tensor, ...] | None = None,
    n_best: int = 1,
    **options: Any,
) -> tuple[Search, tuple[Any, Tensor, int]]:
    """Returns a search in a graph of TensorFlow, and its inputs, see `_make_search`."""
    alpha, *limits = runtime_values or runtime_inputs(settings)
    lengths = ops.count_nonzero(encoder_token_ids != model.config.pad_token_id, axis=1)
    longest = max_lengths(model.config, lengths - 1, limits)
    return _make_search(model, encoder_token_ids, longest, settings, n_best, alpha=alpha, **options)


def _make_search(model, encoder_token_ids, longest, settings, n_best, fixed_length=None, **options):
    """Returns a search, and its inputs: cache, maximum lengths and start token."""
    config, beam_size = model.config, settings.beam_size
    fixed = {} if fixed_length is None else {"max_length": fixed_length, "beam_size": beam_size}
    suppressed = {*settings.suppressed_tokens, getattr(config, "forbidden_token_id", None)} - {None}
    settings = replace(settings, suppressed_tokens=sorted(suppressed))

    def step(token_ids, parents, cache, index):
        parents = None if settings.max_hypotheses == 1 else parents
        return StepOutput(*model.decode_step(token_ids, cache, index, parents=parents))

    search = make_search(
        settings,
        n_best,
        step_fn=step,
        end_token_id=config.end_token_id,
        pad_token_id=config.pad_token_id,
        fixed_length=fixed_length,
        **options,
    )
    return search, (model.init_cache(encoder_token_ids, **fixed), longest, config.start_token_id)


def _search_arrays(model, encoder_token_ids, settings, n_best, target_prefix, strict=True):
    """`search_model` on JAX or PyTorch, where shapes and lengths are known before the search."""
    if BACKEND == "jax" and settings.sampler is not None:
        raise ValueError("On JAX, `sampler` must be None: its random state is outside the program")
    ids, config = ops.convert_to_numpy(encoder_token_ids), model.config
    lengths = np.count_nonzero(ids != config.pad_token_id, axis=1).tolist()
    longest = [longest_target(n, settings, config) if n > 1 else 0 for n in lengths]
    length = longest_target(ids.shape[1], settings, config)
    inputs = [
        None if x is None else ops.convert_to_tensor(x, "int32")
        for x in (target_prefix, ids, longest)
    ]
    static = settings.graph_settings, n_best, length if BACKEND == "jax" else None
    result = run_with_weights(_run, model, static, penalties_up_to(length, settings), *inputs)
    return result.finish(config.pad_token_id, strict)


def _run(model, settings, n_best, fixed_length, penalties, target_prefix, ids, longest):
    options = {"fixed_length": fixed_length, "penalties": penalties, "strict": False}
    search, inputs = _make_search(model, ids, longest, settings, n_best, **options)
    return search.run(*inputs, target_prefix)


def kept_hypotheses(settings: SearchSettings, n_best: Any) -> Any:
    """Returns how many hypotheses a search must keep, to pick `n_best` with distinct texts.

    `n_best` is an int or an int32 tensor. For 1, one is enough, and its search is the shortest.
    """
    if not settings.distinct_texts:
        return n_best
    most = settings.max_hypotheses
    if isinstance(n_best, int):
        return 1 if n_best == 1 else most
    return ops.where(n_best == 1, 1, most)


def runtime_inputs(settings: SearchSettings) -> tuple[Tensor, ...]:
    """Returns the settings' `runtime_values` as scalar tensors of `RUNTIME_DTYPES`."""
    pairs = zip(settings.runtime_values, RUNTIME_DTYPES, strict=True)
    return tuple(ops.convert_to_tensor(*pair) for pair in pairs)


def score_model(model, encoder_token_ids, target_token_ids):
    """Returns the log-prob of each token of given translations, by a teacher-forced pass.

    Args:
        model: `Transformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        target_token_ids: int32 tensor `(B, T)`, with the end tokens, padded.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    config = model.config
    logits = model(teacher_forcing(config, encoder_token_ids, target_token_ids))
    losses = ops.sparse_categorical_crossentropy(target_token_ids, logits, from_logits=True)
    return ops.where(target_token_ids == config.pad_token_id, 0.0, -losses)


def teacher_forcing(config, encoder_token_ids, target_token_ids):
    """Returns inputs of a model; the decoder gets the start token, then all tokens but the last."""
    start = ops.full_like(target_token_ids[:, :1], config.start_token_id)
    given = ops.concatenate([start, target_token_ids[:, :-1]], axis=1)
    return {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": given}


def longest_target(source_length: int, settings: SearchSettings, config: Any) -> int:
    """Returns the maximum length of a translation of `source_length` tokens, end tokens counted."""
    _, length_ratio, extra_length, max_length = settings.runtime_values
    longest = min(math.floor(length_ratio * (source_length - 1)) + extra_length, max_length)
    return max(1, min(longest, learned_positions(config) or longest))


def learned_positions(config: Any) -> int | None:
    """Returns the number of tokens that a model has learned positions for; `None`: any number."""
    return config.max_sequence_length if config.positions == "learned" else None


def max_lengths(config: Any, lengths: Tensor, limits: Sequence[Tensor]) -> Tensor:
    """As `longest_target`, in a graph: maximum tokens, end token and prefix included.

    Args:
        config: as in `SearchModel`.
        lengths: int32 tensor `(B,)`: tokens of each source, without the end token.
        limits: `length_ratio`, `extra_length` and `max_length`, as in `search_model`.

    Returns:
        int32 tensor `(B,)`, 0 for empty sources.
    """
    length_ratio, extra_length, max_length = limits
    # float64 rounds as Python does. The cast is safe, because `max_length` fits into int32.
    longest = ops.floor(length_ratio * ops.cast(lengths, "float64"))
    longest = longest + ops.cast(extra_length, "float64")
    longest = ops.minimum(longest, ops.cast(max_length, "float64"))
    longest = ops.maximum(ops.cast(longest, "int32"), 1)
    if learned_positions(config) is not None:
        longest = ops.minimum(longest, config.max_sequence_length)
    return ops.where(lengths > 0, longest, 0)
