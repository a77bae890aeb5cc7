"""Checkpoint files and folders: damage, killed processes, full disks, averages."""

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

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.builders import ROOT, assert_same_arrays, normal, run_fresh
from tests.examples import examples
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


# One file.


def test_checkpoint_round_trip(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, ARRAYS, METADATA)
    arrays, metadata = read_checkpoint(path)
    assert_same_arrays(arrays, ARRAYS)
    assert metadata == METADATA == read_metadata(path)
    assert names(tmp_path) == [path.name]


def test_numpy_opens_a_checkpoint_and_the_metadata_comes_first(tmp_path):
    write_checkpoint(tmp_path / "a.npz", ARRAYS, METADATA)
    with np.load(tmp_path / "a.npz") as file:
        assert file.zip.namelist() == ["metadata.json", *(f"{name}.npy" for name in ARRAYS)]
        assert {member.compress_type for member in file.zip.infolist()} == {zipfile.ZIP_STORED}
        for name in ("model/float32", "int64", "fortran", "scalar"):
            np.testing.assert_array_equal(file[name], ARRAYS[name])


def test_empty_checkpoint_round_trip(tmp_path):
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


def test_flipped_bit_is_detected_anywhere(small):
    whole = small.read_bytes()
    found = 0
    for position, bit in itertools.product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        small.write_bytes(damaged)
        found += assert_found_out_or_harmless(small)
    payload = sum(array.nbytes for array in SMALL.values())
    assert found > 8 * payload  # the payload too, not only headers and JSON


def test_flipped_bit_of_an_array_fails_the_checksum(small):
    whole = small.read_bytes()
    for array in SMALL.values():
        start = whole.index(array.tobytes(), whole.index(b"\x93NUMPY"))
        for position, bit in itertools.product(range(start, start + array.nbytes), range(8)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            small.write_bytes(damaged)
            with pytest.raises(CorruptCheckpointError, match="CRC"):
                read_checkpoint(small)


def test_damaged_shape_is_detected_by_the_checksum(tmp_path):
    """Otherwise a flipped bit could allocate all memory."""
    path = tmp_path / "a.npz"
    write_checkpoint(path, {"a": np.zeros(10**5)}, {})  # larger than the read-ahead buffer
    huge = b"(9999999999999,), }"
    damaged = path.read_bytes().replace(b"(100000,), }".ljust(len(huge)), huge)
    assert huge in damaged and len(damaged) == path.stat().st_size
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpointError, match="CRC"):
        read_checkpoint(path)


def test_every_truncation_is_detected(small):
    whole = small.read_bytes()
    for length in range(len(whole)):
        small.write_bytes(whole[:length])
        for read in (read_checkpoint, read_metadata):
            with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
                read(small)


@examples(short=60, long=1000)
@given(st.binary(max_size=300), st.data())
def test_overwritten_bytes_are_detected(noise, data):
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
def test_zip_file_that_is_no_checkpoint_is_detected(small, change):
    with zipfile.ZipFile(small) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(small, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)
    with pytest.raises(CorruptCheckpointError, match="checkpoint-00000001.npz"):
        read_checkpoint(small)


# A small file cannot allocate much memory, whatever its headers say.


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


def test_compressed_file_is_rejected_before_it_is_inflated(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {"a": np.zeros(2**22)}, {"epoch": 3})
    rewritten(path, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**16
    assert_refused_within(2**20, path, "compressed")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", " " * 2**25, zipfile.ZIP_BZIP2)
    assert_refused_within(2**20, path, "compressed")


def test_overlapping_members_are_rejected(tmp_path):
    """A directory of 500 members that all point to the same bytes of the file."""
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {f"{n:03d}": np.zeros(2**12 if n == 0 else 0) for n in range(500)}, {})
    with zipfile.ZipFile(path, "a") as archive:
        first, *others = archive.infolist()[1:]
        for member in others:
            member.header_offset = first.header_offset
            member.file_size = member.compress_size = first.file_size
            member.CRC = first.CRC
        archive._didModify = True  # writes the directory again
    assert_refused_within(2**22, path, "smaller than its listed members|array|verlap")


def test_false_shape_with_a_valid_checksum_is_rejected(tmp_path):
    path = tmp_path / "checkpoint-00000001.npz"
    write_checkpoint(path, {"a": np.zeros(10)}, {})
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    )
    assert_refused_within(2**20, rewritten(path, **{"a.npy": content.getvalue()}), "array of shape")


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


# Kills and full disks.

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
    """Kills the writer at a random moment; returns the last step that it reported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return int((first + process.stdout.read()).split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.long)])
def test_killed_process_leaves_complete_checkpoints(tmp_path, kills):
    rng = random.Random(0)
    hits, done = 0, 0
    while hits < kills:  # kills during a write
        before, done = done, kill_a_writer(tmp_path, rng.uniform(0, 0.2))
        assert done > before
        hits += any(".partial" in name for name in os.listdir(tmp_path))
        steps = []
        for path in tmp_path.glob("checkpoint-*"):
            arrays, metadata = read_checkpoint(path)
            steps.append(metadata["step"])
            assert path.name == f"checkpoint-{steps[-1]:08d}.npz"
            for i in range(8):
                assert arrays[f"model/{i}"].shape == (2**18,)
                assert (arrays[f"model/{i}"] == 10 * steps[-1] + i).all()
        assert max(steps) in (done, done + 1)  # it may be killed before it reports the step
        assert len(steps) in (min(max(steps), 3), 4)  # or before it deletes the oldest
        assert CheckpointFolder(tmp_path).newest(print_fn=pytest.fail)[2]["step"] == max(steps)
    CheckpointFolder(tmp_path).save(done + 5, {}, {})
    assert not [name for name in names(tmp_path) if ".partial" in name]


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


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows cannot limit the size of files")
def test_full_disk_is_reported_and_older_checkpoints_are_intact(tmp_path):
    printed = run_fresh(FULL_DISK.format(folder=str(tmp_path)), KERAS_BACKEND="numpy")
    assert "['checkpoint-00000002.npz']" in printed
    assert f"{tmp_path / 'checkpoint-00000002.npz'} could not be" in printed
    for part in ("File too large", "Older checkpoints are intact", "same command resumes"):
        assert part in printed


# The folder.


def save_steps(folder, steps):
    return {step: folder.save(step, {"a": np.array(step)}, {"epoch": step}) for step in steps}


def damage(path):
    """Flips a bit of an array, which only a read of the whole file detects."""
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
def test_newest_falls_back_and_prints_why(tmp_path, harm):
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
        assert line.startswith(f"{paths[step]} is not a complete checkpoint: ")
        assert f"checkpoint-0000000{step}.npz.corrupt" in line and paths[2].name in line
    assert names(tmp_path)[2:] == [f"{paths[step].name}.corrupt" for step in (3, 4)]
    assert folder.newest(print_fn=pytest.fail)[0] == paths[2]  # nothing more to rename
    assert folder.last(9) == [paths[2], paths[1]]


def test_newest_raises_if_no_checkpoint_is_readable(tmp_path):
    folder = CheckpointFolder(tmp_path)
    paths = save_steps(folder, [1, 2])
    damage(paths[1])
    cut(paths[2])
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError, match="delete them to start from the") as error:
            folder.newest(print_fn=pytest.fail)
        assert all(str(path) in str(error.value) for path in paths.values())
        assert names(tmp_path) == [path.name for path in paths.values()]


def test_unreadable_file_does_not_count_as_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=0)
    paths = save_steps(folder, [1, 2])
    cut(paths[2])
    save_steps(folder, [3])
    assert folder.last(5) == [tmp_path / "checkpoint-00000003.npz", paths[1]]
    assert paths[2].exists()  # not deleted


def test_saving_a_step_again_replaces_it(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=2)
    save_steps(folder, [1, 2])
    path = folder.save(2, {"b": np.zeros(2)}, {}, score=0.5)
    assert list(folder.newest()[1]) == ["b"]
    assert folder.best(2) == [path]
    assert len(names(tmp_path)) == 2


def test_other_files_are_left_alone_and_partial_ones_deleted(tmp_path):
    others = ["checkpoint-1.npz", "checkpoint-00000001.npz.corrupt", "model.keras", "a.partial"]
    partial = [".partial.checkpoint-00000001.npz", ".checkpoint-00000001.npz.partial"]
    for name in [*others, *partial]:
        (tmp_path / name).touch()
    save_steps(CheckpointFolder(tmp_path, keep_last=1, keep_best=0), [1, 2])
    assert names(tmp_path) == sorted([*others, "checkpoint-00000002.npz"])


def kept_steps(scores, keep_last, keep_best, mode):
    """The rule of the docstring in plain Python, over all checkpoints ever saved."""
    steps = range(len(scores))
    rated = [step for step in steps if scores[step] is not None and not math.isnan(scores[step])]
    best = []
    for _ in range(min(keep_best, len(rated))):
        top = (min if mode == "min" else max)(scores[step] for step in rated)
        best.append(next(step for step in rated if scores[step] == top))  # the earliest
        rated.remove(best[-1])
    return {*list(steps)[-keep_last:], *best}, best


SCORES = st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | st.integers(-2, 2)


@examples(short=20, long=200)
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
def test_folder_rejects_invalid_arguments(tmp_path, arguments):
    with pytest.raises(ValueError, match="Received: keep_last="):
        CheckpointFolder(tmp_path, **arguments)


def test_negative_step_is_rejected(tmp_path):
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
    values = [2.0**24, 1.0, 1.0]  # float32 would lose the ones
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
def test_checkpoints_of_different_models_are_not_averaged(tmp_path, other, error):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"model/a": np.zeros(2), "model/b": np.zeros(3)}, {})
    folder.save(2, other, {})
    with pytest.raises(ValueError, match=error):
        average_checkpoints(folder.last(2))


def test_average_of_nothing_is_rejected(tmp_path):
    path = CheckpointFolder(tmp_path).save(1, {"model/a": np.zeros(2)}, {})
    for paths, prefix in [([], "model/"), ([path], "weights/")]:
        with pytest.raises(ValueError, match="Received: paths="):
            average_checkpoints(paths, prefix)


def test_temporary_checkpoint_is_deleted_by_a_later_save(tmp_path):
    """Also if a kill between the next write and the deletion leaves it in the folder."""
    folder = CheckpointFolder(tmp_path, keep_last=5)
    temporary = folder.save(8, {"a": np.zeros(2)}, {}, kinds=["stop"])
    kept = temporary.read_bytes()
    assert folder.last(5) == [temporary]
    folder.save(10, {"a": np.zeros(2)}, {})
    assert not temporary.exists()
    temporary.write_bytes(kept)  # as after a kill before the deletion
    folder.save(12, {"a": np.zeros(2)}, {})
    assert [path.name[-6:-4] for path in folder.last(5)] == ["12", "10"]
