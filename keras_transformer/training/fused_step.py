"""Loss and metrics of a train step without the logits. TensorFlow only."""

import logging

import keras
import tensorflow as tf

from keras_transformer.training.linear_cross_entropy import linear_cross_entropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.token_step import TokenTraining
from keras_transformer.training.token_weights import class_indices, token_weights

LOGGER = logging.getLogger(__name__)


class FusedTraining(TokenTraining):
    """Mixin to list before `keras.Model`: fuses the last product, the loss and the metrics.

    A model with `has_output_kernel`, whose `output_kernel` is a matrix `(V, D)` and whose `call`
    returns the inputs of that product with `return_hidden=True`, computes loss and gradient by
    `linear_cross_entropy`. Only the tokens that count in the loss or in a metric take part. The
    results are those of the logits.

    The step computes the logits, and says so once, if `compile` was given another loss than
    `SmoothedCrossEntropy`, other metrics than `TokenAccuracy` and `Perplexity`, or `jit_compile`;
    with float16; and if a subclass overrides `call`, `compute_loss` or `compute_metrics`.

    Attributes:
        fused_loss: `False` always computes the logits. Defaults to `True`.
    """

    _fused_loss = True
    _reason_told: str | None = None

    @property
    def fused_loss(self) -> bool:
        return self._fused_loss

    @fused_loss.setter
    def fused_loss(self, value: bool) -> None:
        self._fused_loss = bool(value)
        self.train_function = self.test_function = None  # the next `fit` traces them again

    def _check_compiled(self):
        super()._check_compiled()
        reason = self._reason_for_logits()
        has_choice = self.fused_loss and hasattr(self, "has_output_kernel")
        if reason and has_choice and reason != self._reason_told:
            self._reason_told = reason
            LOGGER.warning(
                "The logits of all tokens are computed, which takes more time and memory, because "
                "%s. `fused_loss=False` avoids this message.",
                reason,
            )

    def _token_share(self, rows, num_tokens, training):
        if not self.fused_loss or self._reason_for_logits():
            return super()._token_share(rows, num_tokens, training)
        return self._fused_share(rows, num_tokens, training)

    def _fused_share(self, rows, num_tokens, training):
        hidden = self(rows.x, training=training, return_hidden=True)
        kernel = self.output_kernel
        loss, metrics = self._token_loss, self._metrics_of_tokens()
        weights = loss.weights(rows.y, rows.sample_weight)
        counted = weights != 0
        for metric, is_weighted in metrics:
            sample_weight = rows.sample_weight if is_weighted else None
            counted |= token_weights(rows.y, metric.ignore_class, sample_weight) != 0
        counted &= rows.is_real[:, None]
        # (B, T) -> (N,): the tokens that count.
        sample_weight = token_weights(rows.y, None, rows.sample_weight)
        hidden, labels, weights, sample_weight = (
            tf.boolean_mask(each, counted)
            for each in (hidden, tf.cast(rows.y, tf.int32), weights, sample_weight)
        )
        self._check_labels(labels, kernel.shape[0])
        indices, outside = class_indices(labels, kernel.shape[0])
        total, scores = linear_cross_entropy(
            hidden,
            kernel,
            indices,
            weights,
            loss.label_smoothing,
            with_gradient=training,
            with_predictions=any(isinstance(metric, TokenAccuracy) for metric, _ in metrics),
        )
        scores = scores._replace(nll=scores.nll + outside)
        if metrics and not self._compile_metrics.built:
            logits = keras.KerasTensor((*rows.y.shape, kernel.shape[0]))
            self._compile_metrics.build(rows.y, logits)
        for metric, is_weighted in metrics:
            metric.update_from_scores(labels, scores, sample_weight if is_weighted else None)
        total += tf.reduce_sum(tf.where(weights == 0, 0.0, outside))
        return tf.math.divide_no_nan(total, num_tokens) * loss.factor

    def _reason_for_logits(self):
        """Returns what needs the logits, or `None`."""
        loss = self._token_loss
        if loss.label_smoothing is None:
            return "the loss is not `SmoothedCrossEntropy`"
        others = [
            metric
            for metric, _ in self._metrics_of_tokens()
            if type(metric) not in (TokenAccuracy, Perplexity)
        ]
        if others:
            return f"a metric is neither `TokenAccuracy` nor `Perplexity`: {others[0]!r}"
        if self.jit_compile:
            return "`jit_compile` is set, and XLA needs a static number of tokens"
        if self.compute_dtype == "float16":
            return "float16 needs gradients that are scaled before each product"
        overridden = type(self).compute_metrics is not keras.Model.compute_metrics
        if self._overrides_compute_loss or overridden:
            return "`compute_loss` or `compute_metrics` is overridden"
        if not getattr(self, "has_output_kernel", False):
            return "`output_kernel` of the model is None"
        return None

    def _metrics_of_tokens(self):
        """The compiled metrics, each with whether it is given the sample weights."""
        compiled = self._compile_metrics
        if compiled is None:
            return []
        lists = (compiled._user_metrics, False), (compiled._user_weighted_metrics, True)
        return [
            (metric, is_weighted)
            for metrics, is_weighted in lists
            for metric in keras.tree.flatten(metrics)
            if metric is not None
        ]
