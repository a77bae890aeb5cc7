"""The projection to the vocabulary and its smoothed cross-entropy, some tokens at a time.

The logits of all tokens, `(N, V)`, would be the largest tensor of a train step. Here, only the
logits of one chunk exist at a time: their softmax gives the losses and gradients of the chunk.
Letters: N tokens, D width, V vocabulary, C tokens of a chunk.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.tensor_shape import shape_of
from keras_transformer.training.losses import class_indices
from keras_transformer.training.metrics import TokenScores
from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

# Tokens of a chunk. Measured with 8,000 classes: 128 to 1,024 differ by less than 10% in time.
CHUNK = 256


class OutputHead(NamedTuple):
    """The last product of a model: `logits = hidden @ kernel^T + bias`.

    Attributes:
        kernel: float tensor `(V, D)`.
        bias: float tensor `(V,)`. Optional.
        excluded_class: class of probability 0. Optional.
        is_trained: whether the gradients of kernel and bias are needed. Defaults to `True`.
    """

    kernel: Tensor
    bias: Tensor | None = None
    excluded_class: int | None = None
    is_trained: bool = True

    def factors(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two matrices whose product is the logits of all classes but the excluded one.

        Args:
            hidden: float tensor `(N, D)`.

        Returns:
            float tensors `(N, D)` and `(V, D)`; `D + 1` wide with a bias, and with `V - 1` rows if
            a class is excluded. `rows` finds the row of a class.
        """
        kernel = self.kernel
        if self.bias is not None:  # as a column of the kernel: [h, 1] @ [K, b]^T = h @ K^T + b
            hidden = ops.concatenate([hidden, ops.ones_like(hidden[:, :1])], axis=1)
            column = ops.cast(self.bias, kernel.dtype)[:, None]
            kernel = ops.concatenate([kernel, column], axis=1)
        if self.excluded_class is not None:
            before, after = kernel[: self.excluded_class], kernel[self.excluded_class + 1 :]
            kernel = ops.concatenate([before, after])
        return hidden, kernel

    def rows(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the row of each label in the second matrix of `factors`, and a penalty.

        Args:
            labels: int tensor `(N,)`; may hold numbers outside the vocabulary.

        Returns:
            int32 tensor `(N,)`, the rows; a label without a row gets the row of another label.
            Float32 tensor `(N,)`, the penalty to add to the loss: NaN if the label is outside the
            vocabulary, infinity if its class is excluded, else 0.
        """
        classes, penalty = class_indices(labels, self.kernel.shape[0])
        if self.excluded_class is None:
            return classes, penalty
        penalty = ops.where(classes == self.excluded_class, float("inf"), penalty)
        rows = classes - ops.cast(classes >= self.excluded_class, "int32")
        return ops.maximum(rows, 0), penalty

    def classes(self, rows: Tensor) -> Tensor:
        """Returns the class of each row, an int32 tensor `(N,)`: the inverse of `rows`."""
        if self.excluded_class is None:
            return rows
        return rows + ops.cast(rows >= self.excluded_class, "int32")


class Gradients(NamedTuple):
    """Which gradients are computed: with respect to the hidden states, and to the kernel."""

    of_hidden: bool
    of_kernel: bool


def linear_cross_entropy(
    hidden: Tensor,
    head: OutputHead,
    labels: Tensor,
    weights: Tensor,
    label_smoothing: float,
    with_gradient: bool = True,
    r_drop: float = 0.0,
) -> tuple[Tensor, TokenScores]:
    """Returns the weighted sum of the losses of tokens, and their scores.

    The same as `SmoothedCrossEntropy` of the logits of `head`.

    Args:
        hidden: float tensor `(N, D)`.
        head: computes the logits of V classes.
        labels: int tensor `(N,)`. Labels outside the vocabulary must have weight 0, else the
            results are NaN; so must labels of the excluded class, else the results are infinite.
        weights: float32 tensor `(N,)`.
        label_smoothing: the share `eps` of the target that is spread evenly over all classes.
        with_gradient: `False` computes no gradients, for evaluation. Defaults to `True`.
        r_drop: unless 0, the tokens `2n` and `2n + 1` are one token in two passes, p and q, and
            each value is `loss + r_drop / 2 * KL`: KL(p || q) for the first, KL(q || p) for the
            second. Defaults to `0.0`.

    Returns:
        float32 scalar, and the scores, which have no gradient.

    Precision: the products have the dtype of `hidden`; softmax, losses and sums are float32.
    """
    label_rows, penalty = head.rows(labels)
    hidden, kernel = head.factors(hidden)
    hidden_values = ops.stop_gradient(hidden)
    kernel_values = ops.stop_gradient(ops.cast(kernel, hidden.dtype))
    chunks = _chunks(hidden_values, label_rows, weights, passes=2 if r_drop else 1)
    gradients = Gradients(of_hidden=with_gradient, of_kernel=with_gradient and head.is_trained)
    values_of_tokens, grad_kernel = _values_of_chunks(
        chunks, kernel_values, shape_of(labels)[0], gradients, r_drop
    )
    log_sums, label_logits, best_rows, divergences, *grad_hidden = values_of_tokens
    # The loss is `logsumexp(logits) - target . logits`. `target . logits` is linear in `hidden` and
    # in `kernel`: it needs the kernel's row of each label and the mean row, not the logits.
    states, kernel_rows = ops.cast(hidden_values, "float32"), ops.cast(kernel_values, "float32")
    mean_row = ops.mean(kernel_rows, axis=0)
    target = (1 - label_smoothing) * label_logits + label_smoothing * ops.matmul(states, mean_row)
    losses, nll = log_sums - target, log_sums - label_logits
    loss = ops.sum((losses + r_drop / 2 * divergences) * weights)
    loss += ops.sum(ops.where(weights == 0, 0.0, penalty))
    scores = TokenScores(losses, nll + penalty, head.classes(best_rows))
    if not with_gradient:
        return loss, scores
    target_rows = (1 - label_smoothing) * ops.take(kernel_rows, label_rows, axis=0)
    target_rows += label_smoothing * mean_row
    loss += _with_gradient(hidden, grad_hidden[0] - weights[:, None] * target_rows)
    if head.is_trained:
        weighted_states = states * weights[:, None]
        num_rows = kernel.shape[0]
        share = ops.segment_sum(weighted_states, label_rows, num_rows)
        grad_kernel -= (1 - label_smoothing) * share
        grad_kernel -= label_smoothing / num_rows * ops.sum(weighted_states, axis=0)
        loss += _with_gradient(kernel, grad_kernel)
    return loss, scores


def _with_gradient(tensor, gradient):
    """Returns 0, but its gradient with respect to `tensor` is `gradient`."""
    product = ops.sum(ops.cast(tensor, "float32") * gradient)
    return product - ops.stop_gradient(product)


def _chunks(*tensors, passes):
    """Splits tensors: `(N, ...)` -> `(chunks, C, ...)`, padded with zeros; C is at most `CHUNK`.

    All chunks have one size, because oneDNN prepares its kernels for each size. The passes of a
    token stay together.
    """
    num_tokens = shape_of(tensors[0])[0]
    num_chunks = num_tokens // CHUNK + 1
    size = num_tokens // num_chunks + 1
    size += size % passes
    chunks = []
    for tensor in tensors:
        zeros = ops.zeros((num_chunks * size - num_tokens, *tensor.shape[1:]), tensor.dtype)
        padded = ops.concatenate([tensor, zeros])
        chunks.append(ops.reshape(padded, (num_chunks, size, *tensor.shape[1:])))
    return tuple(chunks)


def _values_of_chunks(chunks, kernel, num_tokens, gradients, r_drop):
    """Returns a list of values of all tokens, and the gradient with respect to the kernel.

    The list has four tensors `(N,)`: log-sum-exp of the logits, logit of the label, most probable
    row, and divergence from the other pass, which is 0 without R-Drop. `gradients.of_hidden` adds
    the gradient with respect to the hidden states, `(N, D)`. The gradient with respect to the
    kernel is `(V, D)`, or a scalar 0 if it is not needed. Both are float32 gradients of the
    weighted sum over the tokens of `log-sum-exp + r_drop / 2 * divergence`.
    """
    transposed = ops.transpose(kernel)

    def compute_chunk(grad_kernel, chunk):
        hidden, labels, weights = chunk
        logits = ops.cast(ops.matmul(hidden, transposed), "float32")
        probabilities = ops.softmax(logits)
        classes = _argmax(logits)
        # The probability of the most probable class cannot underflow.
        log_sums = _pick(logits, classes) - ops.log(_pick(probabilities, classes))
        divergences = ops.zeros_like(log_sums)
        grad_logits = probabilities  # the gradient of log-sum-exp; not weighted
        if r_drop:
            divergences, slopes = _divergences(logits - log_sums[:, None], probabilities)
            grad_logits = probabilities + r_drop / 2 * slopes
        values = [log_sums, _pick(logits, labels), classes, divergences]
        if gradients.of_hidden:
            grad_logits = ops.cast(grad_logits, hidden.dtype)
            column = weights[:, None]
            values.append(ops.cast(ops.matmul(grad_logits, kernel), "float32") * column)
        if gradients.of_kernel:  # only with `gradients.of_hidden`
            weighted = ops.cast(ops.cast(hidden, "float32") * column, hidden.dtype)
            share = ops.matmul(ops.transpose(grad_logits), weighted)
            grad_kernel += ops.cast(share, "float32")
        return grad_kernel, tuple(values)

    grad_kernel = ops.zeros(kernel.shape if gradients.of_kernel else (), "float32")
    dtypes = ["float32", "float32", "int32", "float32"]
    if gradients.of_hidden:
        dtypes.append("float32")
    if keras.config.backend() == "tensorflow":
        grad_kernel, values = _tensorflow_scan(compute_chunk, grad_kernel, chunks, dtypes)
    else:
        grad_kernel, values = ops.scan(compute_chunk, grad_kernel, chunks)
    # (chunks, C, ...) -> (N, ...)
    values = [ops.reshape(value, (-1, *value.shape[2:]))[:num_tokens] for value in values]
    return values, grad_kernel


def _divergences(log_probs, probabilities):
    """Returns the divergence of each row from the other pass, and a gradient.

    The gradient is that of `KL(p || q) + KL(q || p)` with respect to the logits of p:
    `p * (log p - log q - KL(p || q)) + p - q`.
    """

    def of_other_pass(matrix):  # rows 1, 0, 3, 2, ...
        pairs = ops.reshape(matrix, (-1, 2, matrix.shape[-1]))
        return ops.reshape(ops.flip(pairs, axis=1), (-1, matrix.shape[-1]))

    difference = log_probs - of_other_pass(log_probs)
    divergences = ops.sum(probabilities * difference, axis=-1)
    slopes = probabilities * (difference - divergences[:, None] + 1.0)
    slopes -= of_other_pass(probabilities)
    return divergences, slopes


def _tensorflow_scan(function, carry, inputs, dtypes):
    """Like `keras.ops.scan`, which on TensorFlow needs outputs with the carry's shapes."""
    num_steps = tf.shape(inputs[0])[0]

    def step(index, carry, arrays):
        carry, outputs = function(carry, [tensor[index] for tensor in inputs])
        pairs = zip(arrays, outputs, strict=True)
        return index + 1, carry, [array.write(index, output) for array, output in pairs]

    _, carry, arrays = tf.while_loop(
        lambda index, *_: index < num_steps,
        step,
        (0, carry, [tf.TensorArray(dtype, size=num_steps) for dtype in dtypes]),
        parallel_iterations=1,
        maximum_iterations=num_steps,
    )
    return carry, [array.stack() for array in arrays]


def _argmax(logits):
    """Returns the column of the largest logit of each row, the first of equal ones."""
    if keras.config.backend() == "tensorflow":
        # `ops.argmax` takes twice as long, because it handles -0.0.
        return tf.argmax(logits, axis=-1, output_type="int32")
    if keras.config.backend() == "jax":
        # On CPUs, XLA computes `ops.argmax` one element at a time, these two reductions as vectors.
        last = logits.shape[-1] - 1
        is_maximum = logits == ops.max(logits, axis=-1, keepdims=True)
        return ops.min(ops.where(is_maximum, ops.arange(last + 1, dtype="int32"), last), axis=-1)
    return ops.argmax(logits, axis=-1)


def _pick(matrix, columns):
    """Returns the element of each row in its column: `(N, V)`, `(N,)` -> `(N,)`."""
    num_rows, num_columns = shape_of(matrix)
    starts = num_columns * ops.arange(num_rows, dtype="int32")
    return ops.take(ops.reshape(matrix, (-1,)), starts + columns)
