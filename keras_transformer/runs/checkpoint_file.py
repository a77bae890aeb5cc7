"""A checkpoint: one file that holds the whole state of a run.

It appears whole under its name or not at all; a damaged file is detected when it is read.
"""

import contextlib
import io
import json
import math
import os
import zipfile
from pathlib import Path

import numpy as np

METADATA = "metadata.json"
LISTING = "_arrays"  # in the metadata: what the file must hold


class CorruptCheckpointError(ValueError):
    """A file is not the checkpoint that was once written.

    The message names the file and what is wrong with it.

    Example:

    >>> import pathlib
    >>> from keras_transformer.runs import checkpoint_file
    >>> checkpoint_file.write_checkpoint("half.npz", {"bias": np.zeros(3)}, {"epoch": 1})
    >>> path = pathlib.Path("half.npz")
    >>> size = path.write_bytes(path.read_bytes()[:100])
    >>> try:
    ...     checkpoint_file.read_checkpoint(path)
    ... except checkpoint_file.CorruptCheckpointError as error:
    ...     print(error)
    half.npz is not a whole checkpoint: File is not a zip file.
    """


def write_checkpoint(path, arrays, metadata):
    """Writes one file that appears whole, and lasting, or not at all.

    An `.npz` file that `np.load` opens too: `metadata.json`, then one `.npy` per array.

    Args:
        path: path of the file; one that is there is replaced.
        arrays: dict of name to NumPy array of any shape and dtype but `object`.
        metadata: dict that JSON can hold.

    Raises:
        ValueError: an array of objects, a name that a zip file cannot hold, or `"_arrays"` in
            `metadata`.
        OSError: the file could not be written; what was there before is as it was.
    """
    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    listing = {name: [list(a.shape), a.dtype.name] for name, a in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject or zipfile.ZipInfo(name).filename != name:
            raise ValueError(
                "`arrays` must hold arrays of numbers under names without NUL and backslash. "
                f"Received: {name!r} of dtype {array.dtype}"
            )
    if LISTING in metadata:
        raise ValueError(f"`metadata` must not have the key {LISTING!r}. Received: {metadata}")
    text = json.dumps({**metadata, LISTING: listing})  # before any file is touched
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(zipfile.ZipInfo(METADATA), text)
                for name, array in arrays.items():
                    if array.dtype.isbuiltin == 2:  # bfloat16: only bytes to the .npy format
                        array = array.view(f"V{array.itemsize}")
                    member = zipfile.ZipInfo(f"{name}.npy")
                    with archive.open(member, "w", force_zip64=True) as stream:
                        np.lib.format.write_array(stream, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if not isinstance(error, OSError):
            raise
        sentence = (
            f"The checkpoint {path} could not be written: {error.strerror or error}. The older "
            "ones are intact. Free space on the disk, or mend what else is named here, then run "
            "the same command again: it goes on from the newest."
        )
        raise OSError(error.errno, sentence) from error
    _sync_folder(path.parent)


def _sync_folder(path):
    """Makes the names in a folder lasting, where the system can: Windows opens no folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_checkpoint(path):
    """Reads a checkpoint and verifies all of it.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        `(arrays, metadata)` as they were written.

    Raises:
        CorruptCheckpointError: the file is not as it was written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (archive, listing, metadata):
        arrays = {}
        for name, (shape, dtype) in listing.items():
            # All of it, as `read` then compares the checksum.
            array = _array(archive.read(f"{name}.npy"))
            if array.dtype.kind == "V" and array.dtype.name != dtype:
                array = array.view(dtype)
            if [list(array.shape), array.dtype.name] != [shape, dtype]:
                raise ValueError(
                    f"{name!r} must have shape {shape} and dtype {dtype}, and has "
                    f"{list(array.shape)} and {array.dtype.name}"
                )
            arrays[name] = array
    return arrays, metadata


def read_metadata(path):
    """Reads the metadata of a checkpoint and verifies it, but not the arrays.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        dict as it was written.

    Raises:
        CorruptCheckpointError: the metadata, or the list of what the file holds, is not as written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, _, metadata):
        return metadata


def read_shapes(path):
    """Reads what arrays a checkpoint says it holds, to be checked before they are read.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        dict of name to shape.

    Raises:
        CorruptCheckpointError: the metadata, or the list of what the file holds, is not as written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, listing, _):
        return {name: tuple(shape) for name, (shape, dtype) in listing.items()}


def _array(content):
    """The array in an `.npy` file, which must be as large as its header says.

    NumPy allocates what the header says.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read_header(stream)
    if math.prod(shape) * max(1, dtype.itemsize) != len(content) - stream.tell():
        raise ValueError(f"an array of shape {shape} and {dtype} has {len(content)} bytes")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


@contextlib.contextmanager
def _opened(path):
    """Yields the zip file, what it must hold, and the metadata."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                    raise ValueError("it is compressed")
                # Then nothing that is read takes more memory than the file takes of the disk.
                if sum(member.file_size for member in members) > os.path.getsize(path):
                    raise ValueError("it is smaller than what it says it holds")
                metadata = json.loads(archive.read(METADATA))
                listing = metadata.pop(LISTING)
                if archive.namelist() != [METADATA, *(f"{name}.npy" for name in listing)]:
                    raise ValueError("it does not hold the arrays that its metadata lists")
                yield archive, listing, metadata
        except MemoryError:
            raise  # says nothing about the file
        except Exception as error:  # a flipped bit makes zipfile raise a dozen kinds
            reason = str(error).rstrip(".") or type(error).__name__
            raise CorruptCheckpointError(f"{path} is not a whole checkpoint: {reason}.") from error
