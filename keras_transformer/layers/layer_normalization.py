"""Layer normalisation with its gradient written out, which halves its time on CPUs.

Depends on the backend: only TensorFlow runs the operations of a gradient one by one. Paper,
section 3.1.
"""

import keras

from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, with `gamma` and `beta`.

    Arguments, weights and results are those of Keras; statistics are always float32.
    """

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
            grad_gammas = upstream * normalized  # of each position
            grad_normalized = upstream * gamma
            # Normalizing removes the mean and the scale, so the gradient has no part along them.
            part_of_scale = _mean(grad_gammas * gamma)
            grad_inputs = grad_normalized - _mean(grad_normalized) - normalized * part_of_scale
            return (
                tf.cast(grad_inputs * scale, inputs.dtype),
                tf.reduce_sum(grad_gammas, outer_axes),
                tf.reduce_sum(upstream, outer_axes),
            )

        return tf.cast(normalized * gamma + beta, inputs.dtype), gradient

    return normalize(inputs, tf.cast(gamma, dtype), tf.cast(beta, dtype))


def _mean(values):
    return tf.reduce_mean(values, axis=-1, keepdims=True)
