"""Greedy search: the most probable token at every step, inside the TensorFlow graph.

Knows no model, only a step function from the last tokens to the logits of the next.
"""

from typing import Any, NamedTuple

import tensorflow as tf


class StepOutput(NamedTuple):
    """What a step function returns. Letters: B batch, W beam, V vocabulary.

    Args:
        logits: float tensor `(B, W, V)` of the next token.
        cache: nest of tensors, the cache grown by this step, of the same structure as before.
    """

    logits: tf.Tensor
    cache: Any


def greedy_search(step_fn, cache, max_lengths, start_token_id, end_token_id, pad_token_id=0):
    """Extends every sentence by its most probable token until each has ended.

    Args:
        step_fn: callable `(token_ids (B, 1), parents (B, 1), cache, index) -> StepOutput`. `index`
            is how many tokens were decoded before; `parents`, the beam slot each hypothesis
            extends, is always 0 here.
        cache: nest of tensors with the sentences on the first axis. Any axis but the last may
            change its length from step to step.
        max_lengths: int32 tensor `(B,)`: most tokens for each sentence, the end token included.
            With 0 a sentence stays empty.
        start_token_id: int.
        end_token_id: int.
        pad_token_id: int. Fills up the sentences that ended. Defaults to `0`.

    Returns:
        int32 tensor `(B, T)`: the tokens without the start token, with the end token where the
        sentence ended by itself, then padding. `T` is the length of the longest.

    Example: with probabilities that depend on nothing, the same token comes again and again.

    >>> def step_fn(token_ids, parents, cache, index):
    ...     return StepOutput(tf.constant([[[0.0, 0.0, 0.1, 0.7, 0.2]]]), cache)
    >>> greedy_search(step_fn, (), tf.constant([3]), start_token_id=1, end_token_id=2).numpy()
    array([[3, 3, 3]], dtype=int32)
    """
    batch_size = tf.shape(max_lengths)[0]
    start = tf.fill([batch_size, 1], start_token_id)
    parents = tf.zeros_like(start)

    def unfinished(index, tokens, finished, cache):
        return tf.logical_not(tf.reduce_all(finished))

    def extend(index, tokens, finished, cache):
        logits, cache = step_fn(tokens[:, -1:], parents, cache, index)
        token = tf.argmax(logits[:, 0], axis=-1, output_type=tf.int32)
        token = tf.where(finished, pad_token_id, token)
        finished |= (token == end_token_id) | (index + 1 >= max_lengths)
        return index + 1, tf.concat([tokens, token[:, None]], axis=1), finished, cache

    _, tokens, _, _ = tf.while_loop(
        unfinished,
        extend,
        (tf.constant(0), start, max_lengths <= 0, cache),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([start.shape[0], None]),
            max_lengths.shape,
            tf.nest.map_structure(_growing_shape, cache),
        ),
    )
    return tokens[:, 1:]


def _growing_shape(tensor):
    return tf.TensorShape([None] * (tensor.shape.rank - 1) + [tensor.shape[-1]])
