"""The compiled loss as one value per token, and what the sum of these is divided by."""

import keras
import tensorflow as tf

from keras_transformer.training.losses import refuse_probabilities
from keras_transformer.training.token_weights import token_weights


class TokenLoss:
    """A loss of `compile`, taken apart so that a batch can be cut into parts and summed again.

    `loss = factor * sum(weights * values) / sum of the divisors of all parts`. Letters: B batch, T
    length, V vocabulary.

    Args:
        loss: what `compile` was given: a `keras.losses.Loss` on logits, such as
            `SmoothedCrossEntropy`, a function from labels and logits to `(B, T)` values, or `None`.
        loss_weights: what `compile` was given beside it: `None`, or one number, which may stand in
            a list or dict.

    Attributes:
        factor: float, the number in `loss_weights`, or 1.

    Raises:
        ValueError: if the loss takes probabilities, or its `reduction` is none.
    """

    def __init__(self, loss, loss_weights=None):
        losses = [each for each in keras.tree.flatten(loss) if each is not None]
        factors = [each for each in keras.tree.flatten(loss_weights) if each is not None]
        if len(losses) > 1 or len(factors) > 1:
            raise ValueError(
                "The model has one output: `loss` must be one loss and `loss_weights` one number. "
                f"Received: loss={loss!r}, loss_weights={loss_weights!r}"
            )
        self._loss = losses[0] if losses else None
        self.factor = factors[0] if factors else 1.0
        self._ignore_class = getattr(self._loss, "ignore_class", None)
        # Keras wraps a function in a loss of this reduction.
        self._reduction = getattr(self._loss, "reduction", "sum_over_batch_size")
        refuse_probabilities(self._loss)
        if self._reduction in (None, "none"):
            raise ValueError(
                'The loss must have a `reduction` to one number: "mean_with_sample_weight", '
                '"mean", "sum_over_batch_size" or "sum". '
                f"Received: reduction={self._reduction!r}"
            )

    def __bool__(self):
        return self._loss is not None

    def weights(self, labels, sample_weight):
        """Returns float32 `(B, T)`: what each token's value counts."""
        return token_weights(labels, self._ignore_class, sample_weight)

    def values(self, labels, logits, weights):
        """Returns the float32 `(B, T)` losses of the tokens, before weights and reduction.

        Raises:
            ValueError: if the loss gives no value per token.
            tf.errors.InvalidArgumentError: in the graph, for a label outside the vocabulary at a
                token that counts.
        """
        labels = tf.where(weights == 0, 0, tf.cast(labels, tf.int32))  # may be any number there
        logits = tf.cast(logits, tf.float32)
        _check_labels(labels, logits.shape[-1])
        is_loss = isinstance(self._loss, keras.losses.Loss)
        values = (self._loss.call if is_loss else self._loss)(labels, logits)
        if getattr(values, "shape", None) is None or values.shape.rank != 2:
            raise ValueError(
                "The loss must give one value per token, shape (B, T), to be divided by the number "
                "of tokens of all devices; `SmoothedCrossEntropy` does. "
                f"Received: loss={self._loss!r}, of shape {getattr(values, 'shape', None)}"
            )
        if self._ignore_class is None and getattr(values, "_keras_mask", None) is not None:
            raise ValueError(
                "A loss that ignores a class must be a `keras.losses.Loss` with `ignore_class`: a "
                f"function does not say which labels count. Received: loss={self._loss!r}"
            )
        return tf.cast(values, tf.float32)

    def divisor(self, labels, sample_weight, is_real, num_parts):
        """Returns what this part of a batch adds to the divisor of the loss.

        Args:
            labels: int tensor `(B, T)`.
            sample_weight: float tensor `(B, T)` or `(B,)`.
            is_real: bool tensor `(B,)`: rows of the data, not those that fill the part up.
            num_parts: int, parts whose divisors are summed.

        Returns:
            float32 scalar: the sum of the weights for `"mean_with_sample_weight"`; the number of
            labels that are not ignored for Keras's other means; in all 1 for `"sum"`.
        """
        if self._reduction == "sum":
            return tf.constant(1 / num_parts)
        is_mean_of_weights = self._reduction == "mean_with_sample_weight" or not self
        weights = self.weights(labels, sample_weight if is_mean_of_weights else None)
        return tf.reduce_sum(weights * tf.cast(is_real, tf.float32)[:, None])


def _check_labels(labels, num_classes):
    lowest, highest = tf.reduce_min(labels), tf.reduce_max(labels)
    tf.debugging.Assert(
        (lowest >= 0) & (highest < num_classes),
        [
            f"A label must be a token id of the model, 0 to {num_classes - 1}. Received: from",
            lowest,
            "to",
            highest,
        ],
    )
