"""Names for the types in signatures."""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

# A tensor or variable of Keras's backend, or a NumPy array: the backends have no common class.
Tensor: TypeAlias = Any
# `None`: a length that is known only when the graph runs.
Shape: TypeAlias = tuple[int | None, ...]
# Keys, values and masks of earlier positions: nested, the batch on the first axis of each tensor.
Cache: TypeAlias = dict[str, Any]
Path: TypeAlias = str | os.PathLike[str]
# Prints a line of text for the user.
PrintFn: TypeAlias = Callable[[str], object]
