"""From logits to the most probable next tokens, under constraints.

Letters: B batch, W beam, T tokens so far, V vocabulary.
"""

import tensorflow as tf

# The log-prob of what cannot be, and the score of a hypothesis that there is not.
IMPOSSIBLE = -float("inf")
# The best of a vocabulary are looked for in chunks of this size.
_CHUNK = 64


def top_k(values, k):
    """As `tf.math.top_k`, in a third of the time over a vocabulary: best chunks, then inside them.

    Args:
        values: float tensor `(B, W, V)`.
        k: int.

    Returns:
        values and int32 indices `(B, W, k)`, in falling order; among equals the lower index first.
    """
    size = values.shape[-1]
    if size <= k * _CHUNK:
        return tf.math.top_k(values, k)
    if size % _CHUNK:
        padding = [[0, 0], [0, 0], [0, -size % _CHUNK]]
        values = tf.pad(values, padding, constant_values=IMPOSSIBLE)
    outer = tf.shape(values)[:2]
    # (B, W, V) -> (B, W, chunks, 64)
    chunks = tf.reshape(values, tf.concat([outer, [-1, _CHUNK]], axis=0))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    if k > 1:
        best = tf.sort(best)  # among equals the lower index shall come first
    # (B, W, k, 64) -> (B, W, k * 64)
    inside = tf.reshape(tf.gather(chunks, best, batch_dims=2), tf.concat([outer, [-1]], axis=0))
    values, positions = tf.math.top_k(inside, k)
    return values, tf.gather(best, positions // _CHUNK, batch_dims=2) * _CHUNK + positions % _CHUNK


def best_next_tokens(logits, k, constraints):
    """The most probable next tokens of each hypothesis.

    Args:
        logits: float tensor `(B, W, V)`.
        k: int.
        constraints: callable from log-probs `(B, W, V)` to log-probs, or `None`.

    Returns:
        float32 log-probs and int32 token ids, both `(B, W, k)`, the best first.
    """
    if constraints is not None:
        return top_k(next_log_probs(logits, constraints), k)
    # The order of a hypothesis's log-probs is that of its logits: normalise only the best, by the
    # probability of the very best. The softmax kernel is twice as fast as that of its logarithm.
    logits = tf.cast(logits, tf.float32)
    values, token_ids = top_k(logits, k)
    highest = tf.gather(tf.nn.softmax(logits), token_ids[:, :, :1], batch_dims=2)
    highest = tf.minimum(_checked(tf.math.log(highest)), 0.0)
    return values - values[:, :, :1] + highest, token_ids


def next_log_probs(logits, constraints=None):
    """Log-softmax in float32, then the constraints, which do not normalise anew.

    Args and errors: as `best_next_tokens`.

    Returns:
        float32 tensor `(B, W, V)`.
    """
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    _checked(tf.reduce_max(log_probs, axis=-1))
    return log_probs if constraints is None else constraints(log_probs)


def _checked(highest_log_probs):
    """Refuses the log-probs of the best tokens unless they are finite."""
    return tf.debugging.check_numerics(
        highest_log_probs, "The model's logits are NaN, or leave no token possible"
    )


def make_constraints(processors, token_ids, index, target_prefix=None, pad_token_id=0):
    """Joins processors and the forced prefix of a step into one function.

    Args:
        processors: callables `(log_probs (B, W, V), token_ids (B, W, T), index) -> log_probs`.
        token_ids: int32 tensor `(B, W, T)`, the hypotheses so far, without the start token.
        index: int tensor, their length.
        target_prefix: int32 tensor `(B, P)` of tokens that must come first, padded. Optional.
        pad_token_id: int.

    Returns:
        callable from log-probs to log-probs, or `None` if there is nothing to constrain.
    """
    if not processors and target_prefix is None:
        return None

    def constrain(log_probs):
        given = log_probs
        for processor in processors:
            log_probs = processor(log_probs, token_ids, index)
        if target_prefix is not None:  # what the caller prescribes, no processor forbids
            log_probs = _force(given, log_probs, target_prefix, index, pad_token_id)
        checked = tf.debugging.assert_less_equal(
            tf.reduce_max(log_probs),
            0.0,
            "A processor must return log-probs, none above 0: the search would stop too early.",
        )
        with tf.control_dependencies([checked]):
            return tf.identity(log_probs)

    return constrain


def _force(given, log_probs, target_prefix, index, pad_token_id):
    """Leaves the prefix's token alone possible, where the prefix reaches that far."""
    length = tf.shape(target_prefix)[1]
    # (B, P) -> (B, 1, 1)
    token = tf.pad(target_prefix, [[0, 0], [0, 1]], constant_values=pad_token_id)
    token = tf.gather(token, tf.minimum(index, length), axis=1)[:, None, None]
    is_token = tf.range(tf.shape(log_probs)[-1]) == token
    forced = tf.where(is_token, given, IMPOSSIBLE)
    return tf.where(token == pad_token_id, log_probs, forced)
