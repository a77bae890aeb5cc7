"""Atomic writes: readers see the old file or folder, or the whole new one, never a part.

Pure Python.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import tempfile
from collections.abc import Iterator

from keras_transformer.types import Path

# Flags of Linux's `renameat2`: relative paths start at the working folder; exchange two paths.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def atomic_path(path: Path, *, unique: bool = False) -> Iterator[pathlib.Path]:
    """Yields a temporary path to write to, and renames it to `path` at the end.

    The new file and its name are flushed to disk. On any exception the temporary file is deleted,
    and a file that was at `path` before is unchanged.

    Args:
        path: path of the file to write, in an existing folder.
        unique: whether several processes may write to `path` at the same time. Each then has its
            own temporary file. Defaults to `False`: all share one temporary file, so the next
            write replaces what a killed process left.

    Raises:
        OSError: if the file cannot be written.
    """
    path = pathlib.Path(path)
    process = f"{os.getpid()}." if unique else ""
    # The suffix stays: Keras chooses the format by it.
    partial = path.with_name(f".partial.{process}{path.name}")
    try:
        with named_errors(path):
            yield partial
            move_file(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def named_errors(path: pathlib.Path) -> Iterator[None]:
    """Makes each `OSError` say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Free space on the disk, then run the same command again." if is_full else ""
        raise OSError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. A file that was there before "
            f"is unchanged.{advice}",
        ) from error


def move_file(new: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a complete file to `path`, and flushes it and its name to disk."""
    with open(new, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(new, path)
    _flush_folder(path.parent)


def write_text(path: Path, text: str, *, unique: bool = False) -> None:
    """Writes a UTF-8 text file atomically; for `unique` see `atomic_path`."""
    with atomic_path(path, unique=unique) as partial:
        partial.write_text(text, "utf-8")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[pathlib.Path]:
    """Yields a new folder to write into, and moves it to `path` at the end.

    A folder that was at `path` is deleted then, and is unchanged after an exception.

    Args:
        path: path of the folder. Missing folders above it are created. If it is a symbolic link,
            the folder that it points to is replaced.

    Raises:
        OSError: if the folder cannot be moved, see `replace_folder`.
    """
    place = pathlib.Path(path).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    # Written beside `path`, on the same file system.
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as temporary:
        new = pathlib.Path(temporary, "new")
        new.mkdir()
        yield new
        replace_folder(new, place)


def replace_folder(new: pathlib.Path, path: pathlib.Path) -> None:
    """Moves the folder `new` to `path`; a folder that was at `path` moves to `new`.

    The old folder is never lost: where the system cannot exchange two paths in one step, the old
    folder is renamed to `PATH.old-*` first, and renamed back if the new one cannot be moved.

    Args:
        new: a complete folder. Its parent is a temporary folder next to `path`, and the name of
            this parent ends in `-` and random characters.
        path: where the folder goes, on the same file system.

    Raises:
        OSError: if the folder cannot be moved. The old folder is at `path` again.
    """
    for file in new.rglob("*"):
        if file.is_file():
            with open(file, "rb+") as opened:
                os.fsync(opened.fileno())
    _move_folder(new, path)
    _flush_folder(path.parent)


def _move_folder(new, path):
    if not os.path.lexists(path):
        try:
            os.rename(new, path)
            return
        except OSError as error:
            # Another process may have written its folder in the meantime.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    if _exchange(new, path):
        return
    old = path.with_name(f"{path.name}.old-{new.parent.name.rpartition('-')[2]}")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    os.rename(old, new)


def _exchange(one, other):
    """Exchanges two paths in one step; returns whether the system could."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old C library
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    return rename(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0


def _flush_folder(folder):
    """Flushes the names in a folder to disk."""
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
