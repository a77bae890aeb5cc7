"""Applies a dense layer to an input of any rank by one matrix product."""

from keras import ops


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
    # (B, T, D) -> (B * T, D) -> (B, T, units)
    outputs = dense(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (*outer_shape(inputs), dense.units))


def outer_shape(inputs):
    """All axes but the last, for a reshape; the first is -1 if the others are static."""
    static = inputs.shape[1:-1]
    return (-1, *static) if all(static) else ops.shape(inputs)[:-1]
