"""The projection to the vocabulary and its smoothed cross-entropy, some tokens at a time.

The logits of all tokens, `(tokens, V)`, would be the largest tensor of a train step. Here only
those of a chunk exist: their softmax gives the losses and, before the next chunk, the gradients.
TensorFlow only.
"""

import tensorflow as tf

from keras_transformer.training.metrics import TokenScores

# Tokens of a chunk. Measured with 8,000 classes: 128 to 1,024 differ by less than 10% in time.
CHUNK = 256
# Far above the smallest float32 of full precision, 1.2e-38.
SMALLEST_PROBABILITY = 1e-30


def linear_cross_entropy(
    hidden: tf.Tensor,
    kernel: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float,
    with_gradient: bool = True,
    with_predictions: bool = True,
) -> tuple[tf.Tensor, TokenScores]:
    """Returns the weighted sum of the losses of `logits = hidden @ kernel^T`, and the scores.

    The same as `SmoothedCrossEntropy` of the logits. Letters: N tokens, D width, V vocabulary.

    Args:
        hidden: float tensor `(N, D)`.
        kernel: float tensor `(V, D)`.
        labels: int tensor `(N,)`, from 0 to V - 1.
        weights: float32 tensor `(N,)`.
        label_smoothing: the share `eps` of the target that is spread evenly over all classes.
        with_gradient: `False` computes no gradients, for evaluation. Defaults to `True`.
        with_predictions: `False` leaves out the search for the most probable class, 4% of a small
            model's step. Defaults to `True`.

    Returns:
        float32 scalar, and the scores, which have no gradient. Without predictions, these are the
        labels.

    Precision: the products have the dtype of `hidden`; softmax, losses and sums are float32.
    """
    kernel = tf.cast(kernel, hidden.dtype)
    options = label_smoothing, with_predictions
    if not with_gradient:
        scores, _ = _scores_and_gradients(hidden, kernel, labels, None, *options)
        return tf.reduce_sum(scores.losses * weights), scores

    @tf.custom_gradient
    def weighted_sum(hidden, kernel):
        scores, gradients = _scores_and_gradients(hidden, kernel, labels, weights, *options)

        def gradient(scale, *_):
            return [tf.cast(scale * each, hidden.dtype) for each in gradients]

        return (tf.reduce_sum(scores.losses * weights), *scores), gradient

    loss, *scores = weighted_sum(hidden, kernel)
    return loss, TokenScores(*map(tf.stop_gradient, scores))


def _scores_and_gradients(hidden, kernel, labels, weights, label_smoothing, with_predictions):
    """The scores and, if there are weights, the float32 gradients of `hidden` and `kernel`."""
    # The loss is `logsumexp(logits) - target . logits`. `target . logits` is linear in `hidden` and
    # in `kernel`: it needs the kernel's row of each label and the mean row, not the logits.
    chunks = _chunks(hidden, labels, *([] if weights is None else [weights]))
    log_sums, label_logits, predictions, *gradients = _scan(chunks, kernel, with_predictions)
    count = tf.shape(labels)[0]
    log_sums, label_logits, predictions = (
        tf.reshape(each, [-1])[:count] for each in (log_sums, label_logits, predictions)
    )
    states, rows = tf.cast(hidden, tf.float32), tf.cast(kernel, tf.float32)
    mean_row = tf.reduce_mean(rows, axis=0)
    target = (1 - label_smoothing) * label_logits
    target += label_smoothing * tf.linalg.matvec(states, mean_row)
    scores = TokenScores(log_sums - target, log_sums - label_logits, predictions)
    if weights is None:
        return scores, None
    of_hidden, of_kernel = gradients
    of_hidden = tf.reshape(of_hidden, [-1, hidden.shape[-1]])[:count]
    target_rows = (1 - label_smoothing) * tf.gather(rows, labels) + label_smoothing * mean_row
    of_hidden -= weights[:, None] * target_rows
    states *= weights[:, None]
    num_classes = kernel.shape[0]
    of_kernel -= (1 - label_smoothing) * tf.math.unsorted_segment_sum(states, labels, num_classes)
    of_kernel -= label_smoothing / num_classes * tf.reduce_sum(states, axis=0)
    return scores, (of_hidden, of_kernel)


def _chunks(*tensors):
    """`(N, ...)` -> `(chunks, size, ...)`, padded with zeros; `size` is almost `CHUNK`.

    Chunks of equal size leave few sizes, and oneDNN prepares its kernels for each.
    """
    count = tf.maximum(tf.shape(tensors[0])[0], 1)
    number = -(-count // CHUNK)
    size = -(-count // number)

    def split(tensor):
        missing = number * size - tf.shape(tensor)[0]
        tensor = tf.pad(tensor, [[0, missing]] + [[0, 0]] * (tensor.shape.rank - 1))
        return tf.reshape(tensor, [number, size, *tensor.shape[1:]])

    return [split(tensor) for tensor in tensors]


def _scan(chunks, kernel, with_predictions):
    """Log of the sum, logit of the label, prediction and, with weights, the softmax's gradients."""
    number = tf.shape(chunks[0])[0]
    has_weights = len(chunks) == 3
    dtypes = [tf.float32, tf.float32, tf.int32] + [tf.float32] * has_weights
    arrays = [tf.TensorArray(dtype, size=number) for dtype in dtypes]
    of_kernel = tf.zeros(kernel.shape) if has_weights else ()

    def one_chunk(index, arrays, of_kernel):
        hidden, labels, *weights = (chunk[index] for chunk in chunks)
        logits = tf.cast(tf.matmul(hidden, kernel, transpose_b=True), tf.float32)
        probabilities = tf.nn.softmax(logits)
        classes = _safe_classes(logits, probabilities, labels, with_predictions)
        log_sums = _pick(logits, classes) - tf.math.log(_pick(probabilities, classes))
        values = [log_sums, _pick(logits, labels), classes]
        if has_weights:
            probabilities = tf.cast(probabilities, hidden.dtype)
            column = weights[0][:, None]
            values.append(tf.cast(tf.matmul(probabilities, kernel), tf.float32) * column)
            weighted = tf.cast(tf.cast(hidden, tf.float32) * column, hidden.dtype)
            share = tf.matmul(probabilities, weighted, transpose_a=True)
            of_kernel += tf.cast(share, tf.float32)
        written = [array.write(index, each) for array, each in zip(arrays, values, strict=True)]
        return index + 1, written, of_kernel

    _, arrays, of_kernel = tf.while_loop(
        lambda index, *_: index < number,
        one_chunk,
        (0, arrays, of_kernel),
        parallel_iterations=1,
        maximum_iterations=number,
    )
    return [array.stack() for array in arrays] + [of_kernel] * has_weights


def _safe_classes(logits, probabilities, labels, with_predictions):
    """A class of each row whose probability did not underflow: the most probable, or the label."""

    def most_probable():
        return tf.argmax(logits, axis=-1, output_type=labels.dtype)

    if with_predictions:
        return most_probable()
    is_safe = tf.reduce_min(_pick(probabilities, labels)) > SMALLEST_PROBABILITY
    return tf.cond(is_safe, lambda: labels, most_probable)


def _pick(matrix, columns):
    """One element of each row."""
    return tf.gather(matrix, columns, batch_dims=1)
