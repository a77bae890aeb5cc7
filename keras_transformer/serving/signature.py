"""Signatures of a SavedModel: their tensors, and JSON values to arrays and back."""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.serving.errors import RequestError


@dataclasses.dataclass(frozen=True)
class Spec:
    """A named tensor.

    Args:
        dtype: str, a key of `NUMPY_TYPES`.
        shape: tuple of ints, -1 for lengths that differ.
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """As in the model card of a SavedModel, such as `string (None,)`."""
        return f"{self.dtype} {tuple(None for _ in self.shape)}"


NUMPY_TYPES: dict[str, Any] = {
    "string": object,  # of bytes
    "float32": np.float32,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}
# In the answer for several lines, the shorter rows of a tensor are padded with these.
PADDING: dict[str, Any] = {"string": b"", "float32": -np.inf, "int32": 0, "int64": 0, "bool": False}
FLOAT32_MAX = float(np.finfo(np.float32).max)
# The values in JSON, and what errors call them.
KINDS: dict[str, Any] = {"string": ("text", bytes), "bool": ("booleans", bool)}
KINDS["float32"] = "numbers", int | float
KINDS["int32"] = KINDS["int64"] = "integers", int


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a SavedModel: named tensors to named tensors, a row for each line.

    Args:
        name: str.
        inputs: dict from names to `Spec`.
        outputs: dict from names to `Spec`.
        defaults: dict from the names of optional inputs to arrays of one row.
    """

    name: str
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    defaults: dict[str, np.ndarray]

    @property
    def required(self) -> list[str]:
        """The names of the inputs that have no default."""
        return [name for name in self.inputs if name not in self.defaults]

    @property
    def is_quadratic(self) -> bool:
        """Whether a row of an output is a matrix."""
        return any(len(spec.shape) > 2 for spec in self.outputs.values())

    def columns(self, values: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns the inputs of a request as arrays.

        Args:
            values: dict from the names of inputs to JSON lists, one element for each line. An
                option may have one element for all lines.

        Raises:
            RequestError: if a name is unknown or missing, or a value has another type or length.
        """
        if not set(self.required) <= values.keys() <= self.inputs.keys():
            must = f"{self.name!r} takes {self.required} and the options {sorted(self.defaults)}."
            raise RequestError(400, must, list(values))
        columns = {name: to_array(name, value, self.inputs[name]) for name, value in values.items()}
        lines = self.lines(columns)
        for name, column in columns.items():
            if len(column) != lines and not (name in self.defaults and len(column) == 1):
                must = f"{name!r} must have {lines} elements, one for each line."
                raise RequestError(400, f"{must} Received: {len(column)}")
        return columns

    def lines(self, columns: dict[str, np.ndarray]) -> int:
        """Returns the number of lines in a request."""
        return len(next(column for name, column in columns.items() if name not in self.defaults))

    def joined(self, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Returns the outputs of several calls, or none, as one: padded to the longest rows."""
        outputs = self.outputs.items()
        return {name: joined([part[name] for part in parts], spec) for name, spec in outputs}


def to_array(name: str, value: Any, spec: Spec) -> np.ndarray:
    """Returns a nested JSON list as an array.

    Args:
        name: str, of the input, for errors.
        value: list, nested as deep as the tensor has axes.
        spec: `Spec`.

    Raises:
        RequestError: if types or lengths are wrong.
    """
    try:
        nested = _converted(value, spec.dtype, len(spec.shape))
        array = np.array(nested, NUMPY_TYPES[spec.dtype])
    except UnicodeEncodeError as error:
        message = f"{name!r} must be text that UTF-8 can encode. Received: half of a surrogate pair"
        raise RequestError(400, message) from error
    except (TypeError, ValueError, OverflowError) as error:
        what = f"{KINDS[spec.dtype][0]} ({spec.dtype})"
        shape = " of equally long lists" if len(spec.shape) > 1 else ""
        raise RequestError(400, f"{name!r} must be a list{shape} of {what}.", value) from error
    return array.reshape(array.shape if array.size else [len(nested), *[0] * (len(spec.shape) - 1)])


def _converted(value, dtype, axes):
    if axes:
        if not isinstance(value, list):
            raise TypeError
        return [_converted(element, dtype, axes - 1) for element in value]
    value = value.encode() if isinstance(value, str) else value
    is_right = isinstance(value, KINDS[dtype][1])
    # The comparison is false for NaN too.
    is_finite = dtype != "float32" or (is_right and abs(value) <= FLOAT32_MAX)
    if not (is_right and is_finite) or isinstance(value, bool) != (dtype == "bool"):
        raise TypeError
    return value


def to_json(array: np.ndarray) -> list:
    """Returns an array as nested lists that JSON can hold.

    Numbers that are not finite become `None`; bytes that are not UTF-8 become U+FFFD.
    """
    if array.dtype == object:
        text = [element.decode("utf-8", "replace") for element in array.flat]
        return np.array(text, object).reshape(array.shape).tolist()
    if array.dtype == np.float32:
        is_finite, array = np.isfinite(array), array.astype(object)
        array[~is_finite] = None
    return array.tolist()


def joined(arrays: list[np.ndarray], spec: Spec) -> np.ndarray:
    """Returns the rows of arrays as one array, padded to the longest row."""
    longest = np.max([np.maximum(spec.shape, 0), *(array.shape for array in arrays)], axis=0)
    shape = [sum(map(len, arrays)), *longest[1:]]
    joined = np.full(shape, PADDING[spec.dtype], NUMPY_TYPES[spec.dtype])
    row = 0
    for array in arrays:
        joined[row:][tuple(map(slice, array.shape))] = array
        row += len(array)
    return joined
