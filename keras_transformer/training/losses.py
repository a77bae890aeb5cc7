"""Cross-entropy with label smoothing, one value per token, and which tokens count.

Paper, section 5.4.
"""

import inspect
from typing import Any, NamedTuple

import keras
from keras import ops

# Arrays of JAX do not carry the mask as an attribute.
from keras.src.backend.common.masking import get_keras_mask

from keras_transformer.types import Tensor

# Logit of a class with probability 0. Finite, because 0 * inf is NaN.
EXCLUDED_LOGIT = -1e9
_ABSENT: Any = object()  # stands for an attribute that a loss does not have


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy between sparse labels, smoothed over all classes, and logits.

    The target distribution is `1 - eps` on the label plus `eps / V` on every class, the label
    included, as in the paper and in Keras (some toolkits spread `eps / (V - 1)` over the others).
    Classes whose logit is about -1e9 have no probability and no share of `eps`; they must be the
    same for all tokens.
    Letters: B batch, T length, V number of classes.

    Args:
        label_smoothing: `eps`, at least 0 and less than 1. Defaults to `0.1`.
        ignore_class: label with weight 0, with or without `sample_weight`, such as the padding id.
            Defaults to `None`, as in Keras: 0 may be a real class, and tokenizers pad with
            different ids. Not needed with `make_dataset`, whose `sample_weight` is 0 at padding.
        reduction: as in `keras.losses.Loss`. Defaults to `"mean_with_sample_weight"`, which divides
            the sum over the tokens by the sum of their weights, independent of the amount of
            padding. `"mean"` and `"sum_over_batch_size"` divide by the number of labels that are
            not ignored; `"sum"` does not divide.
        name: defaults to `"smoothed_cross_entropy"`.
        dtype: dtype of the loss. Defaults to float32.

    Call arguments:
        y_true: int tensor `(B, T)`.
        y_pred: float tensor `(B, T, V)`, logits.
        sample_weight: float tensor `(B, T)` or `(B,)`. Optional.

    Returns:
        scalar in nats per token. `call` returns a `(B, T)` tensor without reduction and weights.
        If a label whose weight is not 0 is outside the vocabulary, the loss is NaN; if it is a
        class without probability, the loss is about 1e9 or infinite.

    Precision: float32.
    Departures from the paper: none.

    Example:

    >>> loss = keras_transformer.SmoothedCrossEntropy(label_smoothing=0.0, ignore_class=0)
    >>> uniform = np.zeros((1, 3, 8), "float32")
    >>> float(np.exp(loss(np.array([[5, 2, 0]]), uniform)).round(4))
    8.0

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.4;
        [Szegedy et al., 2015](https://arxiv.org/abs/1512.00567).
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_class: int | None = None,
        reduction: str | None = "mean_with_sample_weight",
        name: str | None = "smoothed_cross_entropy",
        dtype: str | None = None,
    ) -> None:
        # Not `floatx`: Keras casts the labels too, and bfloat16 reads label 1001 as 1000.
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and less than 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing
        self.ignore_class = ignore_class

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        weights = token_weights(y_true, self.ignore_class, sample_weight)
        if self.reduction in ("mean", "sum_over_batch_size"):
            # Divide by the labels that are not ignored, as Keras's losses with `ignore_class` do.
            # Keras itself divides by the labels that a mask of the logits leaves.
            mask = get_keras_mask(y_pred)
            is_counted = token_weights(y_true, self.ignore_class, mask)
            share = ops.mean(is_counted)
            if mask is not None:
                share = ops.divide_no_nan(share, ops.mean(ops.cast(mask, "float32")))
            weights = ops.divide_no_nan(weights, share)
        # Labels with weight 0 may be outside the vocabulary.
        y_true = ops.where(ops.equal(weights, 0), 0, y_true)
        return super().__call__(y_true, y_pred, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        logits = ops.cast(y_pred, "float32")
        num_classes = logits.shape[-1]
        indices, outside = class_indices(y_true, num_classes)
        target = ops.one_hot(indices, num_classes, dtype="float32")
        # All tokens exclude the same classes, so read those of the first token. If no class is
        # excluded, `spread` is exactly 1.
        is_excluded = ops.any(ops.reshape(logits, (-1, num_classes))[:1] < EXCLUDED_LOGIT / 2, 0)
        is_included = ops.cast(ops.logical_not(is_excluded), "float32")
        spread = is_included * (num_classes / ops.sum(is_included))
        target = target * (1.0 - self.label_smoothing)
        target += self.label_smoothing / num_classes * spread
        return ops.categorical_crossentropy(target, logits, from_logits=True) + outside

    def get_config(self) -> dict[str, Any]:
        arguments = {"label_smoothing": self.label_smoothing, "ignore_class": self.ignore_class}
        return {**super().get_config(), **arguments}


class LossTraits(NamedTuple):
    """What the step must know of a loss given to `compile`: an object, a function or a name.

    Attributes:
        reduction: as in `keras.losses.Loss`; `None` or `"none"` for no reduction.
        can_ignore: whether the loss has an `ignore_class`, which may be `None`.
        ignore_class: label with weight 0, or `None`.
        takes_probabilities: whether it expects probabilities instead of logits.
    """

    reduction: str | None
    can_ignore: bool
    ignore_class: int | None
    takes_probabilities: bool


NO_LOSS = LossTraits("mean_with_sample_weight", False, None, False)


def traits_of(loss: Any) -> LossTraits:
    """Returns what the step must know of a loss; Keras's losses state it in attributes."""
    reduction = "sum_over_batch_size"  # Keras's default, for a function or a name
    if isinstance(loss, keras.losses.Loss):
        reduction = loss.reduction
    ignore_class = getattr(loss, "ignore_class", _ABSENT)
    from_logits = getattr(loss, "from_logits", _ABSENT)
    if from_logits is _ABSENT:
        takes_probabilities = _expects_probabilities(loss)
    else:
        takes_probabilities = not from_logits
    return LossTraits(
        reduction=reduction,
        can_ignore=ignore_class is not _ABSENT,
        ignore_class=None if ignore_class is _ABSENT else ignore_class,
        takes_probabilities=takes_probabilities,
    )


def _expects_probabilities(loss):
    if not callable(loss):
        return True  # a name: Keras creates such a loss with `from_logits=False`
    from_logits = inspect.signature(loss).parameters.get("from_logits")
    return from_logits is not None and from_logits.default is False


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
    return indices, ops.cast(outside, "float32")  # with any `floatx`
