"""Search and scores with a model: token ids in and out, inside the graph.

Connects the searches to the model: neither imports the other. Letters: B batch, W beam slots, S
source length, T target length.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import tensorflow as tf

from keras_transformer.decoding.beam import make_search
from keras_transformer.decoding.search import SearchResult, StepOutput
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.search_tree import SearchTree, search_with_tree
from keras_transformer.types import Tensor

# Token ids `(B, T)` and `SearchSettings.runtime_values` as inputs of a graph.
IDS = tf.TensorSpec([None, None], tf.int32)
RUNTIME_SPECS = tuple(
    tf.TensorSpec([], dtype) for dtype in (tf.float32, tf.float64, tf.int32, tf.int32)
)


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
    encoder_token_ids: tf.Tensor,
    settings: SearchSettings,
    runtime_values: tuple[tf.Tensor, ...] | None = None,
    n_best: int = 1,
    target_prefix: tf.Tensor | None = None,
    **options: Any,
) -> SearchResult:
    """Finds the best translations of sentences.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        settings: `SearchSettings`.
        runtime_values: tensors of the dtypes of `RUNTIME_SPECS`, scalars or `(B,)`. Defaults to
            those of the settings.
        n_best: int. Translations of each sentence. Defaults to `1`.
        target_prefix: int32 tensor `(B, P)`, padded: the forced first tokens. Those beyond the
            maximum length are cut off. Optional.
        **options: `wanted`, `strict` and `fixed_length` of `Search`. With `fixed_length`, at least
            `longest_target` of the shape, no shape changes, as XLA needs: the shape of the ids is
            static, there are no processors, no sampler and no prefix, and the result is neither
            trimmed nor checked, because XLA ignores the checks of a graph.

    Returns:
        `SearchResult`.

    Raises:
        ValueError: if `n_best` exceeds the beam.
    """
    given = model, encoder_token_ids, settings, runtime_values, n_best
    search, inputs = _search_of(*given, **options)
    if search.is_compiled:
        return search.run_fixed(*inputs)
    return search.run(*inputs, target_prefix, compaction=True)


def tree_of_model(
    model: SearchModel, encoder_token_ids: tf.Tensor, settings: SearchSettings
) -> tuple[SearchResult, SearchTree]:
    """As `search_model`, with the tree of the search; sentences may fail, see `Search.strict`."""
    search, inputs = _search_of(model, encoder_token_ids, settings)
    return search_with_tree(search, *inputs)


def _search_of(model, encoder_token_ids, settings, runtime_values=None, n_best=1, **options):
    """Returns the search, and its inputs: cache, maximum lengths and start token."""
    config, length = model.config, options.get("fixed_length")
    alpha, *limits = runtime_values or runtime_inputs(settings)
    is_token = encoder_token_ids != config.pad_token_id
    lengths = tf.math.count_nonzero(is_token, axis=1, dtype=tf.int32)
    fixed = {} if length is None else {"max_length": length, "beam_size": settings.beam_size}
    cache = model.init_cache(encoder_token_ids, **fixed)
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
        alpha=alpha,
        **options,
    )
    return search, (cache, max_lengths(config, lengths - 1, limits), config.start_token_id)


def kept_hypotheses(settings: SearchSettings, n_best: Any) -> Any:
    """Returns how many hypotheses a search keeps, so that `n_best` can be picked from them.

    `n_best` is an int or an int32 tensor. The search for the best one alone is the shortest.
    """
    if not settings.distinct_texts:
        return n_best
    if tf.is_tensor(n_best):
        return tf.where(n_best == 1, 1, settings.max_hypotheses)
    return 1 if n_best == 1 else settings.max_hypotheses


def runtime_inputs(settings: SearchSettings) -> tuple[tf.Tensor, ...]:
    """Returns the settings' `runtime_values` as scalar tensors of `RUNTIME_SPECS`."""
    pairs = zip(settings.runtime_values, RUNTIME_SPECS, strict=True)
    return tuple(tf.constant(value, spec.dtype) for value, spec in pairs)


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
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target_token_ids, logits)
    return tf.where(target_token_ids == config.pad_token_id, 0.0, -losses)


def teacher_forcing(config, encoder_token_ids, target_token_ids):
    """Returns inputs of a model; the decoder gets the start token, then all tokens but the last."""
    start = tf.fill([tf.shape(target_token_ids)[0], 1], config.start_token_id)
    given = tf.concat([start, target_token_ids], axis=1)[:, :-1]
    return {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": given}


def longest_target(source_length: int, settings: SearchSettings, config: Any) -> int:
    """Returns the greatest maximum length of a translation of `source_length` tokens."""
    _, length_ratio, extra_length, max_length = settings.runtime_values
    longest = min(math.floor(length_ratio * (source_length - 1)) + extra_length, max_length)
    return max(1, min(longest, learned_positions(config) or longest))


def learned_positions(config: Any) -> int | None:
    """Returns the number of tokens that a model has learned positions for; `None`: any number."""
    return config.max_sequence_length if config.positions == "learned" else None


def max_lengths(config: Any, lengths: tf.Tensor, limits: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the maximum number of tokens of translations, end token and prefix included.

    Args:
        config: as in `SearchModel`.
        lengths: int32 tensor `(B,)`: tokens of each source, without the end token.
        limits: `length_ratio`, `extra_length` and `max_length`, as in `search_model`.

    Returns:
        int32 tensor `(B,)`, 0 for empty sources.
    """
    length_ratio, extra_length, max_length = limits
    # float64 rounds as Python does. `max_length` is in the range of int32.
    longest = tf.floor(length_ratio * tf.cast(lengths, tf.float64))
    longest = longest + tf.cast(extra_length, tf.float64)
    longest = tf.minimum(longest, tf.cast(max_length, tf.float64))
    longest = tf.maximum(tf.cast(longest, tf.int32), 1)
    if learned_positions(config) is not None:
        longest = tf.minimum(longest, config.max_sequence_length)
    return tf.where(lengths > 0, longest, 0)
