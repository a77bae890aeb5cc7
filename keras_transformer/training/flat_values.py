"""`FlatValues`: values that a compiled JAX program takes and returns, many of them as one vector.

A program takes and returns a vector faster than hundreds of small arrays, and computes with it in
one kernel. `FlatValues` is not a `list`, because Keras would wrap each element of the lists in the
state of a train step.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax import numpy as jnp

Shape = tuple[int, ...]
# For each array of `FlatValues`: position and shape of each value that the array consists of.
Layout = tuple[tuple[tuple[int, Shape], ...], ...]


def layout_of(values: Sequence[Any], groups: Iterable[Sequence[int]] = ()) -> Layout:
    """Returns the layout in which the values of each group are one vector.

    Args:
        values: arrays.
        groups: for each vector, the positions of its values in `values`. The values of a group have
            one dtype. Every other value stays a separate array.
    """
    groups = [tuple(group) for group in groups]
    grouped = set().union(*groups)
    singles = [(position,) for position in range(len(values)) if position not in grouped]
    return tuple(
        tuple((position, tuple(values[position].shape)) for position in group)
        for group in (*singles, *groups)
    )


@jax.tree_util.register_pytree_node_class
class FlatValues:
    """The values of some variables, held in fewer arrays. Iterating yields the values."""

    def __init__(self, arrays: list[Any], layout: Layout) -> None:
        self._arrays = arrays
        self._layout = layout

    @classmethod
    def of(cls, values: Sequence[Any], layout: Layout) -> "FlatValues":
        """Returns values in a layout that `layout_of` returned."""
        arrays = []
        for group in layout:
            group_values = [values[position] for position, _ in group]
            arrays.append(group_values[0] if len(group) == 1 else join(group_values))
        return cls(arrays, layout)

    def with_values(self, values: Sequence[Any]) -> "FlatValues":
        """Returns other values in the same layout."""
        return self.of(values, self._layout)

    def is_lost(self) -> bool:
        """Returns whether a program that failed has already overwritten an array."""
        return any(array.is_deleted() for array in self._arrays)

    def release(self) -> None:
        """Frees the memory; call it after the values were assigned to the variables."""
        self._arrays = []

    def __iter__(self) -> Iterator[Any]:
        values: dict[int, Any] = {}
        for group, array in zip(self._layout, self._arrays, strict=True):
            positions, shapes = zip(*group, strict=True)
            group_values = [array] if len(group) == 1 else split(array, shapes)
            values.update(zip(positions, group_values, strict=True))
        return iter([values[position] for position in range(len(values))])

    def tree_flatten(self) -> tuple[list[Any], Layout]:
        return self._arrays, self._layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, arrays: Iterable[Any]) -> "FlatValues":
        return cls(list(arrays), layout)


# Inlined: a compiled program that splits a vector and joins the parts again uses the vector itself.
@functools.partial(jax.jit, inline=True)
def join(arrays: Sequence[Any]) -> Any:
    """Returns the arrays as one vector."""
    return jnp.concatenate([jnp.ravel(array) for array in arrays])


@functools.partial(jax.jit, static_argnums=1, inline=True)
def split(vector: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Returns the arrays that `join` made the vector of."""
    parts = jax.lax.split(vector, [math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
