"""The dense layers of this package, and one product for inputs of any rank."""

from typing import Any

import keras
from keras import ops


class Projection(keras.layers.Dense):
    """`keras.layers.Dense` whose LoRA matrices can be trained on after loading."""

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        if self.lora_enabled:
            redraw_lora(self.lora_kernel_a)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)


def redraw_lora(lora_a):
    """Draws the first LoRA matrix again.

    A file holds the kernel with LoRA merged, and Keras then loads zeros into both matrices, so that
    the gradient of both is 0.
    """
    lora_a.assign(keras.initializers.HeUniform()(lora_a.shape, lora_a.dtype))


def project(dense, inputs):
    """Applies a dense layer to inputs whose axes but the last are flattened into one.

    If lengths are unknown, `keras.layers.Dense` runs a dozen small shape operations, which in a
    decoding step take longer than the product.

    Args:
        dense: `keras.layers.Dense`, built.
        inputs: float tensor `(B, T, D)`.

    Returns:
        float tensor `(B, T, units)`.
    """
    if dense.activity_regularizer is not None:
        return dense(inputs)  # Keras divides its loss by the first axis, which must be the batch
    # (B, T, D) -> (B * T, D) -> (B, T, units)
    outputs = dense(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (*outer_shape(inputs), dense.units))


def outer_shape(inputs):
    """All axes but the last, for a reshape; the first is -1 if the others are static."""
    static = inputs.shape[1:-1]
    return (-1, *static) if all(static) else ops.shape(inputs)[:-1]
