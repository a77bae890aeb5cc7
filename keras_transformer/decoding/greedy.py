"""Greedy search: takes the most probable token at every step, or a sampled token.

Runs inside the TensorFlow graph. Depends on a step function only, not on a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.next_tokens import (
    IMPOSSIBLE,
    Processor,
    best_next_tokens,
    next_log_probs,
)
from keras_transformer.decoding.search import Search, SearchResult, Sentences, StepFunction, Tokens


def greedy_search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: tf.Tensor,
    start_token_id: int,
    end_token_id: int,
    pad_token_id: int = 0,
    *,
    length_penalty: str | None = "gnmt",
    alpha: float | tf.Tensor = 0.6,
    count_end_token: bool = True,
    target_prefix: tf.Tensor | None = None,
    processors: Sequence[Processor] = (),
    sampler: Any = None,
    compaction: bool = True,
) -> SearchResult:
    """Extends every sentence, token by token, up to its end token or its maximum length.

    Args:
        step_fn: callable `(token_ids (B, 1), parents (B, 1), cache, index) -> StepOutput`; see
            `StepOutput`. `parents` is always 0 here.
        cache: nest of tensors with the sentences on the first axis.
        max_lengths: int32 tensor `(B,)`: maximum number of tokens of each sentence, the end token
            included. With 0 a sentence stays empty.
        start_token_id: int.
        end_token_id: int.
        pad_token_id: int. Pads the sentences that ended. Defaults to `0`.
        length_penalty: `"gnmt"`, `"mean"` or `None`, as in `SearchSettings`. Defaults to `"gnmt"`,
            the paper's.
        alpha: float, the exponent of the penalty. Defaults to `0.6`, the paper's.
        count_end_token: bool. Whether the length of the penalty counts the end token, as in
            `SearchSettings`. Defaults to `True`.
        target_prefix: int32 tensor `(B, P)`, padded with `pad_token_id`: the forced first tokens of
            each hypothesis, whatever their probability. Optional.
        processors: callables `(log_probs (B, W, V), token_ids (B, W, T), index) -> log_probs`, such
            as those of `decoding.processors`. They must return values of at most 0.
        sampler: KerasHub sampler, such as `keras_hub.samplers.TopKSampler(k=5, seed=1)`, for the
            tokens. Defaults to `None`: the most probable token; ties: the lowest id.
        compaction: bool. Whether sentences that ended leave the batch, which saves work and does
            not change the result. Defaults to `True`.

    Returns:
        `SearchResult` with one hypothesis for each sentence.

    Example: the step function returns constant logits, so every step takes the same token.

    >>> from keras_transformer.decoding.search import StepOutput
    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(tf.constant([[[0.0, 0.0, 0.1, 0.7, 0.2]]]), cache)
    >>> greedy_search(step_fn, (), tf.constant([3]), 1, 2).token_ids.numpy()
    array([[[3, 3, 3]]], dtype=int32)
    """
    search = GreedySearch(
        step_fn=step_fn,
        end_token_id=end_token_id,
        pad_token_id=pad_token_id,
        length_penalty=length_penalty,
        alpha=alpha,
        count_end_token=count_end_token,
        processors=processors,
        sampler=sampler,
    )
    return search.run(cache, max_lengths, start_token_id, target_prefix, compaction)


class GreedyState(NamedTuple):
    """State of a greedy search between two steps."""

    sentences: Sentences
    last_token_ids: tf.Tensor  # int32 (B, 1)
    totals: tf.Tensor  # float32 (B, 1): sums of the log-probs
    lengths: tf.Tensor  # int32 (B, 1)
    history: Tokens  # (B, 1, T)


@dataclass(frozen=True, kw_only=True)
class GreedySearch(Search):
    """See `greedy_search`."""

    sampler: Any

    def start(self, sentences, start_token_id):
        batch_size = tf.size(sentences.row)
        return GreedyState(
            sentences,
            last_token_ids=tf.fill([batch_size, 1], start_token_id),
            totals=tf.zeros([batch_size, 1]),
            lengths=tf.zeros([batch_size, 1], tf.int32),
            history=self.no_tokens(batch_size, 1),
        )

    def step(self, index, state):
        sentences, last_token_ids = state.sentences, state.last_token_ids
        output = self.step_fn(last_token_ids, tf.zeros_like(last_token_ids), sentences.cache, index)
        new, is_valid = self._next_tokens(output.logits, self.constraints(state, index))
        failed = sentences.failed | ~(is_valid[:, 0] | sentences.done)
        done = sentences.done[:, None]
        totals = tf.where(done, state.totals, state.totals + new.log_probs)
        # A total of -inf: no token is possible, so the sentence has no hypothesis.
        ends = (new.token_ids == self.end_token_id) | (totals == IMPOSSIBLE)
        is_last = index + 1 >= sentences.max_lengths
        all_done = sentences.done | ends[:, 0] | is_last | failed
        return GreedyState(
            sentences._replace(cache=output.cache, done=all_done, failed=failed),
            last_token_ids=new.token_ids,
            totals=totals,
            lengths=tf.where(done, state.lengths, index + 1),
            history=self.extend(state.history, new, index),
        )

    def result(self, state):
        lengths = tf.where(state.totals > IMPOSSIBLE, state.lengths, 0)
        is_token = tf.sequence_mask(state.lengths, tf.shape(state.history.token_ids)[2])
        is_end = is_token & (state.history.token_ids == self.end_token_id)
        has_end = tf.reduce_any(is_end, axis=2)
        # Length 1 for empty sentences, whose score is 0: a penalty of 0 would give 0 / 0.
        lengths_scored = tf.maximum(state.lengths, 1)
        scores = state.totals / self.penalty(state.sentences, lengths_scored, has_end)
        return SearchResult(state.history.token_ids, lengths, scores, state.history.log_probs)

    def _next_tokens(self, logits, constraints):
        """Returns the next tokens with the model's log-probs, and `is_valid`; all `(B, 1)`."""
        if self.sampler is None:
            best = best_next_tokens(logits, 1, constraints, self.is_compiled)
            log_probs, token_ids, is_valid = best
            return Tokens(token_ids[:, :, 0], log_probs[:, :, 0]), is_valid
        log_probs, is_valid = next_log_probs(logits, constraints)
        log_probs = log_probs[:, 0]  # (B, 1, V) -> (B, V)
        token_ids = self.sampler.get_next_token(self.sampler.compute_probabilities(log_probs))
        # If all tokens are forbidden, samplers return V, which is not a token id.
        token_ids = tf.minimum(tf.cast(token_ids, tf.int32), log_probs.shape[-1] - 1)[:, None]
        return Tokens(token_ids, tf.gather(log_probs, token_ids, batch_dims=1)), is_valid
