"""Search and scores with a model: token ids in and out, inside the graph.

Connects the searches to the model: neither imports the other. Letters: B batch, W beam slots, S
source length, T target length.
"""

from typing import Any, Protocol

import tensorflow as tf

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.search import SearchResult, StepOutput
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.types import Tensor

# `SearchSettings.runtime_values` as inputs of a graph.
RUNTIME_SPECS = tuple(tf.TensorSpec([], dtype) for dtype in (tf.float32, tf.float64, tf.int32))


class SearchModel(Protocol):
    """Interface that a search uses. `Transformer` and `FrozenTransformer` implement it."""

    config: Any  # special token ids, vocabulary sizes and positions, as in `TransformerConfig`

    def init_cache(self, encoder_token_ids: Tensor, /) -> Any: ...

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
) -> SearchResult:
    """Finds the best translations of sentences.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        settings: `SearchSettings`.
        runtime_values: scalar tensors of `RUNTIME_SPECS`. Defaults to those of the settings.
        n_best: int. Translations of each sentence. Defaults to `1`.
        target_prefix: int32 tensor `(B, P)`, padded: the forced first tokens. Optional.

    Returns:
        `SearchResult`.

    Raises:
        ValueError: if `n_best` exceeds the beam.
    """
    config = model.config
    alpha, length_ratio, extra_length = runtime_values or runtime_inputs(settings)
    is_greedy = settings.beam_size == 1 or settings.sampler is not None
    if n_best > (1 if is_greedy else settings.beam_size):
        raise ValueError(
            "`n_best` must be at most `beam_size`, and 1 with a sampler. Received: "
            f"{n_best=}, beam_size={settings.beam_size}, sampler={settings.sampler!r}"
        )

    def step(token_ids, parents, cache, index):
        parents = None if is_greedy else parents
        return StepOutput(*model.decode_step(token_ids, cache, index, parents=parents))

    longest = _max_lengths(config, encoder_token_ids, length_ratio, extra_length, target_prefix)
    arguments: dict[str, Any] = {
        "max_lengths": longest,
        "start_token_id": config.start_token_id,
        "end_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
        "length_penalty": settings.length_penalty,
        "alpha": alpha,
        "target_prefix": target_prefix,
        "processors": settings.processors,
    }
    cache = model.init_cache(encoder_token_ids)
    if is_greedy:
        return greedy_search(step, cache, sampler=settings.sampler, **arguments)
    return beam_search(step, cache, beam_size=settings.beam_size, n_best=n_best, **arguments)


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


def _max_lengths(config, encoder_token_ids, length_ratio, extra_length, target_prefix):
    """Maximum number of tokens of each sentence, with the end token; 0 for empty sentences."""
    lengths = _count_tokens(encoder_token_ids, config) - 1
    # float64 rounds as Python does. Clipped to the range of int32.
    longest = tf.floor(length_ratio * tf.cast(lengths, tf.float64))
    longest = tf.minimum(longest + tf.cast(extra_length, tf.float64), tf.int32.max)
    longest = tf.maximum(tf.cast(longest, tf.int32), 1)
    if target_prefix is not None:
        longest = tf.maximum(longest, _count_tokens(target_prefix, config) + 1)
    if config.positions == "learned":
        longest = tf.minimum(longest, config.max_sequence_length)
    return tf.where(lengths > 0, longest, 0)


def _count_tokens(token_ids, config):
    return tf.math.count_nonzero(token_ids != config.pad_token_id, axis=1, dtype=tf.int32)
