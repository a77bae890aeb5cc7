"""Checks of the layers' arguments: errors name the argument that the user wrote."""

import numpy as np


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
