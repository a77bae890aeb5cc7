"""The one rule by which loss and metrics weigh tokens."""

from keras import ops


def token_weights(labels, ignore_class, sample_weight=None):
    """Weighs each label: 0 where it equals `ignore_class`, else its sample weight or 1.

    Args:
        labels: int tensor `(B, T)`.
        ignore_class: int, or `None` to ignore nothing.
        sample_weight: float tensor `(B, T)`, or `(B,)` or `(B, 1)` for whole sentences. Optional.

    Returns:
        float32 tensor `(B, T)`.

    Example:

    >>> ops.convert_to_numpy(token_weights(np.array([[7, 8, 0]]), ignore_class=0)).tolist()
    [[1.0, 1.0, 0.0]]
    """
    if ignore_class is None:
        weights = ops.ones_like(labels, dtype="float32")
    else:
        weights = ops.cast(ops.not_equal(labels, ignore_class), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    if len(sample_weight.shape) < len(weights.shape):
        sample_weight = ops.expand_dims(sample_weight, -1)
    return weights * sample_weight
