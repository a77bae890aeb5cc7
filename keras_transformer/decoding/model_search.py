"""Search and scores with a model: token ids in and out, inside the graph.

Connects the searches to the model: neither imports the other. Letters: B batch, W beam slots, S
source length, T target length.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from keras_transformer.decoding.beam import make_search
from keras_transformer.decoding.next_tokens import IMPOSSIBLE
from keras_transformer.decoding.search import SearchResult, StepOutput, select
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.search_tree import SearchTree, search_with_tree
from keras_transformer.types import Tensor

# Token ids `(B, T)` and `SearchSettings.runtime_values` as inputs of a graph.
IDS = tf.TensorSpec([None, None], tf.int32)
RUNTIME_SPECS = tuple(
    tf.TensorSpec([], dtype) for dtype in (tf.float32, tf.float64, tf.int32, tf.int32)
)


class SearchModel(Protocol):
    """Interface that a search uses. `Transformer` and `FrozenTransformer` implement it."""

    config: Any  # special token ids, vocabulary sizes and positions, as in `TransformerConfig`

    def init_cache(self, encoder_token_ids: Tensor, /, **options: Any) -> Any: ...

    def decode_step(
        self, token_ids: Tensor, cache: Any, index: Tensor, /, **options: Any
    ) -> Any: ...


class EncoderDecoder(SearchModel, Protocol):
    """Interface that a `Translator` uses. `Transformer` implements it."""

    def __call__(self, inputs: dict[str, Tensor], /) -> Tensor: ...

    def attention_scores(self, inputs: dict[str, Tensor], /) -> dict[str, list[Tensor]]: ...


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
        **options: `wanted` and `strict` of `Search`.

    Returns:
        `SearchResult`.

    Raises:
        ValueError: if `n_best` exceeds the beam.
    """
    alpha, *limits = runtime_values or runtime_inputs(settings)
    longest = _max_lengths(model.config, encoder_token_ids, limits)
    cache = model.init_cache(encoder_token_ids)
    search = _build_search(model.decode_step, model.config, settings, alpha, n_best, **options)
    start = model.config.start_token_id
    return search.run(cache, longest, start, target_prefix, compaction=True)


def tree_of_model(
    model: SearchModel, encoder_token_ids: tf.Tensor, settings: SearchSettings
) -> tuple[SearchResult, SearchTree]:
    """As `search_model`, with the tree of the search; sentences may fail, see `Search.strict`."""
    alpha, *limits = runtime_inputs(settings)
    search = _build_search(model.decode_step, model.config, settings, alpha, n_best=1)
    longest = _max_lengths(model.config, encoder_token_ids, limits)
    cache = model.init_cache(encoder_token_ids)
    return search_with_tree(search, cache, longest, model.config.start_token_id)


def search_fixed(
    model: SearchModel,
    encoder_token_ids: tf.Tensor,
    settings: SearchSettings,
    runtime_values: tuple[tf.Tensor, ...],
    n_best: int,
    fixed_length: int,
) -> SearchResult:
    """Finds the best translations with tensors whose shapes do not change, as XLA needs.

    Args:
        model: `Transformer`.
        encoder_token_ids, settings, runtime_values, n_best: as in `search_model`. The shape of the
            ids is static, and there are no processors and no sampler.
        fixed_length: int, at least `longest_target` of the shape.

    Returns:
        `SearchResult`, not trimmed and not checked: XLA ignores the checks of the graph.
    """
    alpha, *limits = runtime_values
    search = _build_search(
        model.decode_step, model.config, settings, alpha, n_best, fixed_length=fixed_length
    )
    longest = _max_lengths(model.config, encoder_token_ids, limits)
    beam_size = settings.beam_size
    cache = model.init_cache(encoder_token_ids, max_length=fixed_length, beam_size=beam_size)
    return search.run_fixed(cache, longest, model.config.start_token_id)


def max_hypotheses(settings: SearchSettings) -> int:
    """Returns the number of hypotheses of a sentence: 1 if the search is greedy or draws."""
    return settings.beam_size if settings.sampler is None else 1


def kept_hypotheses(settings: SearchSettings, n_best: Any) -> Any:
    """Returns how many hypotheses a search keeps, so that `n_best` can be picked from them.

    `n_best` is an int or an int32 tensor. The search for the best one alone is the shortest.
    """
    if not settings.distinct_texts:
        return n_best
    most = max_hypotheses(settings)
    if tf.is_tensor(n_best):
        return tf.where(n_best == 1, 1, most)
    return 1 if n_best == 1 else most


def without_repeated_texts(
    result: SearchResult, texts: tf.Tensor
) -> tuple[SearchResult, tf.Tensor]:
    """Returns hypotheses and their texts without those whose text a better one has.

    Args:
        result: `SearchResult` `(B, R)`.
        texts: string tensor `(B, R)`.

    Returns:
        the same shapes. Missing hypotheses come last, as in every `SearchResult`.
    """
    is_equal = texts[:, :, None] == texts[:, None, :]
    ranks = tf.range(tf.shape(texts)[1])
    is_repeated = tf.reduce_any(is_equal & (ranks[:, None] > ranks), axis=2)
    result = result._replace(
        lengths=tf.where(is_repeated, 0, result.lengths),
        scores=tf.where(is_repeated, IMPOSSIBLE, result.scores),
    )
    order = tf.argsort(tf.cast(is_repeated, tf.int32), axis=1, stable=True)
    return select((result, tf.where(is_repeated, "", texts)), order)


def require_n_best(settings: SearchSettings, n_best: int) -> None:
    """Raises a `ValueError` if a search of these settings does not have `n_best` hypotheses."""
    if n_best > max_hypotheses(settings):
        raise ValueError(
            "`n_best` must be at most `beam_size`, and 1 with a sampler. Received: "
            f"{n_best=}, beam_size={settings.beam_size}, sampler={settings.sampler!r}"
        )


def _build_search(decode_step, config, settings, alpha, n_best, **options):
    is_greedy = max_hypotheses(settings) == 1
    suppressed = {*settings.suppressed_tokens, getattr(config, "forbidden_token_id", None)} - {None}
    require_n_best(settings, n_best)

    def step(token_ids, parents, cache, index):
        parents = None if is_greedy else parents
        return StepOutput(*decode_step(token_ids, cache, index, parents=parents))

    return make_search(
        step_fn=step,
        end_token_id=config.end_token_id,
        pad_token_id=config.pad_token_id,
        length_penalty=settings.length_penalty,
        alpha=alpha,
        count_end_token=settings.count_end_token,
        processors=settings.processors,
        beam_size=settings.beam_size,
        n_best=n_best,
        stopping=settings.stopping,
        sampler=settings.sampler,
        suppressed_tokens=tuple(sorted(suppressed)),
        force_end=settings.force_end,
        **options,
    )


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
    is_learned = config.positions == "learned"
    return max(1, min(longest, config.max_sequence_length) if is_learned else longest)


def _max_lengths(config, encoder_token_ids, limits):
    is_token = encoder_token_ids != config.pad_token_id
    lengths = tf.math.count_nonzero(is_token, axis=1, dtype=tf.int32)
    return max_lengths(config, lengths - 1, limits)


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
    if config.positions == "learned":
        longest = tf.minimum(longest, config.max_sequence_length)
    return tf.where(lengths > 0, longest, 0)
