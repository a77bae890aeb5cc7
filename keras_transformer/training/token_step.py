"""Loss, divisors and metrics of some rows, for the exact step of every backend."""

import keras
from keras import ops

from keras_transformer.training.optimizers import check_optimizer
from keras_transformer.training.rows import check_shapes, num_real
from keras_transformer.training.standard_step import StandardTraining
from keras_transformer.training.token_loss import TokenLoss


class TokenTraining(StandardTraining):
    """Mixin to list before `keras.Model`: the loss of a batch as a sum over its parts.

    Attributes:
        r_drop: the weight `a` of R-Drop. Unless 0, each batch passes the model twice, with
            different dropout, and the loss of a token is `(l1 + l2 + a / 2 * (KL(p1 || p2) +
            KL(p2 || p1))) / 2`, where `l` are the losses of the two passes and `p` their
            predictions. Metrics are those of the first pass; validation has one pass. Defaults to
            `0.0`. Reference:
            [Liang et al., 2021](https://arxiv.org/abs/2106.14448), equation 4, divided by 2: the
            loss stays a mean per token.
    """

    _r_drop = 0.0

    @property
    def r_drop(self) -> float:
        return self._r_drop

    @r_drop.setter
    def r_drop(self, value: float) -> None:
        if not 0 <= value < float("inf"):
            raise ValueError(f"`r_drop` must be at least 0. Received: r_drop={value!r}")
        self._r_drop = float(value)
        self.train_function = None  # the next `fit` traces it again

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Checks the arguments of `compile` and the batch before Keras builds with it."""
        self._check_compiled()
        is_built = self._compile_loss is None or self._compile_loss.built
        if data_batch is None and not is_built:
            data_batch = _first_batch(iterator)
        if data_batch is not None:
            check_shapes(data_batch)
            data_batch = data_batch[:3]
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)

    @property
    def _overrides_compute_loss(self):
        return type(self).compute_loss is not keras.Model.compute_loss

    @property
    def _token_loss(self):
        if self._compile_loss is None:
            return TokenLoss(None)
        return TokenLoss(self.loss, self._compile_loss._user_loss_weights)

    def _check_compiled(self):
        """Raises for compile arguments that the steps do not support."""
        _ = self._token_loss  # raises for an unsupported loss
        if self.accumulation_steps > 1 and self._overrides_compute_loss:
            raise ValueError(
                f"With micro-batches, `{type(self).__name__}.compute_loss` must not be overridden: "
                "it returns a scalar that cannot be split. Received: accumulation_steps="
                f"{self.accumulation_steps}"
            )
        if self.r_drop and self._overrides_compute_loss:
            raise ValueError(
                f"With R-Drop, `{type(self).__name__}.compute_loss` must not be overridden: the "
                f"step computes the losses of two passes. Received: r_drop={self.r_drop}"
            )
        check_optimizer(self.optimizer)

    def _divisors(self, rows):
        """Divisors of the whole update: tokens for the loss, rows for the additional losses."""
        return self._token_loss.divisor(rows, num_parts=1), num_real(rows)

    def _loss_share(self, rows, divisors, training):
        """Returns the contribution of these rows to the loss, and updates the metrics."""
        x, y, sample_weight, _ = rows
        if self._overrides_compute_loss:
            logits = self._logits(rows, training)
            loss = self._compute_loss(x, y, logits, sample_weight, training)
            return ops.cast(loss, "float32")
        num_tokens, num_rows = divisors
        token_share = self._token_share(rows, num_tokens, training)
        shares = [
            ops.sum(ops.cast(additional, "float32")) * num_real(rows) / num_rows
            for additional in self.losses
        ]
        if token_share is not None:
            shares.append(token_share)
        if not shares:
            raise ValueError("There is no loss: give `compile` one. Received: loss=None")
        return sum(shares[1:], shares[0])

    def _token_share(self, rows, num_tokens, training):
        """Runs the model; returns the contribution of the compiled loss, `None` without one."""
        passes = 2 if training and self.r_drop else 1
        logits = self._logits(rows, training, passes)
        loss = self._token_loss
        if not loss:
            return None
        weights = loss.weights(rows.y, rows.sample_weight)
        of_passes = [logits[number::passes] for number in range(passes)]
        values = [loss.values(rows.y, each, weights, self._check_labels) for each in of_passes]
        values = sum(values) / passes
        if passes == 2:
            values += self.r_drop / 4 * _symmetric_divergence(*of_passes)
        return ops.divide_no_nan(ops.sum(values * weights), num_tokens) * loss.factor

    def _logits(self, rows, training, passes=1):
        """Runs the model on each row `passes` times in turn, and updates the metrics."""
        logits = self(repeat_rows(rows.x, passes), training=training)
        if getattr(logits, "_keras_mask", None) is not None:
            raise ValueError(
                "The model's output must not have a Keras mask (`mask_zero=True` makes one): the "
                "exact step ignores it. Pass masks to the layers as arguments, and exclude padding "
                f"by `ignore_class` or `sample_weight`. Received: {type(self).__name__}"
            )
        self._update_metrics(rows, ops.stop_gradient(logits[::passes]))
        return logits

    def _check_labels(self, labels, num_classes):
        """Raises an error for a label outside the vocabulary, where the backend can."""

    def _update_metrics(self, rows, logits):
        self.compute_metrics(rows.x, rows.y, logits, sample_weight=rows.sample_weight)

    def _track_loss(self, loss, divisors):
        self._loss_tracker.update_state(loss, sample_weight=divisors[0])


def repeat_rows(inputs, passes):
    """Returns the inputs with each row `passes` times in turn."""
    if passes == 1:
        return inputs
    return keras.tree.map_structure(lambda tensor: ops.repeat(tensor, passes, axis=0), inputs)


def _symmetric_divergence(first, second):
    """Returns `KL(p || q) + KL(q || p)` of two logits `(B, T, V)`, float32 `(B, T)`."""
    first, second = (ops.log_softmax(ops.cast(each, "float32")) for each in (first, second))
    return ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1)


def _first_batch(iterator):
    """Reads a batch for its shapes, as Keras does; `fit` resets the iterator after it."""
    for _, _, batches in iterator:
        return batches[0] if isinstance(batches, (list, tuple)) else next(batches)
