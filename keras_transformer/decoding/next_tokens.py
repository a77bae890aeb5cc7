"""The most probable next tokens of hypotheses, from logits, under constraints.

Letters: B batch, W beam slots, T tokens so far, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

# Log-probability of a forbidden token, and score of an empty beam slot.
IMPOSSIBLE = -float("inf")
NOT_FINITE = "The model's logits must not be NaN, and at least one must be finite"
# Chunk sizes of the two-stage `top_k`, best first.
_CHUNKS = range(64, 31, -1)

# `(log_probs (B, W, V), token_ids (B, W, T), index) -> log_probs`, see `decoding.processors`.
Processor: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def top_k(values, k):
    """Two-stage `tf.math.top_k`: the best chunks, then the best tokens in them.

    Three times as fast for a large vocabulary.

    Args:
        values: float tensor `(B, W, V)`.
        k: int.

    Returns:
        values and int32 indices `(B, W, k)`, in descending order; ties: the lower index first.
    """
    size = values.shape[-1]
    # One that divides the vocabulary spares a padded copy of the logits.
    chunk = next((chunk for chunk in _CHUNKS if size % chunk == 0), _CHUNKS[0])
    if size <= k * chunk:
        return tf.math.top_k(values, k)
    if size % chunk:
        padding = [[0, 0], [0, 0], [0, -size % chunk]]
        values = tf.pad(values, padding, constant_values=IMPOSSIBLE)
    outer = tf.shape(values)[:2]
    # (B, W, V) -> (B, W, chunks, chunk)
    chunks = tf.reshape(values, tf.concat([outer, [-1, chunk]], axis=0))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    if k > 1:
        best = tf.sort(best)  # so that ties keep the lower index first
    # (B, W, k, chunk) -> (B, W, k * chunk)
    inside = tf.reshape(tf.gather(chunks, best, batch_dims=2), tf.concat([outer, [-1]], axis=0))
    values, positions = tf.math.top_k(inside, k)
    indices = tf.gather(best, positions // chunk, batch_dims=2) * chunk + positions % chunk
    return values, tf.minimum(indices, size - 1)  # NaN has no order: padding could be among them


def best_next_tokens(logits, k, constraints, compiled=False):
    """Returns the most probable next tokens of each hypothesis.

    Args:
        logits: float tensor `(B, W, V)`.
        k: int.
        constraints: `Constraints`.
        compiled: bool. Whether XLA compiles it. Defaults to `False`.

    Returns:
        float32 log-probs and int32 token ids, both `(B, W, k)`, the best first; and bool `(B, W)`,
        whether the model's log-probs are numbers: `False` if logits are NaN, infinite or all -inf.
    """

    def best_allowed():
        log_probs, is_valid = next_log_probs(logits, constraints)
        return *top_k(log_probs, k), is_valid

    def best_of_most():
        return _best_of_most(logits, k, compiled, constraints.suppressed)

    is_active = constraints.is_active
    if isinstance(is_active, bool):
        return best_allowed() if is_active else best_of_most()
    return tf.cond(is_active, best_allowed, best_of_most)


def _best_of_most(logits, k, compiled, suppressed=()):
    if suppressed:  # as many tokens more, so that the logits need no mask
        more = min(k + len(suppressed), logits.shape[-1])
        log_probs, token_ids, is_valid = _best_of_most(logits, more, compiled)
        is_suppressed = tf.reduce_any(token_ids[..., None] == suppressed, axis=-1)
        log_probs = tf.where(is_suppressed, IMPOSSIBLE, log_probs)
        log_probs, order = tf.math.top_k(log_probs, k)
        return log_probs, tf.gather(token_ids, order, batch_dims=2), is_valid
    # Log-probs are logits minus a constant, so only the best one is normalised.
    logits = tf.cast(logits, tf.float32)
    values, token_ids = top_k(logits, k)
    if compiled:
        # Without `values[:, :, :1]`: for two slices, XLA would sort the whole vocabulary.
        best = tf.reduce_max(values, axis=-1, keepdims=True)
        total = tf.reduce_sum(tf.exp(logits - best), axis=-1, keepdims=True)
        highest = -tf.math.log(total)
        return values - best + highest, token_ids, tf.math.is_finite(highest[:, :, 0])
    # `tf.nn.softmax` is twice as fast as `tf.nn.log_softmax`.
    highest = tf.gather(tf.nn.softmax(logits), token_ids[:, :, :1], batch_dims=2)
    highest = tf.math.log(highest)
    log_probs = values - values[:, :, :1] + tf.minimum(highest, 0.0)
    return log_probs, token_ids, tf.math.is_finite(highest[:, :, 0])


def next_log_probs(logits, constraints):
    """Returns float32 log-probs `(B, W, V)` after the constraints; not renormalised.

    Args: as `best_next_tokens`.

    Returns:
        the log-probs, and bool `(B, W)` as `best_next_tokens`.
    """
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    is_valid = tf.math.is_finite(tf.reduce_max(log_probs, axis=-1))
    return constraints.apply(log_probs), is_valid


class Constraints(NamedTuple):
    """The constraints on the next token.

    Args:
        apply: callable from log-probs `(B, W, V)` to log-probs.
        suppressed: tuple of token ids, which `apply` forbids in every step.
        is_active: bool, or bool tensor: whether `apply` does anything else in this step.
    """

    apply: Callable[[tf.Tensor], tf.Tensor]
    suppressed: tuple[int, ...]
    is_active: bool | tf.Tensor


def make_constraint(processors, token_ids, index, target_prefix, pad_token_id):
    """Joins processors and the forced prefix of a step into one function of the log-probs.

    Args:
        processors: list, see `decoding.processors`.
        token_ids: int32 tensor `(B, W, T)`, the hypotheses so far, without the start token.
        index: int tensor, their length.
        target_prefix: int32 tensor `(B, P)`, padded: the forced first tokens. A static P of 0 means
            no prefix.
        pad_token_id: int.
    """

    def constrain(log_probs):
        given = log_probs
        for processor in processors:
            log_probs = processor(log_probs, token_ids, index)
        if target_prefix.shape[1] != 0:  # overrides the processors
            log_probs = _force(given, log_probs, target_prefix, index, pad_token_id)
        message = (
            "A processor must return log-probs of at most 0, not above 0: the search relies on it "
            "to stop early. Received:"
        )
        is_right = ~tf.reduce_any(log_probs > 0.0)  # also of a sentence whose log-probs are NaN
        check = tf.debugging.Assert(is_right, [message, tf.reduce_max(log_probs)])
        with tf.control_dependencies([check]):
            return tf.identity(log_probs)

    return constrain


def _force(given, log_probs, target_prefix, index, pad_token_id):
    """Within the prefix, forbids all tokens except the next one of the prefix."""
    length = tf.shape(target_prefix)[1]
    # (B, P) -> (B, 1, 1)
    token = tf.pad(target_prefix, [[0, 0], [0, 1]], constant_values=pad_token_id)
    token = tf.gather(token, tf.minimum(index, length), axis=1)[:, None, None]
    is_token = tf.range(tf.shape(log_probs)[-1]) == token
    forced = tf.where(is_token, given, IMPOSSIBLE)
    return tf.where(token == pad_token_id, log_probs, forced)
