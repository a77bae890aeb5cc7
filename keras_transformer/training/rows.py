"""The rows of a batch: inputs, labels and weights, and which rows are padding."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.types import Tensor


class Rows(NamedTuple):
    """Some rows of a batch.

    Attributes:
        x: nest of tensors `(B, ...)`.
        y: int tensor `(B, T)`.
        sample_weight: float tensor `(B, T)` or `(B,)`.
        is_real: bool tensor `(B,)`; `False` marks rows of padding, which come last.
    """

    x: Any
    y: Tensor
    sample_weight: Tensor
    is_real: Tensor


def real_rows(batch: Any) -> Rows:
    """Returns the rows of a batch without padding, as Keras passes it to a step.

    Raises:
        ValueError: if labels or weights have a wrong shape.
    """
    check_shapes(batch)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if sample_weight is None:
        sample_weight = ops.ones(ops.shape(y))
    rows = Rows(x, y, sample_weight, ops.ones(ops.shape(y)[:1], "bool"))
    return keras.tree.map_structure(ops.convert_to_tensor, rows)


def num_real(rows: Rows) -> Tensor:
    """float32 scalar: number of rows that are not padding."""
    return ops.sum(ops.cast(rows.is_real, "float32"))


def check_shapes(batch: Any) -> None:
    """Raises a `ValueError` if labels or weights have a shape that would give a wrong loss."""
    batch = batch[:3] if isinstance(batch, tuple) else batch
    _, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    _check_ndim("y", labels, [2], "(B, T), one token id per position")
    if sample_weight is not None:
        _check_ndim("sample_weight", sample_weight, [1, 2], "(B, T) or (B,)")


def _check_ndim(name, value, allowed, expected):
    shape = getattr(value, "shape", None)
    is_tensor = value is not None and not isinstance(value, dict)
    if not is_tensor or (shape is not None and len(shape) not in allowed):
        received = "none" if value is None else f"shape {shape}"
        raise ValueError(f"`{name}` must be one tensor {expected}. Received: {received}")
