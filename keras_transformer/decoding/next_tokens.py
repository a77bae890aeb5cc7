"""The most probable next tokens of hypotheses, from logits, under constraints.

Letters: B batch, W beam slots, T tokens so far, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from keras_transformer.decoding.loop import first_k, pick, select
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor

# Chunk sizes of the two-stage `top_k`, best first.
_CHUNKS = range(64, 31, -1)

# `(log_probs (B, W, V), token_ids (B, W, T), index) -> log_probs`, see `decoding.processors`.
Processor: TypeAlias = Callable[[Tensor, Tensor, Any], Tensor]


def top_k(values, k):
    """Two-stage top-k: the best chunks, then the best tokens in them.

    Three times as fast as `first_k` for a large vocabulary.

    Args:
        values: float tensor `(B, W, V)`.
        k: int.

    Returns:
        values and int32 indices `(B, W, k)`, in descending order; ties: the lower index first.
    """
    size = values.shape[-1]
    # A size that divides the vocabulary avoids a padded copy of the logits.
    chunk = next((chunk for chunk in _CHUNKS if size % chunk == 0), _CHUNKS[0])
    if size <= k * chunk:
        return first_k(values, k)
    if size % chunk:
        padding = [[0, 0], [0, 0], [0, -size % chunk]]
        values = ops.pad(values, padding, constant_values=IMPOSSIBLE)
    shape = (*shape_of(values)[:2], k)
    chunks = ops.reshape(values, (-1, values.shape[-1] // chunk, chunk))  # (B * W, chunks, chunk)
    _, best = first_k(ops.max(chunks, axis=-1), k)
    if k > 1:
        best = ops.sort(best)  # so that ties keep the lower index first
    # (B * W, k, chunk) -> (B * W, k * chunk)
    values, positions = first_k(ops.reshape(select(chunks, best), (-1, k * chunk)), k)
    indices = select(best, positions // chunk) * chunk + positions % chunk
    indices = ops.minimum(indices, size - 1)  # with NaN, padding may be chosen
    return ops.reshape(values, shape), ops.reshape(indices, shape)


def best_next_tokens(logits, k, constraints, is_fixed=False):
    """Returns the most probable next tokens of each hypothesis.

    Args:
        logits: float tensor `(B, W, V)`.
        k: int.
        constraints: `Constraints`.
        is_fixed: bool. Whether XLA compiles this function. Defaults to `False`.

    Returns:
        float32 log-probs and int32 token ids, both `(B, W, k)`, the best first; and bool `(B, W)`,
        whether the log-probs are valid: `False` if a logit is NaN or +inf, all are -inf, or a
        processor returned more than 0.
    """

    def best_allowed():
        log_probs, is_valid = next_log_probs(logits, constraints)
        return *top_k(log_probs, k), is_valid

    def best_not_suppressed():
        return _best_not_suppressed(logits, k, is_fixed, constraints.suppressed)

    is_active = constraints.is_active
    if isinstance(is_active, bool):
        return best_allowed() if is_active else best_not_suppressed()
    return ops.cond(is_active, best_allowed, best_not_suppressed)


def _best_not_suppressed(logits, k, is_fixed, suppressed=()):
    """As `best_next_tokens`, if suppressed tokens are the only constraint."""
    if suppressed:  # find more tokens and drop the suppressed ones: the logits need no mask
        count = min(k + len(suppressed), logits.shape[-1])
        log_probs, token_ids, is_valid = _best_not_suppressed(logits, count, is_fixed)
        size = int(logits.shape[-1])  # where PyTorch traces a step, it is a tensor
        is_forbidden = np.isin(np.arange(size), suppressed)
        is_suppressed = ops.take(is_forbidden, token_ids, axis=0)
        log_probs, order = first_k(ops.where(is_suppressed, IMPOSSIBLE, log_probs), k)
        return log_probs, pick(token_ids, order), is_valid
    # Log-probs are logits minus a constant, so only the best one is normalised.
    logits = ops.cast(logits, "float32")
    values, token_ids = top_k(logits, k)
    if is_fixed:
        # Not `values[:, :, :1]`: with a second slice, XLA would sort the whole vocabulary.
        best = ops.max(values, axis=-1, keepdims=True)
        highest = -ops.log(ops.sum(ops.exp(logits - best), axis=-1, keepdims=True))
        return values - best + highest, token_ids, ops.isfinite(highest[:, :, 0])
    # TensorFlow's softmax is twice as fast as its `log_softmax`.
    highest = ops.log(pick(ops.softmax(logits), token_ids[:, :, :1]))
    log_probs = values - values[:, :, :1] + ops.minimum(highest, 0.0)
    return log_probs, token_ids, ops.isfinite(highest[:, :, 0])


def next_log_probs(logits, constraints):
    """Returns float32 log-probs `(B, W, V)` after the constraints; not renormalised.

    Args: as `best_next_tokens`.

    Returns:
        the log-probs, and bool `(B, W)` as `best_next_tokens`.
    """
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))
    is_valid = ops.isfinite(ops.max(log_probs, axis=-1))
    log_probs = constraints.apply(log_probs)
    return log_probs, is_valid & ~ops.any(log_probs > 0.0, axis=-1)


class Constraints(NamedTuple):
    """The constraints on the next token.

    Args:
        apply: callable from log-probs `(B, W, V)` to log-probs.
        suppressed: tuple of token ids, which `apply` forbids in every step.
        is_active: bool, or bool tensor: whether this step has constraints besides `suppressed`.
    """

    apply: Callable[[Tensor], Tensor]
    suppressed: tuple[int, ...]
    is_active: Any
