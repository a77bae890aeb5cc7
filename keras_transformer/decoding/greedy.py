"""Greedy search: takes the most probable token at every step, or a sampled token.

Runs inside the TensorFlow graph. Depends on a step function only, not on a model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.next_tokens import (
    IMPOSSIBLE,
    best_next_tokens,
    next_log_probs,
)
from keras_transformer.decoding.search import Search, SearchResult, Sentences, Tokens


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
        sampler = self.settings.sampler
        if sampler is None:
            best = best_next_tokens(logits, 1, constraints, self.is_compiled)
            log_probs, token_ids, is_valid = best
            return Tokens(token_ids[:, :, 0], log_probs[:, :, 0]), is_valid
        log_probs, is_valid = next_log_probs(logits, constraints)
        log_probs = log_probs[:, 0]  # (B, 1, V) -> (B, V)
        token_ids = sampler.get_next_token(sampler.compute_probabilities(log_probs))
        # If all tokens are forbidden, samplers return V, which is not a token id.
        token_ids = tf.minimum(tf.cast(token_ids, tf.int32), log_probs.shape[-1] - 1)[:, None]
        return Tokens(token_ids, tf.gather(log_probs, token_ids, batch_dims=1)), is_valid
