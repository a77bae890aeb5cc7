"""Beam search with two pools: active hypotheses, and finished ones. A beam of 1 is greedy search.

Depends on a step function only, not on a model.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops, tree

from keras_transformer.decoding.engine import SearchResult
from keras_transformer.decoding.loop import first_k, pick, require_numbers, select
from keras_transformer.decoding.next_tokens import best_next_tokens, next_log_probs
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import Search, Sentences, StepFunction, Tokens
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor


def beam_search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: Tensor,
    start_token_id: Any,
    end_token_id: int,
    pad_token_id: int = 0,
    *,
    n_best: int = 1,
    target_prefix: Tensor | None = None,
    compaction: bool = True,
    **settings: Any,
) -> SearchResult:
    """Finds the hypotheses with the highest scores. Each step extends the `beam_size` best.

    The score of a hypothesis is the sum of its log-probs divided by its length penalty. Each step
    ranks all extensions by one more token and takes the best `2 * beam_size` as candidates.
    Candidates that end, or reach the maximum length, compete by score for the `n_best` slots of the
    finished pool; the best `beam_size` others stay active. So finished hypotheses use no beam
    slots, and active ones cannot displace them. Ties: the lower token id, then the lower beam slot.
    A sentence is done when no active hypothesis can enter the finished pool. Log-probs are at most
    0, so the total of a hypothesis never increases, and its score can become at most its total
    divided by the largest length penalty that it can still reach.

    With `stopping="first_beams"`, the rule of CTranslate2 and fairseq, only the best `beam_size`
    candidates can end; worse ones are dropped if they end. A sentence is done once `beam_size`
    hypotheses have ended. All that end in the last step are kept, as in CTranslate2; fairseq keeps
    only the first `beam_size`.

    Args:
        step_fn: callable `(token_ids (B, W), parents (B, W), cache, index) -> StepOutput`; see
            `StepOutput`.
        cache: nest of tensors with the sentences on the first axis.
        max_lengths: int32 tensor `(B,)`: maximum number of tokens of each sentence, the end token
            included. With 0 a sentence stays empty.
        start_token_id: int; or int tensor `(B, 1)`, that of each sentence.
        end_token_id: int.
        pad_token_id: int. Pads the sentences that ended. Defaults to `0`.
        n_best: int, at most `beam_size`: hypotheses to return. Defaults to `1`.
        target_prefix: int32 tensor `(B, P)`, padded with `pad_token_id`: the forced first tokens of
            each hypothesis, whatever their probability. Optional.
        compaction: bool. Whether sentences that ended leave the batch, which saves work and does
            not change the result. Defaults to `True`.
        **settings: those of `SearchSettings` on the choice of tokens: `beam_size`,
            `length_penalty`, `alpha`, `stopping`, `processors`, `suppressed_tokens`, `force_end`
            and `sampler`.

    Returns:
        `SearchResult` with `n_best` hypotheses for each sentence. Missing ones come last, with the
        score -inf and the length 0.

    Raises:
        ValueError: if `n_best` or a setting is out of its range, or if the log-probs of a sentence
            are invalid, see `best_next_tokens`. On TensorFlow, the latter is an
            `InvalidArgumentError`.

    Memory: `16 * (2 * W + n_best) * T` bytes per sentence, and the logits, in addition to what the
        step function uses.

    Example: the best first token is 3, but the end is unlikely after it, so token 4 wins.

    >>> from keras_transformer.decoding.search import StepOutput
    >>> table = np.full((5, 5), -np.inf, "float32")
    >>> table[1, 3:] = np.log([0.6, 0.4])  # after the start
    >>> table[3, 2:] = np.log([0.4, 0.3, 0.3])  # after 3
    >>> table[4, 2] = 0.0  # after 4: only the end
    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(ops.take(table, ops.maximum(token_ids, 1), axis=0), cache)
    >>> result = beam_search(step_fn, (), ops.array([5]), start_token_id=1, end_token_id=2)
    >>> result.token_ids.numpy(), np.exp(result.log_probs.numpy()).round(2)
    (array([[[4, 2]]], dtype=int32), array([[[0.4, 1. ]]], dtype=float32))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1;
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
    """
    search = make_search(
        SearchSettings(**settings),
        n_best,
        step_fn=step_fn,
        end_token_id=end_token_id,
        pad_token_id=pad_token_id,
    )
    result = search.run(cache, max_lengths, start_token_id, target_prefix, compaction)
    return require_numbers(result)


def greedy_search(*arguments: Any, **options: Any) -> SearchResult:
    """Extends every sentence, token by token, up to its end token or its maximum length.

    Each token is the most probable one (ties: the lowest id), or is drawn by the setting `sampler`.

    Args:
        *arguments, **options: as in `beam_search`; `beam_size` is 1.

    Returns:
        `SearchResult` with one hypothesis for each sentence.

    Example: the step function returns constant logits, so every step takes the same token.

    >>> from keras_transformer.decoding.search import StepOutput
    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(ops.array([[[0.0, 0.0, 0.1, 0.7, 0.2]]]), cache)
    >>> greedy_search(step_fn, (), ops.array([3]), 1, 2).token_ids.numpy()
    array([[[3, 3, 3]]], dtype=int32)
    """
    return beam_search(*arguments, beam_size=1, **options)


def make_search(settings: SearchSettings, n_best: int = 1, **arguments: Any) -> Search:
    """Returns the search of some settings.

    Args:
        settings: `SearchSettings`.
        n_best: int, at most `settings.max_hypotheses`. Defaults to `1`.
        **arguments: the other arguments of `Search`.
    """
    settings.require_n_best(n_best)
    return BeamSearch(settings=settings, n_best=n_best, **arguments)


class BeamState(NamedTuple):
    """State of a beam search between two steps."""

    sentences: Sentences
    last_token_ids: Tensor  # int32 (B, W)
    parents: Tensor  # int32 (B, W): the previous beam slot of each active hypothesis
    totals: Tensor  # float32 (B, W): sums of the log-probs; IMPOSSIBLE in empty slots
    history: Tokens  # (B, W, T), of the active hypotheses
    finished: SearchResult  # (B, R, T), best first
    num_ended: Tensor  # int32 (B,): the number of hypotheses that have ended


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Search):
    """See `beam_search`."""

    @property
    def beam_size(self):
        return self.settings.max_hypotheses

    @property
    def num_candidates(self):
        """Greedy search has one candidate: if it ends, no hypothesis stays active."""
        return 1 if self.beam_size == 1 else 2 * self.beam_size

    def start(self, sentences, start_token_id):
        """Puts a hypothesis without tokens in slot 0: finished in empty sentences, else active."""
        batch_size, is_empty = shape_of(sentences.row)[0], sentences.done[:, None]
        is_first_slot, is_best = ops.arange(self.beam_size) == 0, ops.arange(self.n_best) == 0
        token_ids, log_probs = self.no_tokens(batch_size, self.n_best)
        return BeamState(
            sentences,
            last_token_ids=ops.broadcast_to(
                ops.cast(start_token_id, "int32"), (batch_size, self.beam_size)
            ),
            parents=ops.zeros((batch_size, self.beam_size), "int32"),
            totals=ops.cast(ops.where(~is_empty & is_first_slot, 0.0, IMPOSSIBLE), "float32"),
            history=self.no_tokens(batch_size, self.beam_size),
            finished=SearchResult(
                token_ids=token_ids,
                lengths=ops.zeros((batch_size, self.n_best), "int32"),
                scores=ops.cast(ops.where(is_empty & is_best, 0.0, IMPOSSIBLE), "float32"),
                log_probs=log_probs,
            ),
            num_ended=ops.zeros_like(sentences.row),
        )

    def step(self, index, state):
        sentences = state.sentences
        output = self.step_fn(state.last_token_ids, state.parents, sentences.cache, index)
        totals, parents, tokens, is_valid = self._candidates(output.logits, state, index)
        length = index + 1
        history = self.extend(select(state.history, parents), tokens, index)
        is_last = length >= sentences.max_lengths
        ends = (tokens.token_ids == self.end_token_id) | is_last[:, None]
        # With "first_beams", only the best candidates can end.
        is_first_beams = self.settings.stopping == "first_beams"
        max_ends = self.beam_size if is_first_beams else self.num_candidates
        may_end = ends & (ops.arange(self.num_candidates) < max_ends)
        end_totals = ops.where(may_end, totals, IMPOSSIBLE)
        finished = self._add_finished(state, history, end_totals, length)
        num_ended = state.num_ended + ops.sum(ops.cast(end_totals > IMPOSSIBLE, "int32"), axis=1)
        # The candidates that stay active, `(B, W)`.
        totals, active = first_k(ops.where(ends, IMPOSSIBLE, totals), self.beam_size)
        if is_first_beams:
            may_stop = (num_ended >= self.beam_size) | (totals[:, 0] == IMPOSSIBLE)
        else:
            worst_wanted = pick(finished.scores, sentences.wanted[:, None] - 1)
            may_stop = (self._bound(sentences, totals, length) <= worst_wanted)[:, 0]
        failed = sentences.failed | ~(is_valid | sentences.done)
        done = sentences.done | is_last | may_stop | failed
        return BeamState(
            sentences._replace(cache=output.cache, done=done, failed=failed),
            last_token_ids=select(tokens.token_ids, active),
            parents=select(parents, active),
            totals=ops.where(done[:, None], IMPOSSIBLE, totals),
            history=select(history, active),
            finished=finished,
            num_ended=num_ended,
        )

    def _candidates(self, logits, state, index):
        """Returns the best C = `num_candidates` extensions of the active hypotheses, best first.

        Returns:
            their totals, the beam slots that they extend and their tokens, `(B, C)`; and whether
            each sentence's log-probs are valid, `(B,)`.
        """
        k = min(self.num_candidates, logits.shape[-1])
        constraints = self.constraints(state, index)
        if self.settings.sampler is None:
            next_tokens = best_next_tokens(logits, k, constraints, self.is_fixed)
        else:
            next_tokens = _drawn_tokens(logits, constraints, self.settings.sampler)
        log_probs, token_ids, is_valid = next_tokens
        slots = ops.arange(self.beam_size)[:, None]

        def flat(values):  # (B, W, k) -> (B, W * k)
            return ops.reshape(values, (-1, self.beam_size * k))

        # Of equal totals, `first_k` takes the first: sort by token id, then by beam slot.
        order = ops.argsort(flat(token_ids * self.beam_size + slots))
        sorted_totals = select(flat(state.totals[:, :, None] + log_probs), order)
        totals, best_in_order = first_k(sorted_totals, self.num_candidates)
        best = select(order, best_in_order)
        tokens = select(Tokens(flat(token_ids), flat(log_probs)), best)
        return totals, best // k, tokens, ops.all(is_valid, axis=1)

    def _add_finished(self, state, history, totals, length):
        """Merges the candidates that end at this length into the finished pool; ties: the earlier.

        `totals` `(B, C)` are `IMPOSSIBLE` for candidates that do not end.
        """
        finished = state.finished
        ending = SearchResult(
            token_ids=history.token_ids,
            lengths=ops.broadcast_to(ops.cast(length, "int32"), shape_of(totals)),
            scores=totals / self.penalty(state.sentences, length),
            log_probs=history.log_probs,
        )
        if not self.is_fixed:
            padding = [[0, 0], [0, 0], [0, 1]]
            finished = finished._replace(
                token_ids=ops.pad(finished.token_ids, padding),
                log_probs=ops.pad(finished.log_probs, padding),
            )
        both = tree.map_structure(
            lambda old, new: ops.concatenate([old, new], axis=1), finished, ending
        )
        scores, best = first_k(both.scores, self.n_best)
        chosen = select(both, best)
        lengths = ops.where(scores > IMPOSSIBLE, chosen.lengths, 0)
        return chosen._replace(scores=scores, lengths=lengths)

    def _bound(self, sentences, totals, length):
        """The highest score `(B, 1)` that an active hypothesis can reach; log-probs are <= 0."""
        # The penalty is monotonic in the length, so its maximum is at one of the ends: the next
        # token is the end token, or the hypothesis is cut at the maximum length.
        largest = ops.maximum(
            self.penalty(sentences, length + 1),
            self.penalty(sentences, sentences.max_lengths[:, None]),
        )
        # Clip the penalty: without active hypotheses the total is -inf, and -inf / inf is NaN.
        return totals[:, :1] / ops.minimum(largest, np.finfo("float32").max)


def _drawn_tokens(logits, constraints, sampler):
    """Lets a sampler draw one token for each sentence; returns the same as `best_next_tokens`."""
    log_probs, is_valid = next_log_probs(logits, constraints)
    # If no token is possible, any is drawn: its log-prob stays -inf, or NaN.
    is_possible = ops.any(log_probs > IMPOSSIBLE, axis=-1, keepdims=True)
    sampler_logits = ops.where(is_possible, log_probs, 0.0)[:, 0]  # (B, 1, V) -> (B, V)
    token_ids = sampler.get_next_token(sampler.compute_probabilities(sampler_logits))
    token_ids = ops.cast(token_ids, "int32")[:, None, None]
    return pick(log_probs, token_ids), token_ids, is_valid
