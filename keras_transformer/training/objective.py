"""The objective of an update: a sum of shares, one for each part of the batch.

`loss = sum over parts(loss_share(part, divisors))`. The divisors count the tokens and rows of the
whole update, so it does not matter whether the parts are micro-batches, replicas or workers.
Letters: B batch, T length, V vocabulary, D width, N tokens that count.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

# Arrays of JAX do not carry the mask as an attribute.
from keras.src.backend.common.masking import get_keras_mask

from keras_transformer.tensor_shape import shape_of
from keras_transformer.training.linear_cross_entropy import OutputHead, linear_cross_entropy
from keras_transformer.training.losses import (
    NO_LOSS,
    LossTraits,
    SmoothedCrossEntropy,
    class_indices,
    token_weights,
    traits_of,
)
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenScores
from keras_transformer.training.workers import strategy_of
from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


class Rows(NamedTuple):
    """Some rows of a batch.

    Attributes:
        x: nest of tensors `(B, ...)`.
        y: int tensor `(B, T)`.
        sample_weight: float tensor `(B, T)` or `(B,)`.
        is_real: bool tensor `(B,)`; `False` marks rows of padding, which come last. `None` if there
            is no padding.
    """

    x: Any
    y: Tensor
    sample_weight: Tensor
    is_real: Tensor | None = None


class Tokens(NamedTuple):
    """Some tokens of a batch, without its axes of rows and positions.

    Attributes:
        hidden: float tensor `(N, D)`, hidden states; `(N, 2 D)` if there are two passes.
        labels: int32 tensor `(N,)`.
        sample_weight: float32 tensor `(N,)`.
    """

    hidden: Tensor
    labels: Tensor
    sample_weight: Tensor


class CompiledLoss(NamedTuple):
    """The loss given to `compile`, or `None`, its factor from `loss_weights`, and its traits."""

    loss: Any
    factor: float
    traits: LossTraits


def to_rows(batch: Any) -> Rows:
    """Returns the rows of a batch, as Keras passes it to a step.

    Raises:
        ValueError: if labels or weights have a wrong shape.
    """
    check_shapes(batch)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if sample_weight is None:
        sample_weight = ops.ones(shape_of(y))
    return Rows(*keras.tree.map_structure(ops.convert_to_tensor, (x, y, sample_weight)))


def check_shapes(batch: Any) -> None:
    """Raises a `ValueError` if labels or weights have a shape that would give a wrong loss."""
    _, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    _check_axes("y", labels, [2], "(B, T), one token id per position")
    if sample_weight is not None:
        _check_axes("sample_weight", sample_weight, [1, 2], "(B, T) or (B,)")


def _check_axes(name, value, numbers_of_axes, expected):
    """Raises a `ValueError` unless a value is one tensor with an allowed number of axes."""
    shape = _shape(value)
    is_tensor = value is not None and not isinstance(value, dict)
    if not is_tensor or (shape is not None and len(shape) not in numbers_of_axes):
        received = "none" if value is None else f"shape {shape}"
        raise ValueError(f"`{name}` must be one tensor {expected}. Received: {received}")


def _shape(value):
    return getattr(value, "shape", None)  # a user's data or loss may be anything


def num_replicas(model: keras.Model) -> int:
    """Returns the number of TensorFlow's replicas that train a model; 1 on other backends."""
    return strategy_of(model).num_replicas_in_sync


def compiled_loss(model: keras.Model) -> CompiledLoss:
    """Returns the loss given to `compile`.

    Raises:
        ValueError: if there are several losses, or the loss has no `reduction`.
    """
    if model._compile_loss is None:
        return CompiledLoss(None, 1.0, NO_LOSS)
    losses = keras.tree.flatten(model.loss)
    factors = keras.tree.flatten(model._compile_loss._user_loss_weights)
    if len(losses) > 1 or len(factors) > 1:
        raise ValueError(
            "The model has one output: `loss` must be one loss and `loss_weights` one number. "
            f"Received: loss={model.loss!r}, loss_weights={factors!r}"
        )
    (loss,), (factor,) = losses, factors
    traits = traits_of(loss)
    if traits.reduction in (None, "none"):
        raise ValueError(
            'The loss must have a `reduction` to one number: "mean_with_sample_weight", "mean", '
            f'"sum_over_batch_size" or "sum". Received: reduction={traits.reduction!r}'
        )
    return CompiledLoss(loss, 1.0 if factor is None else factor, traits)


def divisors(model: keras.Model, rows: Rows, num_parts: int = 1) -> tuple[Tensor, Tensor]:
    """Returns what some rows add to the divisors of the update.

    Args:
        model: compiled model.
        rows: some rows of the batch. Their padding does not count.
        num_parts: number of parts whose divisors are summed. Defaults to `1`.

    Returns:
        two float32 scalars: the divisor of the compiled loss, and the number of rows, which divides
        the losses that layers add. The first depends on `reduction`:

        - `"mean_with_sample_weight"`, or no loss: the sum of the weights;
        - `"mean"`, `"sum_over_batch_size"`: the number of labels that are not ignored;
        - `"sum"`: `1 / num_parts`, so that the sum over all parts is 1.
    """
    traits = compiled_loss(model).traits
    if traits.reduction == "sum":
        return ops.convert_to_tensor(1 / num_parts, "float32"), _num_real(rows)
    is_weighted = traits.reduction == "mean_with_sample_weight"
    sample_weight = rows.sample_weight if is_weighted else None
    weights = token_weights(rows.y, traits.ignore_class, sample_weight)
    if rows.is_real is not None:
        weights *= ops.cast(rows.is_real, "float32")[:, None]
    return ops.sum(weights), _num_real(rows)


def loss_share(
    model: keras.Model, rows: Rows, divisors: tuple[Tensor, Tensor], training: bool
) -> Tensor:
    """Returns what some rows add to the loss of the update, and updates the metrics with them.

    Args:
        model: compiled model.
        rows: some rows of the batch.
        divisors: the divisors of the whole update.
        training: whether dropout and R-Drop are active.

    Returns:
        float32 scalar.
    """
    if type(model).compute_loss is not keras.Model.compute_loss:
        x, y, sample_weight, _ = rows
        loss = model._compute_loss(x, y, _logits(model, rows, training, 1), sample_weight, training)
        return ops.cast(loss, "float32")
    passes = 2 if training and model.r_drop else 1
    if model.fused_loss and reason_for_logits(model) is None:
        total = _fused_loss_sum(model, rows, training, passes)
    else:
        total = _loss_sum(model, rows, training, passes)
    loss_divisor, num_rows = divisors
    shares = []
    for layer_loss in model.losses:
        share = ops.sum(ops.cast(layer_loss, "float32"))
        shares.append(ops.divide_no_nan(share * _num_real(rows), num_rows))
    if total is not None:
        shares.append(ops.divide_no_nan(total, loss_divisor) * compiled_loss(model).factor)
    if not shares:
        raise ValueError("There is no loss: give `compile` one. Received: loss=None")
    return sum(shares[1:], shares[0])


def reason_for_logits(model: keras.Model) -> str | None:
    """Returns why the loss must be computed from the logits, or `None` if it can be fused."""
    if type(compiled_loss(model).loss) is not SmoothedCrossEntropy:
        return "the loss is not `SmoothedCrossEntropy`"
    for metric, _ in token_metrics(model):
        if type(metric) not in (TokenAccuracy, Perplexity):
            return f"a metric is neither `TokenAccuracy` nor `Perplexity`: {metric!r}"
    if model.compute_dtype == "float16":
        return "float16 needs gradients that are scaled before each product"
    methods = type(model).compute_loss, type(model).compute_metrics
    if methods != (keras.Model.compute_loss, keras.Model.compute_metrics):
        return "`compute_loss` or `compute_metrics` is overridden"
    if model.output_kernel is None:
        return "`output_kernel` of the model is None"
    if keras.config.backend() == "tensorflow" and model.jit_compile:
        return "`jit_compile` is set, and XLA needs a static number of tokens"
    if keras.config.backend() == "jax" and num_devices() > 1:
        return "on several JAX devices, a chunk of tokens would lie on only some of them"
    return None


def num_devices() -> int:
    """Returns the number of devices over which Keras's `distribution` divides the rows."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


def token_metrics(model: keras.Model) -> list[tuple[Any, bool]]:
    """Returns pairs: a compiled metric, and whether it gets the sample weights."""
    compiled = model._compile_metrics
    if compiled is None:
        return []
    unweighted = keras.tree.flatten(compiled._user_metrics)
    weighted = keras.tree.flatten(compiled._user_weighted_metrics)
    pairs = [(metric, False) for metric in unweighted] + [(metric, True) for metric in weighted]
    return [(metric, is_weighted) for metric, is_weighted in pairs if metric is not None]


def _loss_sum(model, rows, training, passes):
    """Returns the weighted sum of the losses of the tokens, or `None` without a compiled loss."""
    logits = ops.cast(_logits(model, rows, training, passes), "float32")
    loss, _, traits = compiled_loss(model)
    if loss is None:
        return None
    num_classes = logits.shape[-1]
    weights = token_weights(rows.y, traits.ignore_class, rows.sample_weight)
    labels = ops.where(ops.equal(weights, 0), 0, ops.cast(rows.y, "int32"))
    if keras.config.backend() == "tensorflow":
        _check_labels(labels, num_classes)
    labels, outside = class_indices(labels, num_classes)
    loss_fn = loss.call if isinstance(loss, keras.losses.Loss) else loss
    losses = 0.0
    for number in range(passes):
        values = loss_fn(labels, logits[number::passes])
        _check_values(loss, traits, values)
        losses += ops.cast(values, "float32") + outside
    losses /= passes
    if passes == 2:
        losses += model.r_drop / 4 * _symmetric_divergence(logits[::2], logits[1::2])
    return ops.sum(losses * weights)


def _logits(model, rows, training, passes):
    """Returns the logits of `passes` passes of each row; updates the metrics with the first."""
    logits = model(rows.x if passes == 1 else _repeated(rows.x, passes), training=training)
    if get_keras_mask(logits) is not None:
        raise ValueError(
            "The model's output must not have a Keras mask (`mask_zero=True` makes one): the "
            "exact step ignores it. Pass masks to the layers as arguments, and exclude padding "
            f"by `ignore_class` or `sample_weight`. Received: {type(model).__name__}"
        )
    values = (rows.x, rows.y, ops.stop_gradient(logits[::passes]), rows.sample_weight)
    if rows.is_real is not None:  # unweighted metrics would count the padding
        values = keras.tree.map_structure(lambda tensor: tensor[rows.is_real], values)
    x, y, first_logits, sample_weight = values
    model.compute_metrics(x, y, first_logits, sample_weight=sample_weight)
    return logits


def _fused_loss_sum(model, rows, training, passes):
    """The same as `_loss_sum`, computed from the hidden states of tokens that count."""
    loss, _, traits = compiled_loss(model)
    inputs = rows.x if passes == 1 else _repeated(rows.x, passes)
    hidden = model(inputs, training=training, return_hidden=True)
    if passes == 2:
        hidden = _passes_last(hidden, passes)
    tokens = _tokens_that_count(model, rows, hidden)
    head = OutputHead(
        model.output_kernel, model.output_bias, model.excluded_token_id, model.trains_output
    )
    num_classes, width = head.kernel.shape
    weights = token_weights(tokens.labels, traits.ignore_class, tokens.sample_weight)
    if keras.config.backend() == "tensorflow":
        _check_labels(ops.where(ops.equal(weights, 0), 0, tokens.labels), num_classes)
    total, scores = linear_cross_entropy(
        ops.reshape(tokens.hidden, (-1, width)),
        head,
        ops.repeat(tokens.labels, passes),
        ops.repeat(weights / passes, passes),
        loss.label_smoothing,
        with_gradient=training,
        r_drop=model.r_drop if passes == 2 else 0.0,
    )
    # === Metrics, of the first pass ===
    compiled = model._compile_metrics
    if compiled is not None and not compiled.built:  # Keras builds them with the first logits
        compiled.build(rows.y, keras.KerasTensor((*rows.y.shape, num_classes)))
    first_pass = TokenScores(
        scores.losses[::passes], scores.nll[::passes], scores.predictions[::passes]
    )
    for metric, is_weighted in token_metrics(model):
        sample_weight = tokens.sample_weight if is_weighted else None
        metric.update_from_scores(tokens.labels, first_pass, sample_weight)
    return total


def _tokens_that_count(model, rows, hidden):
    """Returns the tokens whose weight is not 0 in the loss or in a metric.

    On JAX, these are all tokens, because its shapes are static.
    """
    labels = ops.cast(rows.y, "int32")
    weights = token_weights(labels, None, rows.sample_weight)
    if keras.config.backend() == "jax":  # (B, T, ...) -> (B * T, ...)
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
        return Tokens(hidden, ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,)))
    is_counted = token_weights(labels, compiled_loss(model).traits.ignore_class, weights) != 0
    for metric, is_weighted in token_metrics(model):
        sample_weight = weights if is_weighted else None
        is_counted |= token_weights(labels, metric.ignore_class, sample_weight) != 0
    if rows.is_real is not None:
        is_counted &= rows.is_real[:, None]
    # (B, T, ...) -> (N, ...)
    return Tokens(hidden[is_counted], labels[is_counted], weights[is_counted])


def _num_real(rows):
    """Returns the number of rows that are not padding, a float32 scalar."""
    if rows.is_real is None:
        return ops.cast(shape_of(rows.y)[0], "float32")
    return ops.sum(ops.cast(rows.is_real, "float32"))


def _check_labels(labels, num_classes):
    """Raises an error, also in a TensorFlow graph, for a label outside the vocabulary."""
    lowest, highest = tf.reduce_min(labels), tf.reduce_max(labels)
    rule = f"A label must be a token id of the model, 0 to {num_classes - 1}. Received: from"
    is_valid = (lowest >= 0) & (highest < num_classes)
    tf.debugging.Assert(is_valid, [rule, lowest, "to", highest])


def _check_values(loss, traits, values):
    shape = _shape(values)
    if shape is None or len(shape) != 2:
        raise ValueError(
            "The loss must return one value per token, shape (B, T), such as "
            f"`SmoothedCrossEntropy`. Received: loss={loss!r}, of shape {shape}"
        )
    if traits.ignore_class is None and get_keras_mask(values) is not None:
        raise ValueError(
            "A loss that ignores a class must be a `keras.losses.Loss` with `ignore_class`: a "
            f"function cannot report the ignored labels. Received: loss={loss!r}"
        )


def _repeated(inputs, passes):
    """Repeats each row `passes` times: rows a, b -> a, a, b, b."""
    return keras.tree.map_structure(lambda tensor: ops.repeat(tensor, passes, axis=0), inputs)


def _passes_last(hidden, passes):
    """Joins the adjacent passes of a row: `(passes * B, T, D)` -> `(B, T, passes * D)`."""
    _, length, width = shape_of(hidden)
    hidden = ops.reshape(hidden, (-1, passes, length, width))
    return ops.reshape(ops.swapaxes(hidden, 1, 2), (-1, length, passes * width))


def _symmetric_divergence(first, second):
    """Returns `KL(p || q) + KL(q || p)` of two logits `(B, T, V)`, float32 `(B, T)`."""
    first, second = ops.log_softmax(first), ops.log_softmax(second)
    return ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1)
