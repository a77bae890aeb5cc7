"""Locks of files: one process at a time trains a run, builds a token store, or writes a file."""

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator


class RunInUseError(OSError):
    """Another process trains the run, or writes the file; the message names the process."""


@contextlib.contextmanager
def file_lock(path: pathlib.Path, work: str, *, waits: bool = False) -> Iterator[None]:
    """Locks a file while the block runs, then deletes it. The file names this process.

    The system frees the lock when the process ends, even after SIGKILL; the file is then left, and
    the next process takes it. A forked process does not hold the lock.

    Args:
        path: path of the lock file, in an existing folder.
        work: what the process that holds the lock does, for the error: `"training this run"`.
        waits: whether to wait for another process that holds the lock. Defaults to `False`.

    Raises:
        RunInUseError: another process holds the lock, without `waits`. Nothing was changed.
        OSError: the file system has no locks, such as Lustre without the option `flock`; or the
            file cannot be written.
    """
    # Imported here: it costs some milliseconds, and most commands lock nothing.
    from filelock import FileLock, Timeout

    lock = FileLock(
        path,
        blocking=waits,
        thread_local=False,  # whichever thread ends the block frees the lock
        fallback_to_soft=False,
        on_acquired=_name_holder,
    )
    try:
        lock.acquire()
    except Timeout:
        raise RunInUseError(
            f"{str(path.parent)!r} is in use: {_holder(path)} is {work}. Wait until it ends, or "
            "stop it. Nothing was changed."
        ) from None
    except OSError as error:
        if error.filename is not None:  # the file cannot be opened
            raise
        path.unlink(missing_ok=True)
        raise OSError(
            f"Files in {str(path.parent)!r} cannot be locked ({error.strerror}), so two processes "
            "could write them at once. Choose a folder on another file system, or mount this one "
            "with locks."
        ) from None
    try:
        yield
    finally:
        if lock.is_locked:  # not in a forked process that leaves the block
            # Delete while locked: afterwards the file may belong to another process.
            with contextlib.suppress(OSError):  # Windows deletes no open file
                path.unlink(missing_ok=True)
            lock.release()


def _name_holder(descriptor):
    """Writes the name of this process into the lock file, which stays empty on a full disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _holder(path):
    """Returns the process that a lock file names."""
    with contextlib.suppress(OSError):
        if name := path.read_text("utf-8", "replace").strip():
            return name
    return "another process"
