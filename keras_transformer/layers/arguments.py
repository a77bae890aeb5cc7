"""Checks of the layers' arguments, so that a mistake is told by the name the user knows."""


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
