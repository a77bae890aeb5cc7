"""Names for the types in signatures."""

import os
from typing import Any, TypeAlias

# A tensor or variable of Keras's backend, or a NumPy array: the backends have no common class.
Tensor: TypeAlias = Any
# `None`: a length that is known only when the graph runs.
Shape: TypeAlias = tuple[int | None, ...]
Path: TypeAlias = str | os.PathLike[str]
