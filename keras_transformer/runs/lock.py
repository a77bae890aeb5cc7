"""The lock of a run folder: one process at a time trains a run."""

import contextlib
import errno
import os
import socket

try:
    import fcntl
except ImportError:  # Windows has no build of tensorflow-text, so no run is trained there
    fcntl = None  # type: ignore[assignment]

# Error codes of `flock` on file systems without locks, such as Lustre without the option `flock`.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class RunInUseError(OSError):
    """Another process is training the run; the message names the process."""


@contextlib.contextmanager
def file_lock(path, waits=False):
    """Locks a file while the block runs, then deletes it. The file names this process.

    The kernel frees the lock (`flock`) when the process ends, even after SIGKILL. On NFS the lock
    works across hosts.

    Args:
        path: `pathlib.Path` of the lock file, in an existing folder.
        waits: whether to wait for another process that holds the lock. Defaults to `False`.

    Yields:
        whether the file is locked: `False` if the file system has no locks.

    Raises:
        RunInUseError: another process holds the lock, without `waits`. Nothing was changed.
    """
    descriptor = _open_locked(path, fcntl and (fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)))
    if descriptor is None:
        yield False
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield True
    finally:
        # Delete while locked: afterwards the file may belong to another process.
        if _is_open_file(descriptor, path):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_locked(path, operation):
    """The descriptor of the locked file; `None` if the system cannot lock it."""
    while fcntl is not None:
        with contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, operation)
            except BlockingIOError:
                holder = os.pread(descriptor, 300, 0).decode("utf-8", "replace").strip()
                raise RunInUseError(
                    f"{str(path.parent)!r} is in use: {holder or 'another process'} is training "
                    "this run. Wait until it ends, or stop it. Nothing was changed."
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                path.unlink(missing_ok=True)  # another process may have deleted it
                return None
            if _is_open_file(descriptor, path):
                stack.pop_all()  # keeps the descriptor open
                return descriptor
    return None


def _is_open_file(descriptor, path):
    """Whether `path` still names the open file. The previous holder may have deleted it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
