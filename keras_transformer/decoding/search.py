"""Step function, length penalty, state of the sentences and the loop that all searches share.

Depends on a step function only, not on a model. Letters: B batch, W beam slots, R hypotheses
returned (`n_best`), P prefix length, T target length, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_transformer.decoding.next_tokens import NOT_FINITE, Constraints, make_constraint
from keras_transformer.decoding.processors import force_end, suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings

# Compact the batch once 1 / _COMPACTION_DIVISOR of its sentences is done.
_COMPACTION_DIVISOR = 10


class StepOutput(NamedTuple):
    """Result of a step function `(token_ids (B, W), parents (B, W), cache, index)`.

    `token_ids` are the last tokens of W hypotheses per sentence; at step 0, the start token.
    `parents[b, w]` is the previous beam slot of hypothesis w; at step 0, it is 0. A step function
    that caches state per hypothesis must gather it by `parents`. `index` is the number of tokens
    decoded before.

    Args:
        logits: float tensor `(B, W, V)` of the next token. V must be static.
        cache: nest of tensors, the cache after this step, in the same structure as before. Every
            tensor has the sentences on its first axis; the other axes may change their length.
    """

    logits: tf.Tensor
    cache: Any


StepFunction: TypeAlias = Callable[[tf.Tensor, tf.Tensor, Any, tf.Tensor], StepOutput]


class SearchResult(NamedTuple):
    """The hypotheses of each sentence, best first.

    Args:
        token_ids: int32 tensor `(B, R, T)`, without the start token. A hypothesis ends with the end
            token, or without it at the maximum length. Padding follows. `T` is the length of the
            longest.
        lengths: int32 tensor `(B, R)`, the end token included; 0 where a hypothesis is missing.
        scores: float32 tensor `(B, R)`, the sum of the log-probs divided by the length penalty;
            -inf where a hypothesis is missing.
        log_probs: float32 tensor `(B, R, T)`, of each token; 0 at padding.
    """

    token_ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor
    log_probs: tf.Tensor

    def pad_to(self, length: tf.Tensor) -> "SearchResult":
        """Returns the result with tokens and log-probs padded to `length` by zeros."""
        padding = [[0, 0], [0, 0], [0, length - tf.shape(self.token_ids)[2]]]
        return self._replace(
            token_ids=tf.pad(self.token_ids, padding), log_probs=tf.pad(self.log_probs, padding)
        )

    def trim(self, pad_token_id: int) -> "SearchResult":
        """Returns the result as long as its longest hypothesis, and padded."""
        longest = tf.maximum(tf.reduce_max(self.lengths), 0)
        is_token = tf.sequence_mask(self.lengths, longest)
        return self._replace(
            token_ids=tf.where(is_token, self.token_ids[:, :, :longest], pad_token_id),
            log_probs=tf.where(is_token, self.log_probs[:, :, :longest], 0.0),
        )


class Tokens(NamedTuple):
    """Tokens and their log-probs: `(B, W)` one per hypothesis, or `(B, W, T)` all so far."""

    token_ids: tf.Tensor  # int32
    log_probs: tf.Tensor  # float32


class Sentences(NamedTuple):
    """The sentences that are still in the batch."""

    row: tf.Tensor  # int32 (B,): the row of each sentence in the results
    done: tf.Tensor  # bool (B,)
    failed: tf.Tensor  # bool (B,): the model gave no numbers for a step, see `best_next_tokens`
    max_lengths: tf.Tensor  # int32 (B,)
    alphas: tf.Tensor  # float32 (B,)
    wanted: tf.Tensor  # int32 (B,): the sentence is done when this many hypotheses are final
    target_prefix: tf.Tensor  # int32 (B, P), padded; P = 0 without a prefix
    cache: Any  # nest of tensors (B, ...)


def penalty(lengths: Any, ends: Any, settings: SearchSettings, alpha: Any = None) -> tf.Tensor:
    """Returns the length penalty. A score is the sum of the log-probs divided by it.

    Args:
        lengths: int or int tensor of tokens, end tokens included.
        ends: how many of them are end tokens; a bool tensor for hypotheses, which have at most one.
        settings: `SearchSettings`.
        alpha: float, or float32 tensor that broadcasts. Defaults to that of the settings.

    Returns:
        float32 tensor of the shape of `lengths` and `alpha`.

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
    """
    alpha = settings.alpha if alpha is None else alpha
    if not settings.count_end_token:
        lengths = tf.maximum(lengths - tf.cast(ends, tf.int32), 1)
    # In float64: a power in float32 depends, in its last bit, on the place in the batch.
    lengths, alpha = tf.cast(lengths, tf.float64), tf.cast(alpha, tf.float64)
    base = {"gnmt": (5.0 + lengths) / 6.0, "mean": lengths, None: tf.ones_like(lengths)}
    return tf.cast(base[settings.length_penalty] ** alpha, tf.float32)


def require_numbers(result: SearchResult) -> SearchResult:
    """Raises an `InvalidArgumentError` in the graph if the score of a sentence is NaN."""
    is_right = ~tf.reduce_any(tf.math.is_nan(result.scores))
    with tf.control_dependencies([tf.debugging.Assert(is_right, [NOT_FINITE])]):
        return tf.nest.map_structure(tf.identity, result)


def select(nest: Any, slots: tf.Tensor) -> Any:
    """Gathers along axis 1, the hypotheses, in every tensor; `slots` `(B, ...)` are indices."""
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, slots, batch_dims=1), nest)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base class of the searches. A subclass defines:

    - `start(sentences, start_token_id)`: returns the state before the first step;
    - `step(index, state)`: extends the hypotheses by one token, and does not change the result of
      sentences that are done;
    - `result(state)`: returns the `SearchResult` so far; values at padding are arbitrary.

    A state is a NamedTuple of nests of tensors. The first axis is the sentences; the second is
    static, except in the cache. It has the fields `sentences` and `history`.

    Args:
        step_fn, end_token_id, pad_token_id: as in `beam_search`.
        settings: `SearchSettings`.
        n_best: int. Hypotheses that are kept of each sentence. Defaults to `1`.
        alpha: float32 tensor, a scalar or `(B,)`: that of each sentence. Defaults to that of the
            settings.
        wanted: int32 tensor `(B,)`, at most `n_best`: the search of a sentence may stop when this
            many are final; the others are those found so far. Defaults to `n_best`.
        strict: bool. Whether an `InvalidArgumentError` is raised in the graph if the model's logits
            are no numbers; otherwise, such a sentence has the score NaN. Defaults to `True`.
        fixed_length: int. The tensors have room for this number of tokens from the start, so that
            their shapes do not change, as XLA needs. The cache must be such a one, and every
            sentence's maximum length at most this. Defaults to `None`: they grow.
    """

    step_fn: StepFunction
    end_token_id: int
    pad_token_id: int
    settings: SearchSettings
    n_best: int = 1
    alpha: tf.Tensor | None = None
    wanted: tf.Tensor | None = None
    strict: bool = True
    fixed_length: int | None = None

    def run(self, cache, max_lengths, start_token_id, target_prefix, compaction):
        """Returns the `SearchResult`. The arguments are those of `beam_search`."""
        state = self.first_state(cache, max_lengths, start_token_id, target_prefix)
        result = search_loop(self, state, compaction)
        if self.strict:
            result = require_numbers(result)
        return result.trim(self.pad_token_id)

    def run_fixed(self, cache, max_lengths, start_token_id):
        """As `run`, with fixed shapes: returns the result before `trim`."""
        _, state = tf.while_loop(
            lambda index, state: ~tf.reduce_all(state.sentences.done),
            lambda index, state: (index + 1, self.step(index, state)),
            (tf.constant(0), self.first_state(cache, max_lengths, start_token_id)),
        )
        return self.final(state)

    def final(self, state):
        """Returns the result; the score of sentences without numbers is NaN, their length 0."""
        result, failed = self.result(state), state.sentences.failed[:, None]
        return result._replace(
            lengths=tf.where(failed, 0, result.lengths),
            scores=tf.where(failed, float("nan"), result.scores),
        )

    def no_tokens(self, batch_size, slots):
        """Returns an empty history `(B, slots, T)`."""
        shape = [batch_size, slots, self.fixed_length or 0]
        return Tokens(tf.zeros(shape, tf.int32), tf.zeros(shape))

    def extend(self, history, tokens, index):
        """Returns a history of `index` tokens with the next ones, `(B, W)`."""
        is_next = tf.range(self.fixed_length or 0) == index

        def extended(past, last):
            if self.is_compiled:
                return tf.where(is_next, last[:, :, None], past)
            return tf.concat([past, last[:, :, None]], axis=2)

        return tf.nest.map_structure(extended, history, tokens)

    def first_state(self, cache, max_lengths, start_token_id, target_prefix=None):
        """Returns the state before the first step. The arguments are those of `beam_search`."""
        batch_size = tf.size(max_lengths)
        alpha = self.settings.alpha if self.alpha is None else self.alpha
        wanted = self.n_best if self.wanted is None else self.wanted
        if target_prefix is None:
            target_prefix = tf.zeros([batch_size, 0], tf.int32)
        sentences = Sentences(
            row=tf.range(batch_size),
            done=max_lengths <= 0,
            failed=tf.zeros([batch_size], tf.bool),
            max_lengths=max_lengths,
            alphas=tf.broadcast_to(tf.cast(alpha, tf.float32), [batch_size]),
            wanted=tf.broadcast_to(wanted, [batch_size]),
            target_prefix=target_prefix,
            cache=cache,
        )
        return self.start(sentences, start_token_id)

    def penalty(self, sentences, lengths, has_end):
        """Returns the length penalty `(B, W)`; `lengths` and `has_end` broadcast to it."""
        return penalty(lengths, has_end, self.settings, sentences.alphas[:, None])

    @property
    def is_compiled(self):
        """Whether XLA compiles the search."""
        return self.fixed_length is not None

    def constraints(self, state, index):
        """Returns the constraints on the next token, for `best_next_tokens`."""
        sentences, prefix = state.sentences, state.sentences.target_prefix
        processors, is_active = [*self.settings.processors], bool(self.settings.processors)
        suppressed = self.settings.suppressed_tokens
        if suppressed:
            processors.append(suppress_tokens(suppressed))
        if self.settings.force_end:
            limits = sentences.max_lengths
            processors.append(force_end(limits[:, None, None], self.end_token_id))
            is_active |= tf.reduce_any((index + 1 >= limits) & ~sentences.done)
        if prefix.shape[1] != 0:
            is_active |= index < tf.shape(prefix)[1]
        token_ids = state.history.token_ids
        constraint = make_constraint(processors, token_ids, index, prefix, self.pad_token_id)
        return Constraints(constraint, suppressed, is_active)


def search_loop(search, state, compaction):
    """Steps until all sentences are done, and removes finished sentences from the batch.

    Args:
        search: `Search`.
        state: its state before the first step.
        compaction: bool. `False`: finished sentences stay in the batch. The result is the same.

    Returns:
        `SearchResult`, not trimmed.
    """
    results = tf.nest.map_structure(tf.zeros_like, search.final(state))

    def few_are_done(index, state):
        done = tf.math.count_nonzero(state.sentences.done, dtype=tf.int32)
        return done * (_COMPACTION_DIVISOR if compaction else 1) < tf.size(state.sentences.done)

    def advance(index, state):
        return index + 1, search.step(index, state)

    def run_and_compact(index, state, results):
        shapes = tf.TensorShape([]), loop_shapes(state)
        index, state = tf.while_loop(few_are_done, advance, (index, state), shape_invariants=shapes)
        is_done = state.sentences.done
        done, others = tf.where(is_done)[:, 0], tf.where(~is_done)[:, 0]
        rows = tf.gather(state.sentences.row, done)[:, None]
        length = tf.maximum(index, 1)  # `tensor_scatter_nd_update` rejects outputs of size 0
        finished = tf.nest.map_structure(lambda leaf: tf.gather(leaf, done), search.final(state))
        results = tf.nest.map_structure(
            lambda to, new: tf.tensor_scatter_nd_update(to, rows, new),
            results.pad_to(length),
            finished.pad_to(length),
        )
        return index, tf.nest.map_structure(lambda leaf: tf.gather(leaf, others), state), results

    start = (tf.constant(0), state, results)
    result_shapes = tf.nest.map_structure(_any_length, results)
    _, _, results = tf.while_loop(
        lambda index, state, results: tf.size(state.sentences.done) > 0,
        run_and_compact,
        start,
        shape_invariants=(tf.TensorShape([]), loop_shapes(state), result_shapes),
    )
    return results


def loop_shapes(state):
    """Shapes that hold in every iteration: sentences leave, histories and caches grow."""
    shapes = tf.nest.map_structure(_static_slots, state)
    cache = tf.nest.map_structure(_any_length, state.sentences.cache)
    return shapes._replace(sentences=shapes.sentences._replace(cache=cache))


def _static_slots(tensor):
    return tf.TensorShape([None, *tensor.shape[1:2], *[None] * (tensor.shape.rank - 2)])


def _any_length(tensor):
    return tf.TensorShape([None] * tensor.shape.rank)
