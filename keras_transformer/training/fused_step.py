"""Loss and metrics of a train step without the logits."""

import logging

import keras
from keras import ops

from keras_transformer.training.linear_cross_entropy import linear_cross_entropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenScores
from keras_transformer.training.token_step import TokenTraining, repeat_rows
from keras_transformer.training.token_weights import class_indices, token_weights

LOGGER = logging.getLogger(__name__)


class FusedTraining(TokenTraining):
    """Mixin to list before `keras.Model`: fuses the last product, the loss and the metrics.

    A model with `has_output_kernel`, whose `output_kernel` is a matrix `(V, D)` and whose `call`
    returns the inputs of that product with `return_hidden=True`, computes loss and gradient by
    `linear_cross_entropy`. Only the tokens that count in the loss or in a metric take part. The
    results are those of the logits.

    The step computes the logits, and says so once, if `compile` was given another loss than
    `SmoothedCrossEntropy` or other metrics than `TokenAccuracy` and `Perplexity`; with float16; if
    a subclass overrides `call`, `compute_loss` or `compute_metrics`; on TensorFlow with
    `jit_compile`; and on several JAX devices.

    Attributes:
        fused_loss: `False` always computes the logits. Defaults to `True`.
        excluded_token_id: a class without probability, whose logit is about -1e9, or `None`.
    """

    excluded_token_id: int | None = None
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
                "%s. Set `fused_loss = False` on the model to avoid this message.",
                reason,
            )

    def _token_share(self, rows, num_tokens, training):
        if not self.fused_loss or self._reason_for_logits():
            return super()._token_share(rows, num_tokens, training)
        return self._fused_share(rows, num_tokens, training)

    def _fused_share(self, rows, num_tokens, training):
        passes = 2 if training and self.r_drop else 1
        hidden = self(repeat_rows(rows.x, passes), training=training, return_hidden=True)
        kernel, bias = self.output_kernel, getattr(self, "output_bias", None)
        loss, metrics = self._token_loss, self._metrics_of_tokens()
        counted = loss.weights(rows.y, rows.sample_weight) != 0
        for metric, is_weighted in metrics:
            sample_weight = rows.sample_weight if is_weighted else None
            counted |= token_weights(rows.y, metric.ignore_class, sample_weight) != 0
        counted &= rows.is_real[:, None]
        # (B, T) -> (N,); the passes of a token stay together.
        hidden, labels, sample_weight, counted = self._select_tokens(
            (
                _passes_last(hidden, passes),
                ops.cast(rows.y, "int32"),
                token_weights(rows.y, None, rows.sample_weight),
            ),
            counted,
        )
        weights = loss.weights(labels, sample_weight)
        self._check_labels(labels, kernel.shape[0])
        indices, outside = class_indices(labels, kernel.shape[0])
        if self.excluded_token_id is not None:
            outside = ops.where(indices == self.excluded_token_id, float("inf"), outside)
        hidden = ops.reshape(hidden, (-1, kernel.shape[1]))
        if bias is not None:  # as a column of the kernel: [h, 1] @ [K, b]^T = h @ K^T + b
            hidden = ops.concatenate([hidden, ops.ones_like(hidden[:, :1])], axis=1)
            kernel = ops.concatenate([kernel, ops.cast(bias, kernel.dtype)[:, None]], axis=1)
        total, scores = linear_cross_entropy(
            hidden,
            kernel,
            ops.repeat(indices, passes),
            ops.repeat(weights / passes, passes),
            loss.label_smoothing,
            with_gradient=training,
            with_predictions=any(isinstance(metric, TokenAccuracy) for metric, _ in metrics),
            r_drop=self.r_drop if passes == 2 else 0.0,
            excluded_class=self.excluded_token_id,
        )
        scores = TokenScores(*(each[::passes] for each in scores))
        scores = scores._replace(nll=scores.nll + ops.where(counted, outside, 0.0))
        self._build_metrics(rows.y, kernel.shape[0])
        for metric, is_weighted in metrics:
            metric.update_from_scores(labels, scores, sample_weight if is_weighted else None)
        total += ops.sum(ops.where(weights == 0, 0.0, outside))
        return ops.divide_no_nan(total, num_tokens) * loss.factor

    def _select_tokens(self, tensors, counted):
        """`(B, T, ...)` -> `(N, ...)`: the tokens that count; all, where shapes must be static.

        Returns:
            the tensors, and a bool tensor that marks the tokens that count.
        """
        tensors = *tensors, counted
        return [ops.reshape(each, (-1, *each.shape[2:])) for each in tensors]

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
        if self.compute_dtype == "float16":
            return "float16 needs gradients that are scaled before each product"
        overridden = type(self).compute_metrics is not keras.Model.compute_metrics
        if self._overrides_compute_loss or overridden:
            return "`compute_loss` or `compute_metrics` is overridden"
        if not getattr(self, "has_output_kernel", False):
            return "`output_kernel` of the model is None"
        return None

    def _build_metrics(self, labels, num_classes):
        """Builds the compiled metrics, which Keras would do with the first logits."""
        if self._compile_metrics is not None and not self._compile_metrics.built:
            logits = keras.KerasTensor((*labels.shape, num_classes))
            self._compile_metrics.build(labels, logits)

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


def _passes_last(hidden, passes):
    """`(passes * B, T, D)`, the passes of a row one after the other, -> `(B, T, passes * D)`."""
    if passes == 1:
        return hidden
    _, length, width = ops.shape(hidden)
    hidden = ops.reshape(hidden, (-1, passes, length, width))
    return ops.reshape(ops.swapaxes(hidden, 1, 2), (-1, length, passes * width))
