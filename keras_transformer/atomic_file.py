"""Atomic writes: readers see the old file or folder, or the whole new one, never a part.

While a folder is replaced, its path does not exist for a moment. Pure Python.
"""

import contextlib
import errno
import glob
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from keras_transformer.types import Path

# A folder is written to `.NAME-XXXXXXXX/new` beside it; the X are random characters.
NEW, SUFFIX_LENGTH = "new", 8


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
    """Makes each `OSError` say which file or folder could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Free space on the disk, then run the same command again." if is_full else ""
        raise OSError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. What was there before is "
            f"unchanged.{advice}",
        ) from error


def move_file(new: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a complete file to `path`, and flushes it and its name to disk."""
    _flush_file(new)
    os.replace(new, path)
    _flush_folder(path.parent)


def write_text(path: Path, text: str, *, unique: bool = False) -> None:
    """Writes a UTF-8 text file atomically; for `unique` see `atomic_path`."""
    with atomic_path(path, unique=unique) as partial:
        partial.write_text(text, "utf-8")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[pathlib.Path]:
    """Yields a new folder to write into, and moves it to `path` at the end, flushed to disk.

    An old folder at `path` is first renamed, then the new one gets its name, then the old one is
    deleted. After an exception the old one is at `path` again. If the process is killed between the
    two renames, there is no folder at `path`, and `restore_folder` moves the old one back. What a
    killed process has written stays in a folder `.NAME-XXXXXXXX` beside `path`; nothing deletes it.

    Args:
        path: path of the folder. Missing folders above it are created. If it is a symbolic link,
            the folder that it points to is replaced.

    Raises:
        OSError: if the folder cannot be written or moved; the message names `path`.
    """
    place = restore_folder(path)
    with named_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        # Beside `path`: a rename works only within one file system.
        staging = pathlib.Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}-"))
    new = staging / NEW
    try:
        new.mkdir()
        yield new
        with named_errors(place):
            _replace_folder(new, place)
    finally:
        restore_folder(place)  # after an exception between the renames
        shutil.rmtree(staging, ignore_errors=True)


def restore_folder(path: Path) -> pathlib.Path:
    """Moves an exported folder back if a process was killed while it replaced the folder.

    Call this before an exported folder is loaded or replaced.

    Args:
        path: path of the folder, which need not exist.

    Returns:
        `pathlib.Path`: `path` without symbolic links.

    Raises:
        FileNotFoundError: if the folder cannot be moved back; the message says where it is.
    """
    place = pathlib.Path(path).resolve()
    while not place.exists() and (old := _moved_folder(place)):
        try:
            os.rename(old, place)
        except OSError as error:
            if old.exists() and not place.exists():  # else another process was quicker
                raise FileNotFoundError(
                    f"{str(place)!r} is missing: a process that was replacing it has moved it to "
                    f"{str(old)!r}, and was killed. It cannot be moved back ({error.strerror}). "
                    "Rename it."
                ) from error
    return place


def _moved_folder(place):
    """Returns where a killed process has moved the folder that was at `place`, or `None`."""
    for staging in place.parent.glob(f".{glob.escape(place.name)}-{'?' * SUFFIX_LENGTH}"):
        old_folders = sorted(staging.glob("old*"))
        # The new folder is still there: the process was killed before the second rename.
        if old_folders and (staging / NEW).is_dir():
            return old_folders[-1]
    return None


def _replace_folder(new, path):
    """Renames the complete folder `new` to `path`; moves a folder at `path` beside `new` first."""
    for file in filter(pathlib.Path.is_file, new.rglob("*")):
        _flush_file(file)
    for number in itertools.count():
        try:
            os.rename(new, path)
            break
        except OSError as error:
            # `path` is a folder: the old one, or one that another process has written since.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            os.rename(path, new.with_name(f"old{number}"))
    _flush_folder(path.parent)


def _flush_file(path):
    """Flushes the content of a file to disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder):
    """Flushes the names in a folder to disk."""
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
