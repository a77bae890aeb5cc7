"""Token weights of loss and metrics, and labels outside the vocabulary."""

from keras import ops

from keras_transformer.types import Tensor


def token_weights(
    labels: Tensor, ignore_class: int | None, sample_weight: Tensor | None = None
) -> Tensor:
    """Returns the weight of each label: 0 for `ignore_class`, else its sample weight or 1.

    Args:
        labels: int tensor `(B, T)`.
        ignore_class: label with weight 0, or `None`.
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


def class_indices(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Clips labels to the vocabulary, and marks those outside with NaN.

    Args:
        labels: int tensor `(B, T)`.
        num_classes: vocabulary size `V`.

    Returns:
        int32 tensor `(B, T)` of indices from 0 to `V - 1`, and float32 `(B, T)`, NaN where the
        label is outside and 0 elsewhere: add it to the value computed from the index.

    Example:

    >>> indices, outside = class_indices(np.array([[1, 9]]), num_classes=8)
    >>> ops.convert_to_numpy(indices).tolist(), ops.convert_to_numpy(outside).tolist()
    ([[1, 7]], [[0.0, nan]])
    """
    labels = ops.cast(labels, "int32")
    indices = ops.clip(labels, 0, num_classes - 1)
    outside = ops.where(ops.equal(labels, indices), 0.0, float("nan"))
    return indices, ops.cast(outside, "float32")  # whatever `floatx` is
