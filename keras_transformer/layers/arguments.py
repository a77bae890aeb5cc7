"""Checks arguments of layers, and reads them back for a config. Errors name the argument.

Depends on the backend: only a TensorFlow graph can raise an error at run time, and only JAX has
lengths that are symbols.
"""

import inspect
import operator
from typing import Any

import keras
import numpy as np

if keras.config.backend() == "tensorflow":
    import tensorflow as tf
elif keras.config.backend() == "jax":
    from jax import export as jax_export


def arguments_of(layer_class: type, owner: object) -> dict[str, Any]:
    """Returns the constructor arguments of a layer class, serialized from attributes of `owner`.

    Args:
        layer_class: class whose constructor ends with `**kwargs`, which is left out.
        owner: layer or config with an attribute for each argument.

    Example:

    >>> arguments_of(keras_transformer.layers.PaddingMask, keras_transformer.layers.PaddingMask(3))
    {'pad_token_id': 3, 'end_token_id': None}
    """
    *names, _ = inspect.signature(layer_class).parameters
    return {name: keras.saving.serialize_keras_object(getattr(owner, name)) for name in names}


def require_positive(optional: bool = False, **size: Any) -> Any:
    """Returns a size as a Python int, which a config can write as JSON; accepts NumPy integers.

    Args:
        optional: whether the size may be `None`, which stays `None`. Defaults to `False`.
        **size: one size by argument name.

    Raises:
        ValueError: if the size is not a positive integer. The message names it.

    Example:

    >>> require_positive(num_heads=np.int64(8))
    8
    """
    ((name, value),) = size.items()
    if optional and value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0  # refused below
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
    return number


def require_axes(axes: str, **tensors: Any) -> None:
    """Raises a `ValueError` that names the first tensor with the wrong number of axes.

    Without this check, layers would flatten or broadcast the axes, sometimes to wrong results.

    Args:
        axes: one letter for each axis.
        **tensors: the tensors by argument name; `None` is not checked.

    Example:

    >>> require_axes("BTD", inputs=np.ones((2, 5, 8)))
    """
    for name, tensor in tensors.items():
        if tensor is not None and len(_shape(tensor)) != len(axes):
            raise ValueError(
                f"`{name}` must have {len(axes)} axes, ({', '.join(axes)}). Received: {name} of "
                f"shape {_shape(tensor)}. Flatten inner axes, or add the missing one."
            )


def as_mask(axes: str, **mask: Any) -> Any:
    """Returns a mask as a bool tensor; `None` stays `None`.

    Two kinds of masks are refused. A `(B, S)` mask would broadcast as `(T, S)`, or as one mask per
    head, if the sizes match. In a mask of floats, 0 has two meanings: masked if the other value is
    1, and not masked if it is -inf.

    Args:
        axes: one letter for each axis that the mask broadcasts to.
        **mask: one bool or integer mask by argument name. Integers other than 0 mean `True`.

    Raises:
        ValueError: if the mask has another number of axes, or floats. The message names it.

    Example:

    >>> bool(as_mask("BTS", attention_mask=np.ones((2, 1, 5), bool))[0, 0, 0])
    True
    """
    ((name, tensor),) = mask.items()
    if tensor is None:
        return None
    if len(_shape(tensor)) != len(axes):
        padding = ", ".join([":", *["None"] * (len(axes) - 2), ":"])
        hint = f" Pass a padding mask (B, S) as `mask[{padding}]`." if len(axes) > 2 else ""
        raise ValueError(
            f"`{name}` must have {len(axes)} axes, which broadcast to ({', '.join(axes)}). "
            f"Received: {name} of shape {_shape(tensor)}.{hint}"
        )
    return as_bool(**mask)


def as_bool(**mask: Any) -> Any:
    """Returns a mask of any shape as a bool tensor; raises a `ValueError` for floats."""
    ((name, tensor),) = mask.items()
    tensor = _as_array(tensor)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" in dtype:
        raise ValueError(
            f"`{name}` must be boolean, True = may be attended to. Received: {name} of dtype "
            f"{dtype}. Pass `mask > 0` if 1 means that and 0 does not, or `mask > -1` if 0 means "
            "that and a large negative number does not."
        )
    return keras.ops.cast(tensor, "bool")


def _as_array(tensor):
    """Returns a list or a number as an array; tensors, also symbolic ones, as they are."""
    return tensor if hasattr(tensor, "dtype") else np.asarray(tensor)


def _shape(tensor):
    return tuple(_as_array(tensor).shape)


def as_index(index: Any) -> Any:
    """Returns an int tensor as int32: TensorFlow adds no int64 to it. An int stays an int."""
    return keras.ops.cast(index, "int32") if hasattr(index, "dtype") else index


def require_in_table(start_index, length, max_sequence_length):
    """Raises an error if a position is not in the table of learned positions.

    Raises a `ValueError` if the static values exceed the table. If start or length is known only at
    run time, a TensorFlow graph raises `tf.errors.InvalidArgumentError` then; other backends do not
    check it.

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
    table = f"`max_sequence_length`={max_sequence_length}"
    rule = f"Learned positions are from 0 to below {table}. Received:"
    static_values = [_static_value(start_index), _static_value(length)]
    first, number = (value or 0 for value in static_values)
    if first < 0 or first + number > max_sequence_length:
        raise ValueError(f"{rule} {length} tokens, start_index={start_index}")
    if None not in static_values or keras.config.backend() != "tensorflow":
        return start_index
    received = [rule, length, "tokens, start_index =", start_index]
    check = tf.debugging.Assert(start_index + length <= max_sequence_length, received)
    with tf.control_dependencies([check]):
        return tf.identity(start_index)


def _static_value(number):
    """Returns an int, or `None` if the number is known only at run time."""
    if keras.config.backend() == "jax" and jax_export.is_symbolic_dim(number):
        return None
    try:
        return int(number)
    except TypeError:
        return None
