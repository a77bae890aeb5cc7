"""A dense layer that multiplies two matrices, whatever the rank of its input."""

import keras
from keras import ops


class Projection(keras.layers.Dense):
    """`keras.layers.Dense`, with all axes but the last flattened into one on the way.

    Where lengths are unknown, Keras's own contracts tensors by a dozen small operations, which in
    a step of decoding take longer than the product.
    """

    def call(self, inputs, training=None):
        # (B, T, D) -> (B * T, D)
        outputs = super().call(ops.reshape(inputs, (-1, inputs.shape[-1])), training=training)
        return ops.reshape(outputs, (-1, *ops.shape(inputs)[1:-1], self.units))
