"""Checkpoint folders: killed processes, full disks, which checkpoints are kept and found."""

import errno
import math
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.runs.checkpoint_file import (
    CorruptCheckpointError,
    read_checkpoint,
)
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from tests.builders import assert_same_arrays, normal
from tests.examples import examples
from tests.kills import run_killed
from tests.runs.test_checkpoint_file import names

WRITER = """
import itertools, sys
import numpy as np
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
folder = CheckpointFolder(sys.argv[1], keep_last=3)
found = folder.newest()
for step in itertools.count(found[2]["step"] + 1 if found else 1):
    arrays = {f"model/{i}": np.full(2**12, 10 * step + i) for i in range(8)}
    folder.save(step, arrays, {"step": step})
"""
# A writer goes on where the one before was killed: before this call of a function. The steps in the
# folder then.
KILLS = [
    ("os.replace", 5, [2, 3, 4]),  # before a checkpoint gets its name
    ("keras_transformer.atomic_file._flush_folder", 2, [3, 4, 5, 6]),  # before the oldest goes
    ("numpy.lib.format.write_array", 8 + 5, [5, 6, 7]),  # in the write
]


def test_killed_process_leaves_complete_checkpoints(tmp_path):
    for function, call, expected in KILLS:
        run_killed(WRITER, [tmp_path], function, call)
        steps = []
        for path in sorted(tmp_path.glob("checkpoint-*")):
            arrays, metadata = read_checkpoint(path)
            steps.append(metadata["step"])
            assert path.name == f"checkpoint-{steps[-1]:08d}.npz"
            for i in range(8):
                assert arrays[f"model/{i}"].shape == (2**12,)
                assert (arrays[f"model/{i}"] == 10 * steps[-1] + i).all()
        assert steps == expected
        assert CheckpointFolder(tmp_path).newest(print_fn=pytest.fail)[2]["step"] == steps[-1]
    assert [name for name in names(tmp_path) if ".partial" in name]
    CheckpointFolder(tmp_path).save(20, {}, {})
    assert not [name for name in names(tmp_path) if ".partial" in name]


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot limit the size of files")
def test_full_disk_is_reported_and_older_checkpoints_are_intact(tmp_path):
    import resource

    folder = CheckpointFolder(tmp_path, keep_last=1)
    arrays = {f"model/{i}": normal(6000, seed=i) for i in range(3)}
    older = folder.save(1, arrays, {"epoch": 1})
    size = older.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (*range(0, size, 1999), *range(size - 300, size, 7), size - 1):
        with pytest.raises(OSError) as caught:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
            try:
                folder.save(2, arrays, {"epoch": 2})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG and caught.value.filename is None
        assert names(tmp_path) == [older.name]
        found, metadata = read_checkpoint(older)
        assert_same_arrays(found, arrays)
        assert metadata["epoch"] == 1
    for part in (f"{folder.path_of(2)} could not be", "File too large"):
        assert part in caught.value.strerror
    assert [folder.save(2, arrays, {"epoch": 2}).name] == names(tmp_path)


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
    for name in [*others, ".partial.checkpoint-00000001.npz"]:
        (tmp_path / name).touch()
    save_steps(CheckpointFolder(tmp_path, keep_last=1, keep_best=0), [1, 2])
    assert names(tmp_path) == sorted([*others, "checkpoint-00000002.npz"])


def kept_steps(scores, keep_last, keep_best, mode):
    """The rule of the docstring in plain Python, over all checkpoints ever saved."""
    steps = range(len(scores))
    rated = [step for step in steps if scores[step] is not None and math.isfinite(scores[step])]
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
def test_invalid_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match="Received: keep_last="):
        CheckpointFolder(tmp_path, **arguments)


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
