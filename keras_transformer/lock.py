"""Locks of files: one process at a time trains a run, or builds a token store."""

import contextlib
import errno
import os
import socket

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Error codes of `flock` on file systems without locks, such as Lustre without the option `flock`.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class RunInUseError(OSError):
    """Another process is training the run; the message names the process."""


@contextlib.contextmanager
def file_lock(path, waits=False, work="training this run"):
    """Locks a file while the block runs, then deletes it. The file names this process.

    The kernel frees the lock (`flock`) when the process ends, even after SIGKILL. On NFS the lock
    works across hosts.

    Args:
        path: `pathlib.Path` of the lock file, in an existing folder.
        waits: whether to wait for another process that holds the lock. Defaults to `False`.
        work: what a process does that holds the lock, for the error.

    Yields:
        whether the file is locked: `False` if the file system has no locks.

    Raises:
        RunInUseError: another process holds the lock, without `waits`. Nothing was changed.
    """
    while True:
        with open(path, "a+", encoding="utf-8", errors="replace") as file:
            is_locked = _flock(file, path, waits, work)
            if is_locked and not _is_at(path, file):
                continue  # the previous holder has deleted it
            try:
                if is_locked:
                    file.truncate(0)
                    print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
                yield is_locked
            finally:
                # Delete while locked: afterwards the file may belong to another process.
                if _is_at(path, file):
                    path.unlink(missing_ok=True)
        return


def _flock(file, path, waits, work):
    """Locks an open file; returns `False` if the system cannot."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        file.seek(0)
        raise RunInUseError(
            f"{str(path.parent)!r} is in use: {file.read().strip() or 'another process'} is "
            f"{work}. Wait until it ends, or stop it. Nothing was changed."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _is_at(path, file):
    """Whether `path` names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
