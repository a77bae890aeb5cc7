"""Greedy search: takes the most probable token at every step, or a sampled token.

Depends on a step function only, not on a model.
"""

from dataclasses import dataclass
from typing import NamedTuple

from keras import ops

from keras_transformer.decoding.loop import pick
from keras_transformer.decoding.next_tokens import best_next_tokens, next_log_probs
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import Search, SearchResult, Sentences, Tokens
from keras_transformer.types import Tensor


class GreedyState(NamedTuple):
    """State of a greedy search between two steps."""

    sentences: Sentences
    last_token_ids: Tensor  # int32 (B, 1)
    totals: Tensor  # float32 (B, 1): sums of the log-probs
    lengths: Tensor  # int32 (B, 1)
    history: Tokens  # (B, 1, T)


@dataclass(frozen=True, kw_only=True)
class GreedySearch(Search):
    """See `greedy_search`."""

    def start(self, sentences, start_token_id):
        batch_size = ops.shape(sentences.row)[0]
        return GreedyState(
            sentences,
            last_token_ids=ops.full((batch_size, 1), start_token_id, "int32"),
            totals=ops.zeros((batch_size, 1), "float32"),
            lengths=ops.zeros((batch_size, 1), "int32"),
            history=self.no_tokens(batch_size, 1),
        )

    def step(self, index, state):
        sentences, last = state.sentences, state.last_token_ids
        output = self.step_fn(last, ops.zeros_like(last), sentences.cache, index)
        new, is_valid = self._next_tokens(output.logits, self.constraints(state, index))
        failed = sentences.failed | ~(is_valid[:, 0] | sentences.done)
        done = sentences.done[:, None]
        totals = ops.where(done, state.totals, state.totals + new.log_probs)
        # A total of -inf: no token is possible, so the sentence has no hypothesis.
        ends = (new.token_ids == self.end_token_id) | (totals == IMPOSSIBLE)
        is_last = index + 1 >= sentences.max_lengths
        all_done = sentences.done | ends[:, 0] | is_last | failed
        return GreedyState(
            sentences._replace(cache=output.cache, done=all_done, failed=failed),
            last_token_ids=new.token_ids,
            totals=totals,
            lengths=ops.where(done, state.lengths, index + 1),
            history=self.extend(state.history, new, index),
        )

    def result(self, state):
        lengths = ops.where(state.totals > IMPOSSIBLE, state.lengths, 0)
        # Length 1 for empty sentences, whose score is 0: a penalty of 0 would give 0 / 0.
        scores = state.totals / self.penalty(state.sentences, ops.maximum(state.lengths, 1))
        return SearchResult(state.history.token_ids, lengths, scores, state.history.log_probs)

    def _next_tokens(self, logits, constraints):
        """Returns the next tokens with the model's log-probs, and `is_valid`; all `(B, 1)`."""
        sampler = self.settings.sampler
        if sampler is None:
            log_probs, token_ids, is_valid = best_next_tokens(logits, 1, constraints, self.is_fixed)
            return Tokens(token_ids[:, :, 0], log_probs[:, :, 0]), is_valid
        log_probs, is_valid = next_log_probs(logits, constraints)
        log_probs = log_probs[:, 0]  # (B, 1, V) -> (B, V)
        # If no token is possible, any is drawn: its log-prob stays -inf, or NaN.
        is_possible = ops.any(log_probs > IMPOSSIBLE, axis=-1, keepdims=True)
        given = sampler.compute_probabilities(ops.where(is_possible, log_probs, 0.0))
        token_ids = ops.cast(sampler.get_next_token(given), "int32")[:, None]
        return Tokens(token_ids, pick(log_probs, token_ids)), is_valid
