"""Arguments of layers: read back for a config, and checked by errors that name them.

Depends on the backend: only a TensorFlow graph can raise an error at run time.
"""

import inspect
import operator
from typing import Any

import keras
import numpy as np

from keras_transformer.types import Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


def arguments_of(layer_class: type, owner: object) -> dict[str, Any]:
    """Returns the constructor arguments of a layer class, read from attributes of `owner`.

    Args:
        layer_class: class whose constructor ends with `**kwargs`, which is left out.
        owner: layer or config with an attribute for each argument.

    Example:

    >>> arguments_of(keras_transformer.layers.PaddingMask, keras_transformer.layers.PaddingMask(3))
    {'pad_token_id': 3}
    """
    *names, _ = inspect.signature(layer_class).parameters
    return {name: getattr(owner, name) for name in names}


def require_positive(**size: Any) -> int:
    """Returns a size, which may be a NumPy integer, as an int, so that a config with it is JSON.

    Args:
        **size: one size by argument name.

    Raises:
        ValueError: if the size is not a positive integer. The message names it.

    Example:

    >>> require_positive(num_heads=np.int64(8))
    8
    """
    ((name, value),) = size.items()
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
    return number


def require_positive_if_given(**size: Any) -> int | None:
    """`require_positive`, but `None` stays `None`.

    Example:

    >>> require_positive_if_given(key_dim=None)
    """
    return None if None in size.values() else require_positive(**size)


def require_mask(axes: str, **masks: Tensor | None) -> None:
    """Raises a `ValueError` that names the first mask with the wrong number of axes.

    Without this check, a `(B, S)` mask would broadcast as `(T, S)` or as one mask per head if the
    sizes match.

    Args:
        axes: one letter for each axis that the masks broadcast to.
        **masks: the masks by argument name; `None` is not checked.

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
    """Raises an error if a position is not in the table of learned positions.

    Raises a `ValueError` if start and length are static. Otherwise a TensorFlow graph raises
    `tf.errors.InvalidArgumentError` at run time; other backends check the static values only.

    Args:
        start_index: int or int tensor. The first position.
        length: int or int tensor. Number of positions.
        max_sequence_length: int. Number of rows of the table.

    Returns:
        `start_index`; in a graph, with a control dependency on the check.

    Example:

    >>> require_in_table(2, 4, max_sequence_length=6)
    2
    """
    rule = f"Learned positions must be below `max_sequence_length`={max_sequence_length}. Received:"
    static = [_static_value(start_index), _static_value(length)]
    if sum(number or 0 for number in static) > max_sequence_length:
        raise ValueError(f"{rule} {length} tokens, start_index={start_index}")
    if None not in static or keras.config.backend() != "tensorflow":
        return start_index
    received = [rule, length, "tokens, start_index =", start_index]
    check = tf.debugging.Assert(start_index + length <= max_sequence_length, received)
    with tf.control_dependencies([check]):
        return tf.identity(start_index)


def _static_value(number):
    """int, or `None` if the number is known only when the graph runs."""
    try:
        return int(number)
    except TypeError:
        return None
