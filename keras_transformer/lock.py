"""Locks of files: one process at a time trains a run, or builds a token store."""

import contextlib
import os
import socket

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class RunInUseError(OSError):
    """Another process is training the run; the message names the process."""


@contextlib.contextmanager
def file_lock(path, waits=False, work="training this run"):
    """Locks a file while the block runs, then deletes it. The file names this process.

    The kernel frees the lock (`flock`) when the process ends, even after SIGKILL. On NFS the lock
    works across hosts. On Windows, nothing is locked.

    Args:
        path: `pathlib.Path` of the lock file, in an existing folder.
        waits: whether to wait for another process that holds the lock. Defaults to `False`.
        work: what a process does that holds the lock, for the error.

    Raises:
        RunInUseError: another process holds the lock, without `waits`. Nothing was changed.
        OSError: the file system has no locks, such as Lustre without the option `flock`.
    """
    while True:
        with open(path, "a+", encoding="utf-8", errors="replace") as file:
            _flock(file, path, waits, work)
            if not _is_at(path, file):
                continue  # the previous holder has deleted it
            try:
                file.truncate(0)
                print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
                yield
            finally:
                # Delete while locked: afterwards the file may belong to another process.
                if _is_at(path, file):
                    path.unlink(missing_ok=True)
        return


def _flock(file, path, waits, work):
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        file.seek(0)
        raise RunInUseError(
            f"{str(path.parent)!r} is in use: {file.read().strip() or 'another process'} is "
            f"{work}. Wait until it ends, or stop it. Nothing was changed."
        ) from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(
            f"Files in {str(path.parent)!r} cannot be locked ({error.strerror}), so two processes "
            "could write them at once. Choose a folder on another file system, or mount this one "
            "with locks."
        ) from None


def _is_at(path, file):
    """Whether `path` names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
