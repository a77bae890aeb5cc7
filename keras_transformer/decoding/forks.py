"""Which process runs models: the threads of a backend do not outlive a fork."""

import os

import keras

BACKEND = keras.config.backend()
_process: int | None = None  # id of the process whose backend has started


def require_own_process(starts: bool = True) -> None:
    """Raises a `RuntimeError` in a process that was forked from the one that runs models.

    There, a computation would wait forever for threads that only the parent has.

    Args:
        starts: whether the caller is about to start the backend in this process. Defaults to
            `True`.
    """
    global _process
    if _process not in (None, os.getpid()):
        raise RuntimeError(
            "A translator must be loaded and used in one process, because the threads of "
            f"{BACKEND} do not outlive a fork. Received: a process that was forked from {_process}."
            " Load it after the fork, without gunicorn's `--preload`, or start processes by `spawn`"
        )
    if starts:
        _process = os.getpid()
