"""Beam search with two pools: hypotheses that are alive, and those that are complete.

Runs inside the TensorFlow graph, and knows no model, only a step function.
"""

from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.next_tokens import IMPOSSIBLE, best_next_tokens
from keras_transformer.decoding.search import (
    Search,
    empty_history,
    extend_history,
    lengthen,
    penalty,
    select,
)


def beam_search(
    step_fn,
    cache,
    max_lengths,
    start_token_id,
    end_token_id,
    pad_token_id=0,
    *,
    beam_size=4,
    n_best=1,
    length_penalty="gnmt",
    alpha=0.6,
    target_prefix=None,
    processors=(),
    attention_shape=None,
    compaction=True,
):
    """Finds the hypotheses of the highest scores, extending the `beam_size` best at every step.

    The score of a hypothesis is the sum of its log-probs over `penalty(length)`. Each step ranks
    all extensions by one more token. Of the best `2 * beam_size`, those that are complete (they
    end, or their sentence may grow no longer) compete for the pool of the `n_best` complete ones,
    and the best `beam_size` others stay alive: what is complete neither takes the place of what is
    alive, nor is lost to it. Among equals the lower token id is the better, then the lower beam
    slot. A sentence is done when nothing alive can enter the pool any more: log-probs are at most
    0, so no hypothesis can reach more than the best total over the greatest penalty to come.

    Args:
        step_fn: callable `(token_ids (B, W), parents (B, W), cache, index) -> StepOutput`; see
            there.
        cache, max_lengths, start_token_id, end_token_id, pad_token_id: as in `greedy_search`.
        beam_size: int, `W`. With 1 this is `greedy_search`. Defaults to `4`, the paper's.
        n_best: int, at most `beam_size`: hypotheses to return. Defaults to `1`.
        length_penalty, alpha, target_prefix, processors, attention_shape, compaction: as in
            `greedy_search`. `alpha` may be negative.

    Returns:
        `SearchResult` with `n_best` hypotheses for each sentence. Where there are fewer, the last
        have the score -inf and the length 0.

    Raises:
        ValueError: if `beam_size`, `n_best` or `length_penalty` is out of its range.

    Memory: beside the step's own, `16 * (2 * W + n_best) * T` bytes per sentence, the attention for
        as many tokens if it is asked for, and the logits.

    Example: after the best first token, 3, no end is likely.

    >>> from keras_transformer.decoding.search import StepOutput
    >>> table = np.full((5, 5), -np.inf, "float32")
    >>> table[1, 3:] = np.log([0.6, 0.4])  # after the start
    >>> table[3, 2:] = np.log([0.4, 0.3, 0.3])  # after 3
    >>> table[4, 2] = 0.0  # after 4 comes the end
    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(tf.gather(table, tf.maximum(token_ids, 1)), cache)
    >>> result = beam_search(step_fn, (), tf.constant([5]), start_token_id=1, end_token_id=2)
    >>> result.token_ids.numpy(), np.exp(result.log_probs.numpy()).round(2)
    (array([[[4, 2]]], dtype=int32), array([[[0.4, 1. ]]], dtype=float32))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1;
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
    """
    if beam_size < 1 or not 1 <= n_best <= beam_size:
        raise ValueError(
            "`beam_size` must be at least 1, and `n_best` from 1 to `beam_size`. "
            f"Received: {beam_size=}, {n_best=}"
        )
    if beam_size == 1:
        return greedy_search(
            step_fn,
            cache,
            max_lengths,
            start_token_id,
            end_token_id,
            pad_token_id,
            length_penalty=length_penalty,
            alpha=alpha,
            target_prefix=target_prefix,
            processors=processors,
            attention_shape=attention_shape,
            compaction=compaction,
        )
    search = _BeamSearch(
        step_fn=step_fn,
        beam_size=beam_size,
        n_best=n_best,
        end_token_id=end_token_id,
        pad_token_id=pad_token_id,
        penalty=partial(penalty, length_penalty=length_penalty, alpha=alpha),
        processors=processors,
    )
    return search.run(
        cache, max_lengths, start_token_id, target_prefix, attention_shape, compaction
    )


@dataclass(frozen=True, kw_only=True)
class _BeamSearch(Search):
    """Start, step and result. Letters: C candidates, twice the beam."""

    beam_size: int
    n_best: int

    def start(self, max_lengths, start_token_id, attention_shape):
        """One hypothesis alive, none complete; only an empty sentence is complete at once."""
        batch_size = tf.size(max_lengths)
        shape = [batch_size, self.beam_size]
        is_empty = (max_lengths <= 0)[:, None]
        return {
            "last": tf.fill(shape, start_token_id),
            "parents": tf.zeros(shape, tf.int32),
            "alive": {
                "log_prob": tf.where(~is_empty & _is_first(self.beam_size), 0.0, IMPOSSIBLE),
                "history": empty_history(*shape, attention_shape),
            },
            "complete": {
                "score": tf.where(is_empty & _is_first(self.n_best), 0.0, IMPOSSIBLE),
                "length": tf.zeros([batch_size, self.n_best], tf.int32),
                "history": empty_history(batch_size, self.n_best, attention_shape),
            },
            "done": is_empty[:, 0],
        }

    def step(self, index, state):
        """Extends what is alive by one token, and puts aside what is complete."""
        alive = state["alive"]
        last = tf.ensure_shape(state["last"], [None, self.beam_size])
        parents = tf.ensure_shape(state["parents"], [None, self.beam_size])
        output = self.step_fn(last, parents, state["cache"], index)
        constraints = self.constraints(state, alive["history"], index)
        totals, parents, new = self._candidates(output, alive["log_prob"], constraints)
        history = extend_history(select(alive["history"], parents), **new)
        length = index + 1
        is_last = length >= state["max_lengths"]
        ends = (new["token_ids"] == self.end_token_id) | is_last[:, None]
        complete = self._compete(
            state["complete"], history, length, tf.where(ends, totals, IMPOSSIBLE)
        )
        log_prob, best = tf.math.top_k(tf.where(ends, IMPOSSIBLE, totals), self.beam_size)
        bound = self._bound(log_prob, length, state["max_lengths"])
        done = state["done"] | is_last | (bound <= complete["score"][:, -1])
        return state | {
            "cache": output.cache,
            "last": select(new["token_ids"], best),
            "parents": select(parents, best),
            "alive": {
                "log_prob": tf.where(done[:, None], IMPOSSIBLE, log_prob),
                "history": select(history, best),
            },
            "complete": complete,
            "done": done,
        }

    def result(self, state):
        """The complete hypotheses."""
        complete = state["complete"]
        return complete["history"], complete["length"], complete["score"]

    def _candidates(self, output, log_prob, constraints):
        """The best extensions of a sentence: totals and parents `(B, C)`, and what is new."""
        k = min(2 * self.beam_size, output.logits.shape[-1])
        log_probs, token_ids = best_next_tokens(output.logits, k, constraints)
        slots = tf.range(self.beam_size)[:, None]
        # (B, W, k) -> (B, W * k)
        totals, log_probs, token_ids, rank = (
            tf.reshape(values, [-1, self.beam_size * k])
            for values in (
                log_prob[:, :, None] + log_probs,
                log_probs,
                token_ids,
                token_ids * self.beam_size + slots,
            )
        )
        # In the order in which equals are preferred: `top_k` takes the first of them.
        order = tf.argsort(rank)
        totals, best = tf.math.top_k(select(totals, order), 2 * self.beam_size)
        best = select(order, best)
        parents = best // k
        new = {"token_ids": select(token_ids, best), "log_probs": select(log_probs, best)}
        if output.attention is not None:
            new["attention"] = select(output.attention, parents)
        return totals, parents, new

    def _compete(self, complete, history, length, totals):
        """The best of those complete before and those of this length; of equals, the earlier."""
        scores = tf.concat([complete["score"], totals / self.penalty(length)], axis=1)
        lengths = tf.concat([complete["length"], tf.fill(tf.shape(totals), length)], axis=1)
        score, best = tf.math.top_k(scores, self.n_best)
        both = {
            name: tf.concat([lengthen(complete["history"][name], length), history[name]], axis=1)
            for name in history
        }
        return {
            "score": score,
            "length": tf.where(score > IMPOSSIBLE, select(lengths, best), 0),
            "history": select(both, best),
        }

    def _bound(self, log_prob, length, max_lengths):
        """The highest score that a hypothesis alive can reach `(B,)`: all it adds is at most 0."""
        # The penalty rises or falls with the length, so it is the greatest at one of the ends.
        greatest = tf.maximum(self.penalty(length + 1), self.penalty(max_lengths))
        # Finite: where nothing is alive, -inf over inf would be NaN.
        return log_prob[:, 0] / tf.minimum(greatest, tf.float32.max)


def _is_first(size):
    return tf.range(size) == 0
