"""The compiled loss as one value per token, and its divisor."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.rows import Rows
from keras_transformer.training.token_weights import class_indices, token_weights
from keras_transformer.types import Tensor


class TokenLoss:
    """The compiled loss, split into values and divisor, so that losses of parts can be added.

    `loss = factor * sum(weights * values) / sum of the divisors of all parts`. Letters: B batch, T
    length, V vocabulary.

    Args:
        loss: the argument of `compile`, one of: a `keras.losses.Loss` on logits, such as
            `SmoothedCrossEntropy`; a function that maps labels and logits to `(B, T)` values;
            `None`.
        loss_weights: the argument of `compile`: `None`, or one number, which may be inside a list
            or dict.

    Attributes:
        factor: the number in `loss_weights`, or 1.

    Raises:
        ValueError: if there are several losses, or the loss has no `reduction`.
    """

    def __init__(self, loss: Any, loss_weights: Any = None) -> None:
        losses = [each for each in keras.tree.flatten(loss) if each is not None]
        factors = [each for each in keras.tree.flatten(loss_weights) if each is not None]
        if len(losses) > 1 or len(factors) > 1:
            raise ValueError(
                "The model has one output: `loss` must be one loss and `loss_weights` one number. "
                f"Received: loss={loss!r}, loss_weights={loss_weights!r}"
            )
        self._loss: Any = losses[0] if losses else None
        self.factor = factors[0] if factors else 1.0
        self._ignore_class = getattr(self._loss, "ignore_class", None)
        # A plain function has no `reduction`: Keras uses this default.
        self._reduction = getattr(self._loss, "reduction", "sum_over_batch_size")
        if self._reduction in (None, "none"):
            raise ValueError(
                'The loss must have a `reduction` to one number: "mean_with_sample_weight", '
                '"mean", "sum_over_batch_size" or "sum". '
                f"Received: reduction={self._reduction!r}"
            )

    def __bool__(self) -> bool:
        return self._loss is not None

    @property
    def label_smoothing(self) -> float | None:
        """That of `SmoothedCrossEntropy`; `None` for other losses."""
        is_smoothed = type(self._loss) is SmoothedCrossEntropy
        return self._loss.label_smoothing if is_smoothed else None

    def weights(self, labels: Tensor, sample_weight: Tensor | None) -> Tensor:
        """Returns the float32 `(B, T)` weights of the tokens."""
        return token_weights(labels, self._ignore_class, sample_weight)

    def values(
        self,
        labels: Tensor,
        logits: Tensor,
        weights: Tensor,
        check_labels: Callable[[Tensor, int], None] = lambda labels, num_classes: None,
    ) -> Tensor:
        """Returns the float32 `(B, T)` losses of the tokens, before weights and reduction.

        Args:
            labels: int tensor `(B, T)`.
            logits: float tensor `(B, T, V)`.
            weights: float tensor `(B, T)`. Labels with weight 0 may be outside the vocabulary; the
                loss of others outside is NaN.
            check_labels: called with the labels and `V`; may raise an error. Optional.

        Raises:
            ValueError: if the loss does not return one value per token.
        """
        labels = ops.where(ops.equal(weights, 0), 0, ops.cast(labels, "int32"))
        logits = ops.cast(logits, "float32")
        check_labels(labels, logits.shape[-1])
        labels, outside = class_indices(labels, logits.shape[-1])
        is_loss = isinstance(self._loss, keras.losses.Loss)
        values = (self._loss.call if is_loss else self._loss)(labels, logits)
        if getattr(values, "shape", None) is None or len(values.shape) != 2:
            raise ValueError(
                "The loss must return one value per token, shape (B, T), such as "
                f"`SmoothedCrossEntropy`. Received: loss={self._loss!r}, of shape "
                f"{getattr(values, 'shape', None)}"
            )
        if self._ignore_class is None and getattr(values, "_keras_mask", None) is not None:
            raise ValueError(
                "A loss that ignores a class must be a `keras.losses.Loss` with `ignore_class`: a "
                f"function cannot report the ignored labels. Received: loss={self._loss!r}"
            )
        return ops.cast(values, "float32") + outside

    def divisor(self, rows: Rows, num_parts: int) -> Tensor:
        """Returns the contribution of this part of a batch to the divisor of the loss.

        Args:
            rows: the part. Its padding does not count.
            num_parts: number of parts whose divisors are summed.

        Returns:
            float32 scalar, by the loss's `reduction`:

            - `"mean_with_sample_weight"`: the sum of the weights;
            - `"mean"`, `"sum_over_batch_size"`: the number of labels that are not ignored;
            - `"sum"`: `1 / num_parts`, so that all parts together have the divisor 1.
        """
        if self._reduction == "sum":
            return ops.convert_to_tensor(1 / num_parts, "float32")
        is_mean_of_weights = self._reduction == "mean_with_sample_weight" or not self
        weights = self.weights(rows.y, rows.sample_weight if is_mean_of_weights else None)
        return ops.sum(weights * ops.cast(rows.is_real, "float32")[:, None])
