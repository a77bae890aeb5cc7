"""Token accuracy and perplexity: means over tokens, independent of how they are batched."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.training.losses import class_indices, token_weights
from keras_transformer.types import Tensor


class TokenScores(NamedTuple):
    """What loss and metrics need to know of N tokens, in place of their logits.

    Attributes:
        losses: float32 tensor `(N,)`, the smoothed cross-entropy of each token.
        nll: float32 tensor `(N,)`, the negative log-likelihood of each label: NaN if the label is
            outside the vocabulary, infinite if it is the class that always has probability 0.
        predictions: int32 tensor `(N,)`, the most probable class.
    """

    losses: Tensor
    nll: Tensor
    predictions: Tensor


class TokenMean(keras.metrics.Mean):
    """Weighted mean of a per-token value; base class of `TokenAccuracy` and `Perplexity`.

    A subclass defines `token_values(labels, logits)`, of shape `(B, T)`, and `score_values(labels,
    scores)`, of shape `(N,)`.
    """

    default_name: str
    _direction: str  # "up" if more is better, else "down": callbacks in mode "auto" read it

    def __init__(
        self, ignore_class: int | None = None, name: str | None = None, dtype: str | None = None
    ) -> None:
        # Not `floatx`: sums over an epoch are too large for bfloat16.
        super().__init__(name=name or self.default_name, dtype=dtype or "float32")
        self.ignore_class = ignore_class

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        y_true = ops.cast(y_true, "int32")
        weights = token_weights(y_true, self.ignore_class, sample_weight)
        # Labels with weight 0 may be outside the vocabulary.
        values = self.token_values(ops.where(ops.equal(weights, 0), 0, y_true), y_pred)
        # Flatten: Keras would average each row first, so tokens of short rows would weigh more.
        super().update_state(ops.reshape(values, (-1,)), sample_weight=ops.reshape(weights, (-1,)))

    def update_from_scores(
        self, y_true: Tensor, scores: TokenScores, sample_weight: Tensor | None = None
    ) -> None:
        """The same as `update_state` for tokens whose logits were not kept.

        Args:
            y_true: int tensor `(N,)`.
            scores: the scores of the N tokens.
            sample_weight: float tensor `(N,)`. Optional.
        """
        weights = token_weights(y_true, self.ignore_class, sample_weight)
        # Labels with weight 0 may be outside the vocabulary: their scores are NaN.
        values = ops.where(ops.equal(weights, 0), 0.0, self.score_values(y_true, scores))
        super().update_state(values, sample_weight=weights)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMean):
    """The fraction of tokens whose most probable class is the label.

    Letters: B batch, T length, V number of classes.

    Args:
        ignore_class: label with weight 0, with or without `sample_weight`, such as the padding id.
            Defaults to `None`, as in Keras: 0 may be a real class, and tokenizers pad with
            different ids. Not needed in `weighted_metrics` with `make_dataset`, whose
            `sample_weight` is 0 at padding; Keras gives `metrics` no weights.
        name: defaults to `"accuracy"`.
        dtype: dtype of the result. Defaults to float32.

    Call arguments: as `SmoothedCrossEntropy`: labels `(B, T)`, logits `(B, T, V)`.

    Returns:
        scalar in [0, 1].

    Example:

    >>> metric = keras_transformer.TokenAccuracy(ignore_class=0)
    >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3, dtype="float32")[None, [1, 1, 1]])
    >>> float(metric.result())
    0.5
    """

    default_name = "accuracy"
    _direction = "up"

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        return ops.cast(ops.equal(labels, ops.argmax(logits, axis=-1)), "float32")

    def score_values(self, labels: Tensor, scores: TokenScores) -> Tensor:
        return ops.cast(ops.equal(labels, scores.predictions), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """`exp` of the mean negative log-likelihood per token, without label smoothing.

    Letters: B batch, T length, V number of classes.

    Args:
        ignore_class: label with weight 0, with or without `sample_weight`, such as the padding id.
            Defaults to `None`, as in Keras: 0 may be a real class, and tokenizers pad with
            different ids. Not needed in `weighted_metrics` with `make_dataset`, whose
            `sample_weight` is 0 at padding; Keras gives `metrics` no weights.
        name: defaults to `"perplexity"`.
        dtype: dtype of the result. Defaults to float32.

    Call arguments: as `SmoothedCrossEntropy`: labels `(B, T)`, logits `(B, T, V)`.

    Returns:
        scalar, at least 1. Values of different vocabularies cannot be compared. NaN if a label is
        outside the vocabulary.

    Example:

    >>> metric = keras_transformer.Perplexity(ignore_class=0)
    >>> metric.update_state(np.array([[1, 2, 0]]), np.zeros((1, 3, 8), "float32"))
    >>> round(float(metric.result()), 3)
    8.0
    """

    default_name = "perplexity"
    _direction = "down"

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        logits = ops.cast(logits, "float32")
        indices, nan_if_outside = class_indices(labels, logits.shape[-1])
        # Not Keras's cross-entropy: on JAX it is NaN where the logit of any class is -inf.
        log_probs = ops.take_along_axis(ops.log_softmax(logits), indices[..., None], axis=-1)
        return nan_if_outside - log_probs[..., 0]

    def score_values(self, labels: Tensor, scores: TokenScores) -> Tensor:
        return scores.nll

    def result(self) -> Tensor:
        return ops.exp(super().result())
