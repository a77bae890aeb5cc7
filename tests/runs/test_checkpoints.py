"""Checkpoints against damage, death and full disks; what they hold against a run not cut off."""

import contextlib
import io
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.layers.dropout import Dropout
from keras_transformer.runs.averaging import average_checkpoints
from keras_transformer.runs.checkpoint_file import (
    CorruptCheckpointError,
    read_checkpoint,
    read_metadata,
    read_shapes,
    write_checkpoint,
)
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.training.model_state import (
    check_model_state,
    model_state,
    restore_model_state,
)
from tests.builders import ROOT, normal, run_fresh, to_numpy, token_inputs

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


def assert_same_arrays(actual, expected):
    """The same names in the same order, the same dtypes and shapes, the same bits."""
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


def names(folder):
    return sorted(os.listdir(folder))


# One file.


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, ARRAYS, METADATA)
    arrays, metadata = read_checkpoint(path)
    assert_same_arrays(arrays, ARRAYS)
    assert metadata == METADATA == read_metadata(path)
    assert names(tmp_path) == [path.name]


def test_numpy_opens_it_too_and_the_metadata_comes_first(tmp_path):
    write_checkpoint(tmp_path / "a.npz", ARRAYS, METADATA)
    with np.load(tmp_path / "a.npz") as file:
        assert file.zip.namelist() == ["metadata.json", *(f"{name}.npy" for name in ARRAYS)]
        assert {member.compress_type for member in file.zip.infolist()} == {zipfile.ZIP_STORED}
        for name in ("model/float32", "int64", "fortran", "scalar"):
            np.testing.assert_array_equal(file[name], ARRAYS[name])


def test_no_arrays_and_no_metadata(tmp_path):
    write_checkpoint(tmp_path / "a.npz", {}, {})
    assert read_checkpoint(tmp_path / "a.npz") == ({}, {})


@pytest.mark.parametrize(
    ("arrays", "metadata", "error"),
    [
        ({"a": np.array([None])}, {}, "'a' of dtype object"),
        ({"a\0b": np.zeros(1)}, {}, "names without NUL"),
        ({"\ud800": np.zeros(1)}, {}, "surrogates"),
        ({}, {"_arrays": 1}, "must not have the key '_arrays'"),
        ({}, {"a": {1, 2}}, "not JSON serializable"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(tmp_path, arrays, metadata, error):
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
    arrays = {f"{i}": np.full(size, i, "int8") for i in range(4)}
    arrays["not contiguous"] = np.zeros((2, size), "int8").T[:, ::2]
    path = tmp_path / "checkpoint-00000001.npz"
    assert peak_memory(write_checkpoint, path, arrays, {}) < 2.5 * size  # NumPy's chunks
    assert peak_memory(read_checkpoint, path) < (len(arrays) + 1.5) * size
    os.link(path, tmp_path / "checkpoint-00000002.npz")
    assert peak_memory(average_checkpoints, tmp_path.iterdir(), "") < (len(arrays) + 1.5) * size


# Damage. `SMALL` has every kind of byte: names, headers, arrays first, in between and last.

SMALL = {"a/b": np.arange(3, dtype="float32"), "c": np.array([1], "bfloat16"), "d": np.array(5)}


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, SMALL, {"epoch": 3})
    return path


def assert_found_out_or_harmless(path):
    """Any error but a CorruptCheckpointError fails the test. Returns whether there was one."""
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
    assert not found_out, "what passes in full passes in part"
    assert_same_arrays(arrays, SMALL)
    assert metadata == {"epoch": 3}
    return False


def test_a_flipped_bit_is_found_out_wherever_it_is(small):
    whole = small.read_bytes()
    found = 0
    for position, bit in itertools.product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        small.write_bytes(damaged)
        found += assert_found_out_or_harmless(small)
    payload = sum(array.nbytes for array in SMALL.values())
    assert found > 8 * payload  # and not only what NumPy and JSON stumble over


def test_every_bit_of_the_arrays_counts(small):
    whole = small.read_bytes()
    for array in SMALL.values():
        start = whole.index(array.tobytes(), whole.index(b"\x93NUMPY"))
        for position, bit in itertools.product(range(start, start + array.nbytes), range(8)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            small.write_bytes(damaged)
            with pytest.raises(CorruptCheckpointError, match="CRC"):
                read_checkpoint(small)


def test_a_damaged_shape_is_not_believed(tmp_path):
    """Else a flipped bit would ask for all the memory there is, and more."""
    path = tmp_path / "a.npz"
    write_checkpoint(path, {"a": np.zeros(10**5)}, {})  # larger than what is read ahead
    huge = b"(9999999999999,), }"
    damaged = path.read_bytes().replace(b"(100000,), }".ljust(len(huge)), huge)
    assert huge in damaged and len(damaged) == path.stat().st_size
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpointError, match="CRC"):
        read_checkpoint(path)


def test_every_truncation_is_found_out(small):
    whole = small.read_bytes()
    for length in range(len(whole)):
        small.write_bytes(whole[:length])
        for read in (read_checkpoint, read_metadata):
            with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
                read(small)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.data())
def test_any_bytes_in_place_of_others_are_found_out(noise, data):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.npz")
        write_checkpoint(path, SMALL, {"epoch": 3})
        with open(path, "r+b") as file:
            file.seek(data.draw(st.integers(0, os.path.getsize(path))))
            file.write(noise)
        assert_found_out_or_harmless(path)


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
        lambda members: members | {"metadata.json": "{"},
        lambda members: members | {"metadata.json": "[]"},
        lambda members: members | {"metadata.json": "{}"},
        lambda members: members | {"metadata.json": b"\xff"},
        lambda members: members | {"metadata.json": "[" * 10**5},
        other_shape,
        pickled,
    ],
)
def test_a_zip_file_that_is_no_checkpoint_is_found_out(small, change):
    with zipfile.ZipFile(small) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(small, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)
    with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
        read_checkpoint(small)


# What a file says of itself is not believed: nobody's memory is filled by a small file.


def rewritten(path, compression=zipfile.ZIP_STORED, **members):
    """The same checkpoint with some members replaced."""
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (old | members).items():
            archive.writestr(name, content)
    return path


def assert_refused_within(size, path, reason):
    for read in (read_checkpoint, read_metadata):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptCheckpointError, match=reason):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < size
        finally:
            tracemalloc.stop()
        if "array" in reason:
            return  # metadata is read without arrays


def test_a_compressed_file_is_refused_before_it_is_inflated(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {"a": np.zeros(2**22)}, {"epoch": 3})
    rewritten(path, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**16
    assert_refused_within(2**20, path, "compressed")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", " " * 2**25, zipfile.ZIP_BZIP2)
    assert_refused_within(2**20, path, "compressed")


def test_members_that_are_the_same_bytes_are_refused(tmp_path):
    """A listing that names one member a thousand times, all at the same place of the file."""
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {f"{n:03d}": np.zeros(2**12 if n == 0 else 0) for n in range(500)}, {})
    with zipfile.ZipFile(path, "a") as archive:
        first, *others = archive.infolist()[1:]
        for member in others:
            member.header_offset = first.header_offset
            member.file_size = member.compress_size = first.file_size
            member.CRC = first.CRC
        archive._didModify = True  # writes the directory again
    assert_refused_within(2**22, path, "smaller than what it says it holds|array|verlap")


def test_a_header_with_a_right_checksum_is_not_believed(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {"a": np.zeros(10)}, {})
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    )
    assert_refused_within(2**20, rewritten(path, **{"a.npy": content.getvalue()}), "array of shape")


def test_a_checkpoint_of_another_model_is_refused_before_its_arrays_are_read(tmp_path):
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


def test_a_missing_file_is_not_a_corrupt_one(tmp_path):
    for read in (read_checkpoint, read_metadata):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none.npz")


# Death and full disks.

WRITER = """
import itertools, sys
import numpy as np
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
folder = CheckpointFolder(sys.argv[1], keep_last=3)
found = folder.newest()
for step in itertools.count(found[2]["step"] + 1 if found else 1):
    arrays = {f"model/{i}": np.full(2**18, 10 * step + i) for i in range(8)}
    folder.save(step, arrays, {"step": step})
    print(step, flush=True)
"""


def kill_a_writer(folder, seconds):
    """Kills it in the middle of something and returns the last step that it called done."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return int((first + process.stdout.read()).split()[-1])


def test_a_killed_process_leaves_whole_checkpoints(tmp_path):
    rng = random.Random(0)
    hits, done = 0, 0
    while hits < 3:  # times that it died in the middle of a file
        before, done = done, kill_a_writer(tmp_path, rng.uniform(0, 0.2))
        assert done > before
        hits += any(name.endswith(".partial") for name in os.listdir(tmp_path))
        steps = []
        for path in tmp_path.glob("checkpoint-*"):
            arrays, metadata = read_checkpoint(path)
            steps.append(metadata["step"])
            assert path.name == f"checkpoint-{steps[-1]:08d}.npz"
            for i in range(8):
                assert arrays[f"model/{i}"].shape == (2**18,)
                assert (arrays[f"model/{i}"] == 10 * steps[-1] + i).all()
        assert max(steps) in (done, done + 1)  # it may die before it can say so
        assert len(steps) in (min(max(steps), 3), 4)  # or before it can delete one
        assert CheckpointFolder(tmp_path).newest(print_fn=pytest.fail)[2]["step"] == max(steps)
    CheckpointFolder(tmp_path).save(done + 5, {}, {})
    assert not [name for name in names(tmp_path) if name.endswith(".partial")]


FULL_DISK = """
import errno, os, resource
import numpy as np
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
folder = CheckpointFolder({folder!r}, keep_last=1)
arrays = {{f"model/{{i}}": np.random.default_rng(i).random(3000) for i in range(3)}}
older = folder.save(1, arrays, {{"epoch": 1}})
size = older.stat().st_size
limits = [*range(0, size, 499), *range(size - 300, size, 7), size - 1]
for limit in limits:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        folder.save(2, arrays, {{"epoch": 2}})
    except OSError as error:
        assert error.errno == errno.EFBIG and error.filename is None, error
        words = error.strerror
    else:
        raise SystemExit(f"written within {{limit}} bytes")
    assert os.listdir(folder.path) == [older.name], limit
    arrays_read, metadata = read_checkpoint(older)
    assert metadata["epoch"] == 1
    assert all((arrays_read[name] == arrays[name]).all() for name in arrays)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
folder.save(2, arrays, {{"epoch": 2}})
print(len(limits), os.listdir(folder.path), words)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot limit the size of files")
def test_a_full_disk_is_said_and_harms_nothing(tmp_path):
    printed = run_fresh(FULL_DISK.format(folder=str(tmp_path)), KERAS_BACKEND="numpy")
    assert "['checkpoint-00000002.npz']" in printed
    assert f"The checkpoint {tmp_path / 'checkpoint-00000002.npz'} could not be" in printed
    for part in ("File too large", "older ones are intact", "Free space", "same command again"):
        assert part in printed


# The folder.


def save_steps(folder, steps):
    return {step: folder.save(step, {"a": np.array(step)}, {"epoch": step}) for step in steps}


def damage(path):
    """Flips a bit of an array: only those who read all of the file find out."""
    content = bytearray(path.read_bytes())
    content[content.index(b"\x93NUMPY") + 128] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:50])


def test_newest_of_an_empty_or_missing_folder_is_none(tmp_path):
    assert CheckpointFolder(tmp_path).newest() is None
    assert CheckpointFolder(tmp_path / "missing").newest() is None
    assert CheckpointFolder(tmp_path / "missing").last(3) == []


def test_newest_goes_by_the_number_of_updates(tmp_path):
    folder = CheckpointFolder(tmp_path)
    paths = save_steps(folder, [9, 10, 99_999_999, 100_000_000])
    path, arrays, metadata = folder.newest(print_fn=pytest.fail)
    assert (path, int(arrays["a"]), metadata["epoch"]) == (paths[100_000_000], 10**8, 10**8)
    assert folder.last(2) == [paths[100_000_000], paths[99_999_999]]


@pytest.mark.parametrize("harm", [damage, cut])
def test_newest_falls_back_and_says_so(tmp_path, harm):
    folder = CheckpointFolder(tmp_path)
    paths = save_steps(folder, [1, 2, 3, 4])
    for step in (3, 4):
        harm(paths[step])
    lines = []
    path, arrays, metadata = folder.newest(print_fn=lines.append)
    assert (path, int(arrays["a"]), metadata["epoch"]) == (paths[2], 2, 2)
    assert len(lines) == 2
    for step, line in zip((4, 3), lines, strict=True):
        assert "\n" not in line
        assert line.startswith(f"{paths[step]} is not a whole checkpoint: ")
        assert f"checkpoint-0000000{step}.npz.corrupt" in line and paths[2].name in line
    assert names(tmp_path)[2:] == [f"{paths[step].name}.corrupt" for step in (3, 4)]
    assert folder.newest(print_fn=pytest.fail)[0] == paths[2]  # once is enough
    assert folder.last(9) == [paths[2], paths[1]]


def test_no_readable_checkpoint_is_an_error_until_someone_decides(tmp_path):
    folder = CheckpointFolder(tmp_path)
    paths = save_steps(folder, [1, 2])
    damage(paths[1])
    cut(paths[2])
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError, match="delete them to start from the") as error:
            folder.newest(print_fn=pytest.fail)
        assert all(str(path) in str(error.value) for path in paths.values())
        assert names(tmp_path) == [path.name for path in paths.values()]


def test_an_unreadable_file_takes_no_ones_place(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=0)
    paths = save_steps(folder, [1, 2])
    cut(paths[2])
    save_steps(folder, [3])
    assert folder.last(5) == [tmp_path / "checkpoint-00000003.npz", paths[1]]
    assert paths[2].exists()  # for someone to look at


def test_saving_a_step_again_replaces_it(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=2)
    save_steps(folder, [1, 2])
    path = folder.save(2, {"b": np.zeros(2)}, {}, score=0.5)
    assert list(folder.newest()[1]) == ["b"]
    assert folder.best(2) == [path]
    assert len(names(tmp_path)) == 2


def test_other_files_are_left_alone_and_partial_ones_deleted(tmp_path):
    others = ["checkpoint-1.npz", "checkpoint-00000001.npz.corrupt", "model.keras", "a.partial"]
    for name in [*others, ".checkpoint-00000001.npz.partial"]:
        (tmp_path / name).touch()
    save_steps(CheckpointFolder(tmp_path, keep_last=1, keep_best=0), [1, 2])
    assert names(tmp_path) == sorted([*others, "checkpoint-00000002.npz"])


def kept_steps(scores, keep_last, keep_best, mode):
    """The words of the docstring, of all checkpoints that there ever were."""
    steps = range(len(scores))
    rated = [step for step in steps if scores[step] is not None and not math.isnan(scores[step])]
    best = []
    for _ in range(min(keep_best, len(rated))):
        top = (min if mode == "min" else max)(scores[step] for step in rated)
        best.append(next(step for step in rated if scores[step] == top))  # the earliest
        rated.remove(best[-1])
    return {*list(steps)[-keep_last:], *best}, best


SCORES = st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | st.integers(-2, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SCORES, min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(["min", "max"]),
)
def test_the_last_and_the_best_are_kept(scores, keep_last, keep_best, mode):
    kept, best = kept_steps(scores, keep_last, keep_best, mode)
    with tempfile.TemporaryDirectory() as path:
        folder = CheckpointFolder(path, keep_last, keep_best, mode)
        for step, score in enumerate(scores):
            assert folder.save(step, {}, {"a": 1}, score).exists()
        assert names(path) == [f"checkpoint-{step:08d}.npz" for step in sorted(kept)]
        assert folder.best(keep_best) == [
            folder.path / f"checkpoint-{step:08d}.npz" for step in best
        ]
        _, _, metadata = folder.newest()
        assert repr(metadata) == repr({"a": 1, "score": None if score is None else float(score)})


@pytest.mark.parametrize("arguments", [{"keep_last": 0}, {"keep_best": -1}, {"mode": "auto"}])
def test_folder_refuses(tmp_path, arguments):
    with pytest.raises(ValueError, match="Received: keep_last="):
        CheckpointFolder(tmp_path, **arguments)


def test_a_negative_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="step=-1"):
        CheckpointFolder(tmp_path).save(-1, {}, {})


# Averages.


def test_average_is_the_mean_of_floats_and_the_newest_of_others(tmp_path):
    folder = CheckpointFolder(tmp_path)
    saved = [
        {
            "model/kernel": normal(5, 7, seed=step),
            "model/half": normal(9, seed=step).astype("bfloat16"),
            "model/scalar": np.array(float(step)),
            "model/seed": np.array([3, step]),
            "optimizer/momentum": normal(3, seed=step),
        }
        for step in range(5)
    ]
    for step, arrays in enumerate(saved):
        folder.save(step, arrays, {})
    paths = folder.last(5)
    random.Random(0).shuffle(paths)
    average = average_checkpoints(paths)
    for name in ("model/kernel", "model/half", "model/scalar"):
        mean = np.mean([arrays[name].astype("float64") for arrays in saved], axis=0)
        np.testing.assert_array_equal(average.pop(name), mean.astype(saved[0][name].dtype))
    assert_same_arrays(average, {"model/seed": saved[4]["model/seed"]})


def test_average_is_taken_in_float64(tmp_path):
    folder = CheckpointFolder(tmp_path)
    values = [2.0**24, 1.0, 1.0]  # in float32 the ones would be lost
    for step, value in enumerate(values):
        folder.save(step, {"model/a": np.array([value], "float32")}, {})
    assert average_checkpoints(folder.last(3))["model/a"] == np.float32((2**24 + 2) / 3)


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"model/a": np.zeros(2)}, r"model/b is float64 \[3\] in .*1.npz, and missing in .*2.npz"),
        (
            {"model/a": np.zeros(2), "model/b": np.zeros(3), "model/c": np.zeros(3)},
            "model/c is missing in .*1.npz, and float64",
        ),
        (
            {"model/a": np.zeros(2), "model/b": np.zeros((3, 1))},
            r"model/b is float64 \[3\] in .*, and float64 \[3, 1\] in",
        ),
    ],
)
def test_checkpoints_of_different_models_have_no_average(tmp_path, other, error):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"model/a": np.zeros(2), "model/b": np.zeros(3)}, {})
    folder.save(2, other, {})
    with pytest.raises(ValueError, match=error):
        average_checkpoints(folder.last(2))


def test_an_average_of_nothing_is_refused(tmp_path):
    path = CheckpointFolder(tmp_path).save(1, {"model/a": np.zeros(2)}, {})
    for paths, prefix in [([], "model/"), ([path], "weights/")]:
        with pytest.raises(ValueError, match="Received: paths="):
            average_checkpoints(paths, prefix)


# Models.


def small_model(seed=0, width=8):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(width, "tanh", name="first"),
        Dropout(0.5, name="dropout"),
        keras.layers.Dense(2, name="second"),
    ]
    model = keras.Sequential(layers, name="model")
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def train(model, first, last):
    """Updates `first` to `last`, always from the same batches."""
    rows = slice(8 * first, 8 * last)
    inputs, targets = normal(64, 4, seed=1), normal(64, 2, seed=2)
    model.fit(inputs[rows], targets[rows], batch_size=8, shuffle=False, verbose=0)
    return model


WEIGHTS = ["first/kernel", "first/bias", "second/kernel", "second/bias"]


def test_state_holds_all_that_training_changes():
    model = train(small_model(), 0, 3)
    state = model_state(model)
    moments = [f"model_{name.replace('/', '_')}" for name in WEIGHTS]
    assert set(state) == {
        *(f"model/model/{name}" for name in WEIGHTS),
        "model/model/dropout/seed_generator/seed_generator_state",
        "optimizer/adam/iteration",
        "optimizer/adam/learning_rate",
        *(f"optimizer/adam/{name}_{m}" for name in moments for m in ("momentum", "velocity")),
        *(f"metrics/{name}/{i}" for name in ("loss", "compile_metrics") for i in (0, 1)),
    }
    assert state["optimizer/adam/iteration"] == 3
    for weight, name in zip(model.get_weights(), WEIGHTS, strict=True):
        np.testing.assert_array_equal(state[f"model/model/{name}"], weight)


def test_state_is_a_copy():
    model = train(small_model(), 0, 1)
    state = model_state(model)
    copies = {name: array.copy() for name, array in state.items()}
    train(model, 1, 2)
    assert_same_arrays(state, copies)


def test_state_of_bfloat16_weights_comes_back(tmp_path):
    layer = keras.layers.Dense(3, dtype="bfloat16", name="dense")
    model = keras.Sequential([keras.Input((2,)), layer], name="model")
    state = model_state(model)
    write_checkpoint(tmp_path / "a.npz", state, {})
    layer.set_weights([np.zeros((2, 3)), np.ones(3)])
    restore_model_state(model, read_checkpoint(tmp_path / "a.npz")[0])
    assert state["model/model/dense/kernel"].dtype == "bfloat16"
    assert_same_arrays(model_state(model), state)


def test_no_optimizer_or_one_that_is_not_built():
    compiled = small_model()
    assert not any(name.startswith("optimizer/") for name in model_state(compiled))
    uncompiled = keras.Sequential(compiled.layers, name="model")
    assert all(name.startswith("model/") for name in model_state(uncompiled))


class Counting(keras.layers.Layer):
    """Has a metric, and a seed generator whose path is not below the layer's."""

    def __init__(self, name, seed_generator):
        super().__init__(name=name)
        self.count = keras.metrics.Mean(name=f"{name}_count")
        self.seed_generator = seed_generator

    def call(self, inputs):
        return inputs


def counting_model(first_generator, second_generator):
    layers = [Counting("a", first_generator), Counting("b", second_generator)]
    return keras.Sequential([keras.Input((2,)), *layers])


def generator(name):
    return keras.random.SeedGenerator(1, name=name)


def test_metrics_of_layers_are_held_once():
    assert sorted(model_state(counting_model(generator("a"), generator("b")))) == [
        *(f"metrics/{name}_count/{i}" for name in "ab" for i in (0, 1)),
        *(f"model/{name}/seed_generator_state" for name in "ab"),
    ]


def test_variables_of_one_name_are_refused_unless_they_are_one():
    with pytest.raises(ValueError, match="model/same/seed_generator_state"):
        model_state(counting_model(generator("same"), generator("same")))
    shared = generator("same")
    assert "model/same/seed_generator_state" in model_state(counting_model(shared, shared))


def test_restored_model_goes_on_as_if_nothing_had_happened(tmp_path):
    model = train(small_model(seed=0), 0, 3)
    path = CheckpointFolder(tmp_path).save(3, model_state(model), {})
    arrays = read_checkpoint(path)[0]
    other = train(small_model(seed=5), 4, 6)  # far from it, and with all metrics
    restore_model_state(other, arrays)
    assert_same_arrays(model_state(other), model_state(model))
    assert_same_arrays(model_state(train(other, 3, 6)), model_state(train(model, 3, 6)))


FRESH = """
from keras_transformer.training.checkpoints import *
from tests.training.test_checkpoints import small_model, train
model = small_model(seed=5)
_, arrays, _ = CheckpointFolder({folder!r}).newest()
restore_model_state(model, arrays, parts=("model", "optimizer"))
write_checkpoint({result!r}, model_state(train(model, 3, 6)), {{}})
"""


def test_a_fresh_process_goes_on_as_if_nothing_had_happened(tmp_path):
    model = train(small_model(), 0, 3)
    CheckpointFolder(tmp_path).save(3, model_state(model), {})
    run_fresh(FRESH.format(folder=str(tmp_path), result=str(tmp_path / "result.npz")))
    result, _ = read_checkpoint(tmp_path / "result.npz")
    assert_same_arrays(result, model_state(train(model, 3, 6)))
    # So were the moments of Adam and the masks of dropout worth restoring.
    without = small_model(seed=5)
    restore_model_state(without, model_state(model), parts=("model",))
    assert any((result[n] != array).any() for n, array in model_state(train(without, 3, 6)).items())


@pytest.mark.tensorflow_only
def test_replicas_go_on_as_if_nothing_had_happened():
    from tests.replicas import mirrored

    with mirrored().scope():
        model, trained, fresh = small_model(0), small_model(5), small_model(6)
    state = model_state(train(model, 0, 3))
    restore_model_state(train(trained, 4, 6), state)
    assert_same_arrays(model_state(trained), state)
    restore_model_state(fresh, state, parts=("model", "optimizer"))
    end = model_state(train(model, 3, 6))
    for restored in (trained, fresh):
        for variable in [*restored.variables, *restored.optimizer.variables]:
            first, second = variable.value.values
            np.testing.assert_array_equal(first.numpy(), second.numpy())
        assert_same_arrays(model_state(train(restored, 3, 6)), end)


@pytest.mark.tensorflow_only
def test_one_device_goes_on_with_what_replicas_saved_and_the_other_way_round():
    from tests.replicas import mirrored

    with mirrored().scope():
        replicas = train(small_model(0), 0, 3)
    one = train(small_model(5), 4, 6)
    for source, target in [(replicas, one), (train(small_model(7), 0, 2), replicas)]:
        restore_model_state(target, model_state(source))
        assert_same_arrays(model_state(target), model_state(source))


def test_restored_transformer_draws_the_same_dropout(tmp_path):
    config = TransformerConfig.tiny(
        50, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16, dropout=0.3
    )
    inputs = token_inputs(np.full((2, 5), 7), np.full((2, 4), 8))
    first, second = Transformer(config, name="t"), Transformer(config, name="t")
    first(inputs, training=True)
    write_checkpoint(tmp_path / "a.npz", model_state(first), {})
    restore_model_state(second, read_checkpoint(tmp_path / "a.npz")[0])
    for training in (True, True, False):
        outputs = [to_numpy(model(inputs, training=training)) for model in (first, second)]
        np.testing.assert_array_equal(*outputs)


def test_parts_are_restored_alone():
    state = model_state(train(small_model(), 0, 3))
    model = small_model(seed=5)
    restore_model_state(model, state | {"data/position": np.array(3)}, parts=("model",))
    assert not model.optimizer.built
    restored = model_state(model)
    for name, array in state.items():
        if name.startswith("model/"):
            np.testing.assert_array_equal(restored[name], array)
    with pytest.raises(ValueError, match="parts='model'"):
        restore_model_state(model, state, parts="model")


def without(state, name):
    return {other: array for other, array in state.items() if other != name}


LAST = "model/model/second/bias"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state: without(state, LAST), f"{LAST} is missing"),
        (lambda state: state | {"model/new": np.zeros(1)}, "model/new is not in the model"),
        (lambda state: state | {LAST: np.zeros(3)}, rf"{LAST} has shape \(3,\), in the .*\(2,\)"),
        (lambda state: state | {LAST: np.zeros((1, 2))}, r"shape \(1, 2\)"),
        (lambda state: without(state, "optimizer/adam/iteration"), "adam/iteration is missing"),
        (lambda state: without(state, "metrics/loss/0"), "metrics/loss/0 is missing"),
        (lambda state: {}, "is missing;.* and 14 more. Make and compile"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, error):
    model = train(small_model(), 0, 1)
    before = model_state(model)
    other = {name: array + 1 for name, array in before.items()}
    with pytest.raises(ValueError, match=error):
        restore_model_state(model, change(other))
    assert_same_arrays(model_state(model), before)


def test_a_model_that_is_made_otherwise_is_refused():
    state = model_state(train(small_model(), 0, 1))
    with pytest.raises(ValueError, match=r"first/kernel has shape \(4, 8\), in the model \(4, 9\)"):
        restore_model_state(small_model(width=9), state, parts=("model",))
    with pytest.raises(ValueError, match="compile_metrics/0 is not in the model.*first batch"):
        restore_model_state(small_model(), state)


def test_temporary_checkpoint_goes_with_the_next_save_or_a_later_one(tmp_path):
    """A kill between writing the next one and deleting it must not let it stay."""
    folder = CheckpointFolder(tmp_path, keep_last=5)
    temporary = folder.save(8, {"a": np.zeros(2)}, {}, kinds=["stop"])
    kept = temporary.read_bytes()
    assert folder.last(5) == [temporary]
    folder.save(10, {"a": np.zeros(2)}, {})
    assert not temporary.exists()
    temporary.write_bytes(kept)  # as if the process had been killed just before
    folder.save(12, {"a": np.zeros(2)}, {})
    assert [path.name[-6:-4] for path in folder.last(5)] == ["12", "10"]
