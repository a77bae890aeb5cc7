"""Processors: constraints on the next token of a search.

A processor is a callable `(log_probs, token_ids, index) -> log_probs`. `log_probs`, float32
`(B, W, V)`, are those of the next token; `token_ids`, int32 `(B, W, T)`, are the tokens so far,
without the start token; `index` is T. It must return values of at most 0: a search relies on this
to stop as soon as no better hypothesis can follow. A token with -inf cannot be chosen. The other
tokens are not renormalised, so scores stay the model's own; a processor that lowers a token without
forbidding it, as `repetition_penalty` does, changes the scores.

JAX compiles a processor once for each T. A processor with the attribute `takes_room = True`, as all
of this module have, is compiled once: T may then be larger than `index`, and only the first `index`
ids are the tokens so far.
"""

from collections.abc import Iterable

import numpy as np
from keras import ops

from keras_transformer.decoding.next_tokens import Processor
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor


def _takes_room(process):
    process.takes_room = True
    return process


def min_length(length: int, end_token_id: int) -> Processor:
    """Forbids the end token before a hypothesis has `length` tokens.

    Args:
        length: int, without the end token.
        end_token_id: int.

    Returns:
        processor.

    >>> forbid = min_length(2, end_token_id=2)
    >>> forbid(ops.zeros([1, 1, 4]), ops.zeros([1, 1, 1], "int32"), 1).numpy()
    array([[[  0.,   0., -inf,   0.]]], dtype=float32)
    """

    @_takes_room
    def process(log_probs, token_ids, index):
        is_end = ops.arange(log_probs.shape[-1]) == end_token_id
        return ops.where(is_end & (index < length), IMPOSSIBLE, log_probs)

    return process


def force_end(max_length: int | Tensor, end_token_id: int) -> Processor:
    """Forces the end token as token number `max_length`, with log-prob 0, as Marian's models do.

    Without it, a translation that reaches its maximum length has no end token.

    Args:
        max_length: int, the end token included; or int tensor `(B, 1, 1)`, only in a `beam_search`
            with `compaction=False`, where no sentence leaves the batch. The setting `force_end` of
            a search takes the maximum length of each sentence.
        end_token_id: int.

    Returns:
        processor.

    >>> force = force_end(2, end_token_id=2)
    >>> force(ops.full([1, 1, 4], -1.0), ops.zeros([1, 1, 1], "int32"), 1).numpy()
    array([[[-inf, -inf,   0., -inf]]], dtype=float32)
    """

    @_takes_room
    def process(log_probs, token_ids, index):
        is_end = ops.arange(log_probs.shape[-1]) == end_token_id
        forced = ops.where(is_end, 0.0, IMPOSSIBLE)
        return ops.where(index + 1 >= max_length, forced, log_probs)

    return process


def suppress_tokens(token_ids: Iterable[int]) -> Processor:
    """Forbids tokens everywhere.

    Args:
        token_ids: list of int.

    Returns:
        processor.

    >>> suppress_tokens([3])(ops.zeros([1, 1, 4]), ops.zeros([1, 1, 0], "int32"), 0).numpy()
    array([[[  0.,   0.,   0., -inf]]], dtype=float32)
    """
    suppressed = tuple(token_ids)

    @_takes_room
    def process(log_probs, token_ids, index):
        is_suppressed = np.isin(np.arange(log_probs.shape[-1]), np.array(suppressed, "int32"))
        return ops.where(is_suppressed, IMPOSSIBLE, log_probs)

    return process


def repetition_penalty(penalty: float) -> Processor:
    """Multiplies the log-probs of tokens that the hypothesis already has.

    Args:
        penalty: float, at least 1. With 1 nothing changes.

    Returns:
        processor.

    Raises:
        ValueError: if `penalty` is below 1 or not finite.

    >>> process = repetition_penalty(1.5)
    >>> process(ops.full([1, 1, 4], -2.0), ops.array([[[3, 3]]]), 2).numpy()
    array([[[-2., -2., -2., -3.]]], dtype=float32)

    Reference:
        [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), section 4.1, on log-probs.
    """
    if not 1 <= penalty < float("inf"):  # false for NaN
        raise ValueError(f"`penalty` must be finite and at least 1. Received: {penalty=}")

    @_takes_room
    def process(log_probs, token_ids, index):
        return ops.where(_occurs_in(token_ids, log_probs, index), log_probs * penalty, log_probs)

    return process


def no_repeat_ngram_size(size: int) -> Processor:
    """Forbids sequences of `size` tokens that the hypothesis already has.

    Args:
        size: int, at least 1. With 1 no token comes twice.

    Returns:
        processor.

    Raises:
        ValueError: if `size` is below 1.

    >>> process = no_repeat_ngram_size(2)
    >>> process(ops.zeros([1, 1, 5]), ops.array([[[3, 4, 3]]]), 3).numpy()  # not 3 4 again
    array([[[  0.,   0.,   0.,   0., -inf]]], dtype=float32)

    Reference:
        [Paulus et al., 2017](https://arxiv.org/abs/1705.04304), section 2.5.
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1. Received: {size=}")

    @_takes_room
    def process(log_probs, token_ids, index):
        positions = ops.arange(shape_of(token_ids)[2])
        # True at tokens whose `size - 1` predecessors equal the latest tokens: (B, W, T)
        follows = (positions >= size - 1) & (token_ids >= 0)
        for distance in range(1, size):
            is_latest = positions == index - distance
            latest = ops.sum(ops.where(is_latest, token_ids, 0), axis=2, keepdims=True)
            shifted = ops.pad(token_ids, [[0, 0], [0, 0], [distance, 0]])[:, :, :-distance]
            follows &= shifted == latest
        repeated = ops.where(follows, token_ids, -1)
        return ops.where(_occurs_in(repeated, log_probs, index), IMPOSSIBLE, log_probs)

    return process


def _occurs_in(token_ids, log_probs, index):
    """Returns which tokens of the vocabulary are among the first `index` ids `(B, W, T)`.

    Ids of -1 are ignored.

    Returns:
        bool tensor `(B, W, V)`.
    """
    batch, slots, length = shape_of(token_ids)
    token_ids = ops.where(ops.arange(length) < index, token_ids, -1)
    shape = (batch * slots, log_probs.shape[-1] + 1)
    # (B, W, T) -> (B * W, T, 2): row and token + 1, so that column 0 counts the -1.
    rows = ops.broadcast_to(ops.arange(batch * slots)[:, None], (batch * slots, length))
    places = ops.stack([rows, ops.reshape(token_ids, (batch * slots, length)) + 1], axis=-1)
    counts = ops.scatter(places, ops.ones_like(rows), shape)
    return ops.reshape(counts[:, 1:] > 0, (batch, slots, shape[1] - 1))
