"""Layer normalisation with its gradient written out, which halves its time on CPUs.

Depends on the backend: only TensorFlow runs the operations of a gradient one by one. Paper,
section 3.1.
"""

from typing import Any

import keras

from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, with `gamma` and `beta`.

    Weights and results are those of Keras; statistics are always float32.

    Args:
        epsilon: added to the variance.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Tensor) -> Tensor:
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        return _layer_norm(inputs, self.gamma.value, self.beta.value, self.epsilon)


def _layer_norm(inputs, gamma, beta, epsilon):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, in the dtype of the inputs."""

    dtype = tf.float64 if inputs.dtype == tf.float64 else tf.float32

    @tf.custom_gradient
    def normalize(inputs, gamma, beta):
        centered = tf.cast(inputs, dtype)
        centered -= _mean(centered)
        scale = tf.math.rsqrt(_mean(centered * centered) + epsilon)
        normalized = centered * scale

        def gradient(upstream):
            upstream = tf.cast(upstream, dtype)
            outer_axes = list(range(inputs.shape.rank - 1))
            grad_gamma = upstream * normalized
            of_normalized = upstream * gamma
            # Mean and variance depend on every input: what remains is orthogonal to both.
            along = _mean(grad_gamma * gamma)
            of_inputs = (of_normalized - _mean(of_normalized) - normalized * along) * scale
            return (
                tf.cast(of_inputs, inputs.dtype),
                tf.reduce_sum(grad_gamma, outer_axes),
                tf.reduce_sum(upstream, outer_axes),
            )

        return tf.cast(normalized * gamma + beta, inputs.dtype), gradient

    return normalize(inputs, tf.cast(gamma, dtype), tf.cast(beta, dtype))


def _mean(values):
    return tf.reduce_mean(values, axis=-1, keepdims=True)
