"""A checkpoint: one `.npz` file with the whole state of a run. Writes are atomic; reads verify."""

import contextlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy

from keras_transformer.atomic_file import atomic_path
from keras_transformer.types import Path

METADATA = "metadata.json"
LISTING = "_arrays"  # metadata key: shape and dtype of each array


class CorruptCheckpointError(ValueError):
    """The checkpoint file is damaged or incomplete; the message names the file and the defect.

    Example:

    >>> import pathlib
    >>> from keras_transformer import runs
    >>> runs.write_checkpoint("half.npz", {"bias": np.zeros(3)}, {"epoch": 1})
    >>> path = pathlib.Path("half.npz")
    >>> size = path.write_bytes(path.read_bytes()[:100])
    >>> try:
    ...     runs.read_checkpoint(path)
    ... except runs.CorruptCheckpointError as error:
    ...     print(error)
    half.npz is not a complete checkpoint: File is not a zip file.
    """


def write_checkpoint(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically, and flushes it to disk.

    The file is an `.npz` that `np.load` opens too: `metadata.json`, then one `.npy` per array.

    Args:
        path: path of the file. An existing file is replaced.
        arrays: name to NumPy array, of any shape and any dtype but `object`.
        metadata: values that JSON can hold, under other keys than `"_arrays"`.

    Raises:
        ValueError: an array of objects.
        OSError: the file could not be written. The old file is unchanged.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    listing = {name: [list(a.shape), a.dtype.name] for name, a in arrays.items()}
    text = json.dumps({**metadata, LISTING: listing})
    with atomic_path(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        archive.writestr(zipfile.ZipInfo(METADATA), text)
        for name, array in arrays.items():
            if array.dtype.isbuiltin == 2:  # .npy cannot name a dtype such as bfloat16: raw bytes
                array = array.view(f"V{array.itemsize}")
            member = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(member, "w", force_zip64=True) as stream:
                npy.write_array(stream, array, allow_pickle=False)


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a checkpoint and verifies all of it.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        `(arrays, metadata)`, as given to `write_checkpoint`.

    Raises:
        CorruptCheckpointError: the file is damaged or incomplete.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (archive, listing, metadata):
        arrays = {}
        for name, (shape, dtype) in listing.items():
            # Read the whole member: zipfile verifies the CRC at its end.
            content = io.BytesIO(archive.read(f"{name}.npy"))
            array = npy.read_array(content, allow_pickle=False)
            if array.dtype.kind == "V" and array.dtype.name != dtype:
                array = array.view(dtype)
            if [list(array.shape), array.dtype.name] != [shape, dtype]:
                raise ValueError(
                    f"{name!r} must have shape {shape} and dtype {dtype}, and has "
                    f"{list(array.shape)} and {array.dtype.name}"
                )
            arrays[name] = array
    return arrays, metadata


def read_metadata(path: Path) -> dict[str, Any]:
    """Reads the metadata of a checkpoint and verifies it, without the arrays.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Raises:
        CorruptCheckpointError: the metadata is damaged.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, _, metadata):
        return metadata


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of a checkpoint's arrays by name, from the metadata alone.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Raises:
        CorruptCheckpointError: the metadata is damaged.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, listing, _):
        return {name: tuple(shape) for name, (shape, dtype) in listing.items()}


@contextlib.contextmanager
def _opened(path):
    """Yields the zip file, the shape and dtype of each array in it, and the metadata."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                metadata = json.loads(archive.read(METADATA))
                listing = metadata.pop(LISTING)
                if archive.namelist() != [METADATA, *(f"{name}.npy" for name in listing)]:
                    raise ValueError("it does not hold the arrays that its metadata lists")
                yield archive, listing, metadata
        except MemoryError:
            raise  # the file is not damaged
        except Exception as error:  # zipfile raises a dozen exception types for a damaged file
            reason = str(error).rstrip(".") or type(error).__name__
            raise CorruptCheckpointError(
                f"{path} is not a complete checkpoint: {reason}."
            ) from error
