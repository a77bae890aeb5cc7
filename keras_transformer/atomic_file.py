"""Atomic writes: a file or a folder appears whole at its path, or not at all.

Pure Python.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path

# Of Linux's `renameat2`: paths are relative to the working folder; the two change places.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def atomic_path(path):
    """Gives another path to write to, and lets what was written appear whole or not at all."""
    path = Path(path)
    partial = path.with_name(f".partial.{path.name}")  # keeps the ending, by which Keras goes
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Free space on the disk, then run the same command again." if is_full else ""
        raise OSError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. What was there before is as "
            f"it was.{advice}",
        ) from error


def write_text(path, text):
    """Writes a text file that appears whole or not at all."""
    with atomic_path(path) as partial:
        partial.write_text(text, "utf-8")


def replace_folder(new, path):
    """Moves a folder to a path of the same file system, in place of the folder that is there.

    What was at the path is then where the new folder was, for the caller to delete. It is never
    lost: where the two cannot change places in one step, it is renamed to `PATH.old-*` first, and
    renamed back if the new folder cannot take its place.

    Args:
        new: `pathlib.Path` of a whole folder, in a temporary one beside `path` whose name ends in
            `-` and something random.
        path: `pathlib.Path`.

    Raises:
        OSError: if the folder cannot be moved; what was at `path` is there again.
    """
    _flush(new)
    if not os.path.lexists(path):
        try:
            os.rename(new, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Another process has written its folder meanwhile.
    if _exchange(new, path):
        return  # the old one is where the new one was, in the temporary folder
    old = path.with_name(f"{path.name}.old-{new.parent.name.rpartition('-')[2]}")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    os.rename(old, new)


def _exchange(one, other):
    """Lets two paths change places in one step, and says whether it could."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old C library
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    return rename(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0


def _flush(folder):
    """Has the disk hold every file before the old folder goes."""
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
