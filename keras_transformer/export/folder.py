"""A folder that takes the place of another, with a whole one there at every moment.

Pure Python.
"""

import ctypes
import errno
import os

# Of Linux's `renameat2`: paths are relative to the working folder; the two change places.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


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
