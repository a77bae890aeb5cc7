"""The compiled loss as one value per token, and its divisor."""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training.row_splitting import Rows
from keras_transformer.training.token_weights import token_weights


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

    def weights(self, labels: tf.Tensor, sample_weight: tf.Tensor | None) -> tf.Tensor:
        """Returns the float32 `(B, T)` weights of the tokens."""
        return token_weights(labels, self._ignore_class, sample_weight)

    def values(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Returns the float32 `(B, T)` losses of the tokens, before weights and reduction.

        Raises:
            ValueError: if the loss does not return one value per token.
            tf.errors.InvalidArgumentError: when the graph runs, if a label outside the vocabulary
                has a weight other than 0.
        """
        # Labels with weight 0 may be outside the vocabulary.
        labels = tf.where(weights == 0, 0, tf.cast(labels, tf.int32))
        logits = tf.cast(logits, tf.float32)
        _check_labels(labels, logits.shape[-1])
        is_loss = isinstance(self._loss, keras.losses.Loss)
        values = (self._loss.call if is_loss else self._loss)(labels, logits)
        if getattr(values, "shape", None) is None or values.shape.rank != 2:
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
        return tf.cast(values, tf.float32)

    def divisor(self, rows: Rows, num_parts: int) -> tf.Tensor:
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
            return tf.constant(1 / num_parts)
        is_mean_of_weights = self._reduction == "mean_with_sample_weight" or not self
        weights = self.weights(rows.y, rows.sample_weight if is_mean_of_weights else None)
        return tf.reduce_sum(weights * tf.cast(rows.is_real, tf.float32)[:, None])


def _check_labels(labels, num_classes):
    lowest, highest = tf.reduce_min(labels), tf.reduce_max(labels)
    expected = f"A label must be a token id of the model, 0 to {num_classes - 1}. Received: from"
    is_valid = (lowest >= 0) & (highest < num_classes)
    tf.debugging.Assert(is_valid, [expected, lowest, "to", highest])
