"""A dense layer applied by one product of two matrices, whatever the rank of its input."""

from keras import ops


def project(dense, inputs):
    """Applies a dense layer with all axes but the last flattened into one on the way.

    Where lengths are unknown, `keras.layers.Dense` contracts tensors by a dozen small operations,
    which in a step of decoding take longer than the product.

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
    """All axes but the last; the first as -1 where a reshape can tell it from the others."""
    known = inputs.shape[1:-1]
    return (-1, *known) if all(known) else ops.shape(inputs)[:-1]
