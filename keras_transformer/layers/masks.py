"""Boolean masks: `True` = may be attended.

Made once from token ids at the entrance of the model, then handed to the layers as arguments.
Paper, section 3.2.3.
"""

from functools import reduce

from keras import ops


def padding_mask(token_ids, pad_token_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int tensor `(B, S)`.
        pad_token_id: int. The id that fills up short rows. Defaults to `0`.

    Returns:
        bool tensor `(B, S)`, `True` at real tokens.

    Example:

    >>> padding_mask(np.array([[7, 8, 0]])).numpy().tolist()
    [[True, True, False]]
    """
    return ops.not_equal(token_ids, pad_token_id)


def causal_mask(query_length, key_length=None):
    """Lets each position see itself and what came before it.

    The last query always sees every key, so that `query_length` new positions may follow
    `key_length - query_length` cached ones.

    Args:
        query_length: int or int tensor, `T`.
        key_length: int or int tensor, `S >= T`. Defaults to `query_length`.

    Returns:
        bool tensor `(1, T, S)`.

    Example:

    >>> causal_mask(2, 3).numpy().astype(int).tolist()
    [[[1, 1, 0], [1, 1, 1]]]
    """
    key_length = query_length if key_length is None else key_length
    queries = ops.arange(query_length, dtype="int32") + (key_length - query_length)
    keys = ops.arange(key_length, dtype="int32")
    return ops.expand_dims(queries[:, None] >= keys[None, :], 0)


def combine_masks(*masks):
    """Allows what every mask allows.

    Args:
        *masks: bool tensors of shapes that broadcast together, or `None` (allows all).

    Returns:
        bool tensor of the broadcast shape; `None` if every mask is `None`.

    Example:

    >>> combine_masks(np.array([True, True]), None, np.array([True, False])).numpy().tolist()
    [True, False]
    """
    given = [mask for mask in masks if mask is not None]
    return reduce(ops.logical_and, given) if given else None
