"""Token accuracy and perplexity: sums and counts over tokens, exact whatever the batches are."""

import keras
from keras import ops

from keras_transformer.training.token_weights import class_indices, token_weights


class TokenMean(keras.metrics.Mean):
    """The mean of a per-token value over the tokens that count; base of both metrics."""

    def __init__(self, ignore_class=0, name=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.ignore_class = ignore_class

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")
        weights = token_weights(y_true, self.ignore_class, sample_weight)
        # A label that weighs nothing may be any number.
        values = self.token_values(ops.where(ops.equal(weights, 0), 0, y_true), y_pred)
        # Keras would average each row first, and so weigh tokens by the width of their batch.
        super().update_state(ops.reshape(values, (-1,)), sample_weight=ops.reshape(weights, (-1,)))

    def token_values(self, labels, logits):
        """Returns the `(B, T)` values whose mean is kept."""
        raise TypeError(f"{type(self).__name__} must define `token_values`.")

    def get_config(self):
        return {**super().get_config(), "ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMean):
    """The fraction of tokens whose most probable class is the label.

    Letters: B batch, T length, V number of classes.

    Args:
        ignore_class: int. Labels equal to it weigh 0, with or without `sample_weight`; `None`
            ignores nothing. Defaults to `0`, the padding.
        name: str. Defaults to `"accuracy"`.
        dtype: dtype of the result. Defaults to float32.

    Call arguments: as `SmoothedCrossEntropy`: labels `(B, T)`, logits `(B, T, V)`.

    Returns:
        scalar in [0, 1].

    Example:

    >>> metric = keras_transformer.TokenAccuracy()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3, dtype="float32")[None, [1, 1, 1]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, ignore_class=0, name="accuracy", dtype=None):
        super().__init__(ignore_class=ignore_class, name=name, dtype=dtype)

    def token_values(self, labels, logits):
        return ops.cast(ops.equal(labels, ops.argmax(logits, axis=-1)), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """`exp` of the mean negative log-likelihood per token, without label smoothing.

    Letters: B batch, T length, V number of classes.

    Args:
        ignore_class: int. Labels equal to it weigh 0, with or without `sample_weight`; `None`
            ignores nothing. Defaults to `0`, the padding.
        name: str. Defaults to `"perplexity"`.
        dtype: dtype of the result. Defaults to float32.

    Call arguments: as `SmoothedCrossEntropy`: labels `(B, T)`, logits `(B, T, V)`.

    Returns:
        scalar, at least 1. Per token of this vocabulary: other vocabularies give other figures. NaN
        if a label is outside the vocabulary.

    Example:

    >>> metric = keras_transformer.Perplexity()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.zeros((1, 3, 8), "float32"))
    >>> round(float(metric.result()), 3)
    8.0
    """

    def __init__(self, ignore_class=0, name="perplexity", dtype=None):
        super().__init__(ignore_class=ignore_class, name=name, dtype=dtype)

    def token_values(self, labels, logits):
        logits = ops.cast(logits, "float32")
        indices, outside = class_indices(labels, logits.shape[-1])
        return ops.sparse_categorical_crossentropy(indices, logits, from_logits=True) + outside

    def result(self):
        return ops.exp(super().result())
