"""Checks of the layers' arguments: errors name the argument that the user wrote.

Looks at the backend: only a TensorFlow graph can raise when it runs.
"""

import keras
import numpy as np

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


def require_positive(**sizes):
    """Raises a `ValueError` that names the first size that is not a positive integer.

    Args:
        **sizes: the arguments by name.

    Example:

    >>> require_positive(num_heads=8, key_dim=64)
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={size!r}")


def require_mask(axes, **masks):
    """Raises a `ValueError` that names the first mask with another number of axes.

    A mask `(B, S)` would be read as `(T, S)`, or as one mask per head, where the sizes happen to
    fit.

    Args:
        axes: str. One letter for each axis that the masks broadcast to.
        **masks: the masks by argument name; `None` passes.

    Example:

    >>> require_mask("BTS", attention_mask=np.ones((2, 1, 5), bool))
    """
    for name, mask in masks.items():
        if mask is not None and np.ndim(mask) != len(axes):
            padding = ", ".join([":", *["None"] * (len(axes) - 2), ":"])
            raise ValueError(
                f"`{name}` must have {len(axes)} axes, which broadcast to ({', '.join(axes)}). "
                f"Received: {name} of shape {tuple(np.shape(mask))}. "
                f"Pass a padding mask (B, S) as `mask[{padding}]`."
            )


def require_in_table(start_index, length, max_sequence_length):
    """Raises if the positions reach beyond `max_sequence_length`, the rows of a learned table.

    A `ValueError` where the numbers are known. In a TensorFlow graph, which raises when it runs,
    `tf.errors.InvalidArgumentError`. Other backends know the length, but not a traced
    `start_index`.

    Args:
        start_index: int or int tensor. The first position.
        length: int or int tensor. Number of positions.
        max_sequence_length: int.

    Returns:
        `start_index`, which in a graph depends on the check, so that the graph cannot drop it.

    Example:

    >>> require_in_table(2, 4, max_sequence_length=6)
    2
    """
    known = [_known(start_index), _known(length)]
    message = "The input must not reach beyond `max_sequence_length` when positions are learned."
    if sum(number or 0 for number in known) > max_sequence_length:
        raise ValueError(
            f"{message} Received: {length} tokens, start_index={start_index}, "
            f"max_sequence_length={max_sequence_length}"
        )
    if None not in known or keras.config.backend() != "tensorflow":
        return start_index
    received = [length, "tokens, start_index =", start_index]
    received = [f"{message} Received:", *received, "max_sequence_length =", max_sequence_length]
    check = tf.debugging.Assert(start_index + length <= max_sequence_length, received)
    with tf.control_dependencies([check]):
        return tf.identity(start_index)


def _known(number):
    """int, or `None` if the number is known only when the graph runs."""
    try:
        return int(number)
    except TypeError:
        return None
