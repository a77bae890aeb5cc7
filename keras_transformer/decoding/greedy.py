"""Greedy search: at every step the most probable token; or, with a sampler, one that is drawn.

Runs inside the TensorFlow graph, and knows no model, only a step function.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from keras_transformer.decoding.next_tokens import (
    IMPOSSIBLE,
    best_next_tokens,
    next_log_probs,
)
from keras_transformer.decoding.search import (
    Search,
    empty_history,
    extend_history,
    penalty,
)


def greedy_search(
    step_fn,
    cache,
    max_lengths,
    start_token_id,
    end_token_id,
    pad_token_id=0,
    *,
    length_penalty="gnmt",
    alpha=0.6,
    target_prefix=None,
    processors=(),
    sampler=None,
    attention_shape=None,
    compaction=True,
):
    """Extends every sentence, token by token, until its first end token or its greatest length.

    Args:
        step_fn: callable `(token_ids (B, 1), parents (B, 1), cache, index) -> StepOutput`; see
            there. `parents` is always 0 here.
        cache: nest of tensors with the sentences on the first axis.
        max_lengths: int32 tensor `(B,)`: most tokens for each sentence, the end token included.
            With 0 a sentence stays empty.
        start_token_id: int.
        end_token_id: int.
        pad_token_id: int. Fills up the sentences that ended. Defaults to `0`.
        length_penalty: `"gnmt"`, `"mean"` or `None`: what scores are divided by, see `penalty`.
            Defaults to `"gnmt"`, the paper's.
        alpha: float, its exponent. Defaults to `0.6`, the paper's.
        target_prefix: int32 tensor `(B, P)`, padded with `pad_token_id`: tokens that come first,
            whatever their probability. Optional.
        processors: callables `(log_probs (B, W, V), token_ids (B, W, T), index) -> log_probs`, such
            as those of `decoding.processors`. What they return must not exceed 0.
        sampler: KerasHub sampler, such as `keras_hub.samplers.TopKSampler(k=5, seed=1)`, that draws
            the tokens. Defaults to the most probable, the lowest id among equals.
        attention_shape: int tensor, the axes of `StepOutput.attention` after `(B, W)`, if the
            attention is to be kept. Optional.
        compaction: bool. Whether sentences that ended leave the batch, which saves work and changes
            no result. Defaults to `True`.

    Returns:
        `SearchResult` with one hypothesis for each sentence.

    Example: with probabilities that depend on nothing, the same token comes again and again.

    >>> from keras_transformer.decoding.search import StepOutput
    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(tf.constant([[[0.0, 0.0, 0.1, 0.7, 0.2]]]), cache)
    >>> greedy_search(step_fn, (), tf.constant([3]), 1, 2).token_ids.numpy()
    array([[[3, 3, 3]]], dtype=int32)
    """
    search = _GreedySearch(
        step_fn=step_fn,
        end_token_id=end_token_id,
        pad_token_id=pad_token_id,
        penalty=partial(penalty, length_penalty=length_penalty, alpha=alpha),
        processors=processors,
        sampler=sampler,
    )
    return search.run(
        cache, max_lengths, start_token_id, target_prefix, attention_shape, compaction
    )


@dataclass(frozen=True, kw_only=True)
class _GreedySearch(Search):
    """Start, step and result."""

    sampler: Any

    def start(self, max_lengths, start_token_id, attention_shape):
        """One empty hypothesis for each sentence."""
        shape = [tf.size(max_lengths), 1]
        return {
            "last": tf.fill(shape, start_token_id),
            "log_prob": tf.zeros(shape),
            "length": tf.zeros(shape, tf.int32),
            "history": empty_history(*shape, attention_shape),
            "done": max_lengths <= 0,
        }

    def step(self, index, state):
        """Extends each sentence that is not done by one token."""
        last = tf.ensure_shape(state["last"], [None, 1])
        output = self.step_fn(last, tf.zeros_like(last), state["cache"], index)
        constraints = self.constraints(state, state["history"], index)
        new = self._choose(output.logits, constraints)
        done = state["done"]
        log_prob = tf.where(done[:, None], state["log_prob"], state["log_prob"] + new["log_probs"])
        # One that no token can extend is lost.
        ends = (new["token_ids"] == self.end_token_id) | (log_prob == IMPOSSIBLE)
        return state | {
            "cache": output.cache,
            "last": new["token_ids"],
            "log_prob": log_prob,
            "length": tf.where(done[:, None], state["length"], index + 1),
            "history": extend_history(state["history"], **new, attention=output.attention),
            "done": done | ends[:, 0] | (index + 1 >= state["max_lengths"]),
        }

    def result(self, state):
        """The one hypothesis of each sentence; the score of an empty one is 0."""
        log_prob, length = state["log_prob"], state["length"]
        scores = log_prob / self.penalty(tf.maximum(length, 1))
        return state["history"], tf.where(log_prob > IMPOSSIBLE, length, 0), scores

    def _choose(self, logits, constraints):
        """The next tokens `(B, 1)` and the log-probs the model gives them."""
        if self.sampler is None:
            log_probs, token_ids = best_next_tokens(logits, 1, constraints)
            return {"token_ids": token_ids[:, :, 0], "log_probs": log_probs[:, :, 0]}
        # (B, 1, V) -> (B, V)
        log_probs = next_log_probs(logits, constraints)[:, 0]
        token_ids = self.sampler.get_next_token(self.sampler.compute_probabilities(log_probs))
        # Where no token is possible, what is drawn is no token.
        token_ids = tf.minimum(tf.cast(token_ids, tf.int32), log_probs.shape[-1] - 1)[:, None]
        return {"token_ids": token_ids, "log_probs": tf.gather(log_probs, token_ids, batch_dims=1)}
