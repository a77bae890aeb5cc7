"""Processors: constraints on the next token of a search.

A processor is a callable `(log_probs, token_ids, index) -> log_probs`: float32 `(B, W, V)` of the
next token, int32 `(B, W, T)` tokens so far without the start token, and T. It must return values of
at most 0, because a search stops early where no better hypothesis can follow. A token with -inf
cannot be chosen. The others are not renormalised, so scores stay the model's own; a processor that
lowers a token without forbidding it, as `repetition_penalty` does, changes the scores.
"""

from collections.abc import Iterable

import tensorflow as tf

from keras_transformer.decoding.next_tokens import IMPOSSIBLE, Processor


def min_length(length: int, end_token_id: int) -> Processor:
    """Forbids the end token before a hypothesis has `length` tokens.

    Args:
        length: int, without the end token.
        end_token_id: int.

    Returns:
        processor.

    >>> forbid = min_length(2, end_token_id=2)
    >>> forbid(tf.zeros([1, 1, 4]), tf.zeros([1, 1, 1], tf.int32), 1).numpy()
    array([[[  0.,   0., -inf,   0.]]], dtype=float32)
    """

    def process(log_probs, token_ids, index):
        is_end = tf.range(tf.shape(log_probs)[-1]) == end_token_id
        return tf.where(is_end & (index < length), IMPOSSIBLE, log_probs)

    return process


def force_end(max_length: int | tf.Tensor, end_token_id: int) -> Processor:
    """Forces the end token as token number `max_length`, with log-prob 0, as Marian's models have.

    Without it, a translation that reaches its maximum length has no end token.

    Args:
        max_length: int, or int tensor `(B, 1, 1)`, the end token included. The setting `force_end`
            of a search takes the maximum length of each sentence.
        end_token_id: int.

    Returns:
        processor.

    >>> force = force_end(2, end_token_id=2)
    >>> force(tf.fill([1, 1, 4], -1.0), tf.zeros([1, 1, 1], tf.int32), 1).numpy()
    array([[[-inf, -inf,   0., -inf]]], dtype=float32)
    """

    def process(log_probs, token_ids, index):
        is_end = tf.range(tf.shape(log_probs)[-1]) == end_token_id
        forced = tf.where(is_end, 0.0, IMPOSSIBLE)
        return tf.where(index + 1 >= max_length, forced + tf.zeros_like(log_probs), log_probs)

    return process


def suppress_tokens(token_ids: Iterable[int]) -> Processor:
    """Forbids tokens everywhere.

    Args:
        token_ids: list of int.

    Returns:
        processor.

    >>> suppress_tokens([3])(tf.zeros([1, 1, 4]), tf.zeros([1, 1, 0], tf.int32), 0).numpy()
    array([[[  0.,   0.,   0., -inf]]], dtype=float32)
    """
    suppressed = tuple(token_ids)

    def process(log_probs, token_ids, index):
        ids = tf.range(tf.shape(log_probs)[-1])[:, None]
        return tf.where(tf.reduce_any(ids == suppressed, axis=1), IMPOSSIBLE, log_probs)

    return process


def repetition_penalty(penalty: float) -> Processor:
    """Multiplies the log-probs of tokens that the hypothesis already has.

    Args:
        penalty: float, at least 1. With 1 nothing changes.

    Returns:
        processor.

    Raises:
        ValueError: if `penalty` is below 1.

    >>> process = repetition_penalty(1.5)
    >>> process(tf.fill([1, 1, 4], -2.0), tf.constant([[[3, 3]]]), 2).numpy()
    array([[[-2., -2., -2., -3.]]], dtype=float32)

    Reference:
        [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), section 4.1, on log-probs.
    """
    if penalty < 1:
        raise ValueError(f"`penalty` must be at least 1. Received: {penalty=}")

    def process(log_probs, token_ids, index):
        return tf.where(_occurs_in(token_ids, log_probs), log_probs * penalty, log_probs)

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
    >>> process(tf.zeros([1, 1, 5]), tf.constant([[[3, 4, 3]]]), 3).numpy()  # not 3 4 again
    array([[[  0.,   0.,   0.,   0., -inf]]], dtype=float32)

    Reference:
        [Paulus et al., 2017](https://arxiv.org/abs/1705.04304), section 2.5.
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1. Received: {size=}")

    def process(log_probs, token_ids, index):
        count = tf.maximum(tf.shape(token_ids)[2] - size + 1, 0)
        # Where the last `size - 1` tokens occurred before: (B, W, count)
        is_repeated = tf.fill(tf.shape(token_ids[:, :, :count]), True)
        for offset in range(size - 1):
            latest = token_ids[:, :, index - size + 1 + offset :][:, :, :1]
            is_repeated &= token_ids[:, :, offset : offset + count] == latest
        followers = tf.where(is_repeated, token_ids[:, :, size - 1 :], -1)
        return tf.where(_occurs_in(followers, log_probs), IMPOSSIBLE, log_probs)

    return process


def _occurs_in(token_ids, log_probs):
    """Which tokens of the vocabulary occur in ids `(B, W, T)`, -1 for none: bool `(B, W, V)`."""
    shape = tf.shape(log_probs)
    length = tf.shape(token_ids)[2]
    # (B, W, T) -> (B * W, T, 2): row and token + 1, so that column 0 counts the -1.
    rows = tf.repeat(tf.range(shape[0] * shape[1])[:, None], length, axis=1)
    places = tf.stack([rows, tf.reshape(token_ids, tf.shape(rows)) + 1], axis=-1)
    counts = tf.scatter_nd(places, tf.ones_like(rows), [shape[0] * shape[1], shape[2] + 1])
    return tf.reshape(counts[:, 1:] > 0, shape)
