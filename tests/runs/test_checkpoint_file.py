"""Checkpoint files: round trips, damage, memory."""

import contextlib
import io
import itertools
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_transformer.runs.averaging import average_checkpoints
from keras_transformer.runs.checkpoint_file import (
    CorruptCheckpointError,
    read_checkpoint,
    read_metadata,
    read_shapes,
    write_checkpoint,
)
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.training.model_state import check_model_state, model_state
from tests.builders import assert_same_arrays
from tests.training.test_model_state import small_model, train

SPECIAL = [0.0, -0.0, 1 / 3, -2.5, np.inf, np.nan]
ARRAYS = {
    "model/float32": np.array(SPECIAL, "float32"),
    "model/float64": np.array(SPECIAL).reshape(2, 3),
    "float16": np.array(SPECIAL, "float16").reshape(3, 1, 2),
    "bfloat16": np.array(SPECIAL).astype("bfloat16"),
    "bfloat16/scalar": np.array(1 / 3).astype("bfloat16"),
    "bfloat16/empty": np.zeros((0, 3)).astype("bfloat16"),
    "float8": np.array(SPECIAL).astype("float8_e5m2"),
    "int64": np.array([2**63 - 1, -(2**63)]),
    "uint32": np.array([[2**32 - 1, 0]], "uint32"),
    "bool": np.array([True, False]),
    "scalar": np.array(7),
    "empty": np.zeros((3, 0), "float32"),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "every other": np.arange(10)[::2],
    "other end first": np.arange(3, dtype=">i4"),
    "text": np.array(["a", "größe"]),
    "schön/δ": np.zeros(1),
}
METADATA = {"epoch": 3, "history": [1.5, None, "a"], "nested": {"ü": True}}


def names(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("arrays, metadata", [(ARRAYS, METADATA), ({}, {})], ids=["all", "empty"])
def test_checkpoint_round_trip(tmp_path, arrays, metadata):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, arrays, metadata)
    found, read = read_checkpoint(path)
    assert_same_arrays(found, arrays)
    assert read == metadata == read_metadata(path)
    assert names(tmp_path) == [path.name]


def test_numpy_opens_a_checkpoint_and_the_metadata_comes_first(tmp_path):
    write_checkpoint(tmp_path / "a.npz", ARRAYS, METADATA)
    with np.load(tmp_path / "a.npz") as file:
        assert file.zip.namelist() == ["metadata.json", *(f"{name}.npy" for name in ARRAYS)]
        assert {member.compress_type for member in file.zip.infolist()} == {zipfile.ZIP_STORED}
        for name in ("model/float32", "int64", "fortran", "scalar"):
            np.testing.assert_array_equal(file[name], ARRAYS[name])


@pytest.mark.parametrize(
    ("arrays", "metadata", "error"),
    [
        ({"a": np.array([None])}, {}, "Object arrays"),
        ({"\ud800": np.zeros(1)}, {}, "surrogates"),
        ({}, {"a": {1, 2}}, "not JSON serializable"),
    ],
)
def test_arrays_that_cannot_be_read_back_are_not_written(tmp_path, arrays, metadata, error):
    write_checkpoint(tmp_path / "a.npz", ARRAYS, METADATA)
    with pytest.raises((ValueError, TypeError), match=error):
        write_checkpoint(tmp_path / "a.npz", arrays, metadata)
    assert names(tmp_path) == ["a.npz"]
    assert_same_arrays(read_checkpoint(tmp_path / "a.npz")[0], ARRAYS)


def peak_memory(function, *args):
    tracemalloc.start()
    try:
        function(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_second_copy_of_all_arrays_is_in_memory(tmp_path):
    size = 2**24
    arrays = {f"model/{i}": np.full(size, i, "uint8") for i in range(4)}
    arrays["model/not contiguous"] = np.zeros((2, size), "uint8").T[:, ::2]
    path = tmp_path / "checkpoint-00000001.npz"
    assert peak_memory(write_checkpoint, path, arrays, {}) < 2.5 * size  # NumPy's chunks
    assert peak_memory(read_checkpoint, path) < (len(arrays) + 1.5) * size
    os.link(path, tmp_path / "checkpoint-00000002.npz")
    assert peak_memory(average_checkpoints, tmp_path.iterdir()) < (len(arrays) + 1.5) * size


SMALL = {"a/b": np.arange(3, dtype="float32"), "c": np.array([1], "bfloat16"), "d": np.array(5)}


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, SMALL, {"epoch": 3})
    return path


def assert_found_out_or_harmless(path):
    """Returns whether the file raises a CorruptCheckpointError; any other error fails the test."""
    found_out = 0
    with contextlib.suppress(CorruptCheckpointError):
        found_out += 1
        assert read_metadata(path) == {"epoch": 3}
        found_out -= 1
    try:
        arrays, metadata = read_checkpoint(path)
    except CorruptCheckpointError as error:
        assert str(path) in str(error)
        return True
    assert not found_out, "the metadata of a readable file is readable"
    assert_same_arrays(arrays, SMALL)
    assert metadata == {"epoch": 3}
    return False


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.long)])
def test_flipped_bit_is_detected_anywhere(small, bits):
    """A bit of each byte, or all of them. Those of an array always fail its checksum."""
    whole = small.read_bytes()
    payload = set()
    for array in SMALL.values():
        start = whole.index(array.tobytes(), whole.index(b"\x93NUMPY"))
        payload |= {*range(start, start + array.nbytes)}
    for position, bit in itertools.product(range(len(whole)), range(bits)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position + bit) % 8
        small.write_bytes(damaged)
        is_found_out = assert_found_out_or_harmless(small)
        if position in payload:
            assert is_found_out
            with pytest.raises(CorruptCheckpointError, match="CRC"):
                read_checkpoint(small)


def test_every_truncation_is_detected(small):
    whole = small.read_bytes()
    for length in range(len(whole)):
        small.write_bytes(whole[:length])
        for read in (read_checkpoint, read_metadata):
            with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
                read(small)


def rewrite(path, change):
    """Writes a checkpoint again; `change` maps its members, name to content, to others."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)


def other_shape(members):
    metadata = json.loads(members["metadata.json"])
    metadata["_arrays"]["d"] = [[1], "int64"]
    return members | {"metadata.json": json.dumps(metadata)}


def pickled(members):
    stream = io.BytesIO()
    np.save(stream, np.array([print]), allow_pickle=True)
    return members | {"d.npy": stream.getvalue()}


@pytest.mark.parametrize(
    "change",
    [
        lambda members: {},
        lambda members: {k: v for k, v in members.items() if k != "c.npy"},
        lambda members: {k: v for k, v in members.items() if k != "metadata.json"},
        lambda members: members | {"e.npy": members["d.npy"]},
        lambda members: members | {"d.npy": members["a/b.npy"]},
        lambda members: members | {"d.npy": b""},
        *[
            lambda members, text=text: members | {"metadata.json": text}
            for text in ("{", "[]", "{}", b"\xff", "[" * 10**5)
        ],
        other_shape,
        pickled,
    ],
)
def test_zip_file_that_is_no_checkpoint_is_detected(small, change):
    rewrite(small, change)
    with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
        read_checkpoint(small)


def test_checkpoint_of_another_model_is_rejected_before_its_arrays_are_read(tmp_path):
    model = train(small_model(), 0, 1)
    state = model_state(model)
    name = "model/model/second/bias"
    path = CheckpointFolder(tmp_path).save(1, state | {name: np.zeros(2**22)}, {})
    assert read_shapes(path) == {n: a.shape for n, a in state.items()} | {name: (2**22,)}

    def check(shapes):
        check_model_state(model, shapes)

    def newest():
        with pytest.raises(ValueError, match=r"second/bias has shape \(4194304,\)"):
            CheckpointFolder(tmp_path).newest(check=check)

    assert peak_memory(newest) < 2**22
    assert path.exists(), "it may be another model's; it is not corrupt"
    state[name] = state[name] + 1
    CheckpointFolder(tmp_path).save(1, state, {})
    assert CheckpointFolder(tmp_path).newest(check=check)[0] == path


def test_missing_file_is_not_reported_as_corrupt(tmp_path):
    for read in (read_checkpoint, read_metadata):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none.npz")
