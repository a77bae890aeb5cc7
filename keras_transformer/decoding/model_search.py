"""Search and scores with a Transformer: token ids in, token ids out, inside the graph.

Joins the searches, which know no model, with the model, which knows no search. Letters: B batch, W
beam, S source length, T target length.
"""

import tensorflow as tf

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.search import StepOutput

# `alpha`, `length_ratio` and `extra_length` as inputs of a graph.
RUNTIME_SPECS = (
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([], tf.float64),
    tf.TensorSpec([], tf.int32),
)


def search_model(
    model,
    encoder_token_ids,
    settings,
    numbers=None,
    n_best=1,
    target_prefix=None,
    return_attention=False,
):
    """Finds the best translations of sentences.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        settings: `SearchSettings`.
        numbers: as from `runtime_values`, in place of the numbers of the settings. Optional.
        n_best: int. Translations of each sentence. Defaults to `1`.
        target_prefix: int32 tensor `(B, P)`, padded: tokens that come first. Optional.
        return_attention: bool. Defaults to `False`.

    Returns:
        `SearchResult`; its attention, if asked for, is float32 `(B, n_best, T, L, N, S)`.

    Raises:
        ValueError: if `n_best` exceeds the beam.
    """
    config = model.config
    alpha, *length_bound = runtime_values(settings) if numbers is None else numbers
    encoder_token_ids = _require_positions(config, encoder_token_ids)
    single = settings.beam_size == 1 or settings.sampler is not None
    if n_best > (1 if single else settings.beam_size):
        raise ValueError(
            "`n_best` must be at most `beam_size`, and 1 with a sampler. Received: "
            f"{n_best=}, beam_size={settings.beam_size}, sampler={settings.sampler!r}"
        )

    def step(token_ids, parents, cache, index):
        logits, cache, scores = model.decode_step(
            token_ids,
            cache,
            index,
            parents=None if single else parents,
            return_attention_scores=True,
        )
        if not return_attention:
            return StepOutput(logits, cache)
        # L times (B, N, W, S) -> (B, W, L, N, S)
        return StepOutput(logits, cache, tf.transpose(tf.stack(scores), [1, 3, 0, 2, 4]))

    arguments = {
        "max_lengths": _max_lengths(config, encoder_token_ids, *length_bound, target_prefix),
        "start_token_id": config.start_token_id,
        "end_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
        "length_penalty": settings.length_penalty,
        "alpha": alpha,
        "target_prefix": target_prefix,
        "processors": settings.processors,
    }
    if return_attention:
        layers, heads = config.num_decoder_layers, config.num_heads
        arguments["attention_shape"] = [layers, heads, tf.shape(encoder_token_ids)[1]]
    cache = model.init_cache(encoder_token_ids)
    if single:
        return greedy_search(step, cache, sampler=settings.sampler, **arguments)
    return beam_search(step, cache, beam_size=settings.beam_size, n_best=n_best, **arguments)


def runtime_values(settings):
    """Returns `alpha`, `length_ratio` and `extra_length` as scalar tensors of `RUNTIME_SPECS`."""
    pairs = zip(settings.numbers, RUNTIME_SPECS, strict=True)
    return tuple(tf.constant(number, spec.dtype) for number, spec in pairs)


def score_model(model, encoder_token_ids, target_token_ids):
    """What the model thinks of translations: the log-prob of each token after those before it.

    Args:
        model: `Transformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        target_token_ids: int32 tensor `(B, T)`, with the end tokens, padded.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    config = model.config
    start = tf.fill([tf.shape(target_token_ids)[0], 1], config.start_token_id)
    inputs = {
        "encoder_token_ids": _require_positions(config, encoder_token_ids),
        "decoder_token_ids": tf.concat(
            [start, _require_positions(config, target_token_ids)[:, :-1]], axis=1
        ),
    }
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target_token_ids, model(inputs))
    return tf.where(target_token_ids == config.pad_token_id, 0.0, -losses)


def _max_lengths(config, encoder_token_ids, length_ratio, extra_length, target_prefix):
    """The most tokens for each sentence, the end token included; empty ones stay empty."""
    lengths = _count_tokens(encoder_token_ids, config) - 1
    # In float64, as Python computes it, and no further than int32 reaches.
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


def _require_positions(config, token_ids):
    """Refuses, in the graph, what is longer than learned positions reach."""
    if config.positions != "learned":
        return token_ids
    fits = tf.debugging.assert_less_equal(
        tf.shape(token_ids)[1],
        config.max_sequence_length,
        f"A line is longer than the model's {config.max_sequence_length} positions.",
    )
    with tf.control_dependencies([fits]):
        return tf.identity(token_ids)
