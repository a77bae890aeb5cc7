"""One process at a time trains a run: a lock that the kernel frees when its holder ends."""

import contextlib
import errno
import os
import socket

try:
    import fcntl
except ImportError:  # Windows: no run is trained there, since tensorflow-text has no build for it
    fcntl = None

# File systems without locks, such as Lustre without the mount option `flock`.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class RunInUseError(OSError):
    """Another process is training the run; the message names it."""


@contextlib.contextmanager
def locked(path):
    """Holds the lock file of a run while the block runs.

    The lock is the kernel's (`flock`), so it ends with its holder, also by SIGKILL; on NFS it
    counts for all hosts. The file names the holder, and is deleted at the end.

    Args:
        path: path of the lock file. Its folder must exist.

    Yields:
        bool, whether there is a lock: `False` on a file system that has none.

    Raises:
        RunInUseError: another process holds it. Nothing was changed.
    """
    descriptor = _open_locked(path)
    if descriptor is None:
        yield False
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield True
    finally:
        if _is_open_file(descriptor, path):
            os.unlink(path)  # before the lock ends: later it may be another's
        os.close(descriptor)


def _open_locked(path):
    """The descriptor of the lock file, locked; `None` if nothing can be locked here."""
    while fcntl is not None:
        with contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 300, 0).decode("utf-8", "replace").strip()
                raise RunInUseError(
                    f"{str(path.parent)!r} is in use: {holder or 'another process'} is training "
                    "this run. Wait until it ends, or stop it. Nothing was changed."
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                os.unlink(path)
                return None
            if _is_open_file(descriptor, path):
                stack.pop_all()  # stays open
                return descriptor
    return None


def _is_open_file(descriptor, path):
    """Whether a path still names the open file: the one who held the lock before deletes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
