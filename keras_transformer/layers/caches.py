"""Caches of attention: projected keys and values of earlier positions, and the ancestors in a beam.

Ancestors say which cached positions belong to which hypothesis. Caches and ancestors come in two
kinds with the same methods: growing and fixed. All are named tuples of tensors, which pass through
the compiled functions and loops of every backend.
Letters: B batch, W beam slots, N heads, S cached positions, K key width, V value width.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor


class GrowingCache(NamedTuple):
    """Keys and values of all positions so far.

    Attributes:
        key: float tensor `(B, N, S, K)`.
        value: float tensor `(B, N, S, V)`.
    """

    key: Tensor
    value: Tensor

    @property
    def has_room(self) -> bool:
        """Always `False`: all positions are in use."""
        return False

    @property
    def num_cached(self) -> int | Tensor:
        """Number of positions in use."""
        return shape_of(self.key)[2]

    def append(self, new: "GrowingCache") -> "GrowingCache":
        """Returns a cache that is longer by the new positions."""
        key = ops.concatenate([self.key, new.key], axis=2)
        return GrowingCache(key, ops.concatenate([self.value, new.value], axis=2))


class FixedCache(NamedTuple):
    """Keys and values with room for S positions, for programs whose shapes must not change.

    Attributes:
        key: float tensor `(B, N, S, K)`.
        value: float tensor `(B, N, S, V)`.
        index: int32 scalar, the number of positions in use. Values at the others are undefined.
    """

    key: Tensor
    value: Tensor
    index: Tensor

    @property
    def has_room(self) -> bool:
        """Always `True`: masks must exclude the positions that are not in use."""
        return True

    @property
    def num_cached(self) -> Tensor:
        """Number of positions in use."""
        return self.index

    def append(self, new: GrowingCache) -> "FixedCache":
        """Returns a cache of the same length, with the new positions from `index` on.

        New positions beyond the length overwrite the last ones; on PyTorch they raise an error.
        """
        key = write_from(self.key, new.key, self.index)
        value = write_from(self.value, new.value, self.index)
        return FixedCache(key, value, self.index + shape_of(new.key)[2])


class GrowingAncestors(NamedTuple):
    """Which positions of a growing cache belong to each hypothesis of a beam.

    Attributes:
        mask: bool tensor `(B, W, S)`, `True` at the positions of a hypothesis.
    """

    mask: Tensor

    def extended(self, parents: Tensor) -> "GrowingAncestors":
        """Returns the ancestors of new hypotheses, each of which adds a token to its parent.

        Args:
            parents: int tensor `(B, W)`, the beam slot of each new hypothesis's parent.
        """
        old_positions, new_positions = _inherited(self.mask, parents), _new_positions(parents)
        return GrowingAncestors(ops.concatenate([old_positions, new_positions], axis=2))


class FixedAncestors(NamedTuple):
    """Which positions of a fixed cache, with room for S, belong to each hypothesis of a beam.

    Attributes:
        mask: as in `GrowingAncestors`.
        index: int32 scalar, the number of positions in use.
    """

    mask: Tensor
    index: Tensor

    def extended(self, parents: Tensor) -> "FixedAncestors":
        """Returns the ancestors of new hypotheses; see `GrowingAncestors.extended`."""
        mask = write_from(_inherited(self.mask, parents), _new_positions(parents), self.index)
        return FixedAncestors(mask, self.index + shape_of(parents)[1])


def _inherited(mask, parents):
    """Returns the row of each hypothesis's parent."""
    # A matrix product selects the rows: (B, W, W') @ (B, W', S) -> (B, W, S)
    is_parent = ops.one_hot(parents, shape_of(mask)[1])
    return ops.matmul(is_parent, ops.cast(mask, is_parent.dtype)) > 0


def _new_positions(parents):
    """Returns which of the W new positions belong to each hypothesis, `(B, W, W)`: only its own."""
    batch_size, slots = shape_of(parents)
    return ops.broadcast_to(ops.eye(slots, dtype="bool"), (batch_size, slots, slots))


def write_from(values: Tensor, new: Tensor, index: Any) -> Tensor:
    """Returns a copy of `values` in which `new` replaces the positions from `index` on, axis 2."""
    # The starts need one type: with `JAX_ENABLE_X64`, JAX makes a plain 0 an int64.
    starts = [index if axis == 2 else 0 * index for axis in range(len(values.shape))]
    return ops.slice_update(values, starts, new)
