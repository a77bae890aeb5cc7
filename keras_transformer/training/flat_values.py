"""`FlatValues`: a list of arrays of a compiled JAX program, many of which are one vector.

A program takes and returns a vector faster than hundreds of small arrays, and computes with it in
one kernel. Keras wraps each list of the state that a train step returns, element by element; it
leaves other sequences as they are.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax import numpy as jnp

Shape = tuple[int, ...]
# Of each array of `FlatValues`: the positions and shapes of the values that it consists of.
Layout = tuple[tuple[tuple[int, Shape], ...], ...]


def layout_of(values: Sequence[Any], groups: Iterable[Sequence[int]] = ()) -> Layout:
    """Returns the layout in which the values at the positions of a group are one vector.

    Args:
        values: arrays.
        groups: positions in `values`, of arrays of one dtype. Each other array stays as it is.
    """
    groups = [tuple(group) for group in groups]
    grouped = set().union(*groups)
    alone = [(position,) for position in range(len(values)) if position not in grouped]
    return tuple(
        tuple((position, tuple(values[position].shape)) for position in group)
        for group in (*alone, *groups)
    )


@jax.tree_util.register_pytree_node_class
class FlatValues:
    """The values of some variables, as few arrays. Iterating yields the values."""

    def __init__(self, arrays: list[Any], layout: Layout) -> None:
        self._arrays = arrays
        self._layout = layout

    @classmethod
    def of(cls, values: Sequence[Any], layout: Layout) -> "FlatValues":
        """Returns values in a layout of `layout_of`."""
        arrays = [
            values[group[0][0]] if len(group) == 1 else join([values[at] for at, _ in group])
            for group in layout
        ]
        return cls(arrays, layout)

    def with_values(self, values: Sequence[Any]) -> "FlatValues":
        """Returns other values in the same layout."""
        return self.of(values, self._layout)

    def is_lost(self) -> bool:
        """Whether a program has overwritten the arrays, and then failed."""
        return any(array.is_deleted() for array in self._arrays)

    def release(self) -> None:
        """Frees the memory, after the variables were given the values."""
        self._arrays = []

    def __iter__(self) -> Iterator[Any]:
        values: dict[int, Any] = {}
        for group, array in zip(self._layout, self._arrays, strict=True):
            positions, shapes = zip(*group, strict=True)
            parts = (array,) if len(group) == 1 else split(array, shapes)
            values.update(zip(positions, parts, strict=True))
        return iter([values[position] for position in range(len(values))])

    def tree_flatten(self) -> tuple[list[Any], Layout]:
        return self._arrays, self._layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, arrays: Iterable[Any]) -> "FlatValues":
        return cls(list(arrays), layout)


# Inlined, so that a program that splits a vector and joins the parts again uses the vector itself.
@functools.partial(jax.jit, inline=True)
def join(arrays: Sequence[Any]) -> Any:
    """Returns one vector of the arrays."""
    return jnp.concatenate([jnp.ravel(array) for array in arrays])


@functools.partial(jax.jit, static_argnums=1, inline=True)
def split(vector: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Returns the arrays of these shapes that were joined."""
    parts = jax.lax.split(vector, [math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
