"""Averages: of consecutive epochs, of equally spaced updates, and of moving averages."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.runs.averaging import average_checkpoints, average_run, last_to_average
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.folder import RunFolder
from tests.builders import assert_same_arrays, normal
from tests.examples import examples
from tests.runs import tiny_run


def consecutive(steps, distance):
    """The first of some steps, up to the first gap."""
    return [n for n in steps if {*range(steps[0], n, -distance)} <= {*steps}] if steps else []


@examples(short=8, long=100)
@given(
    st.integers(2, 5),
    st.integers(2, 5),
    st.sets(st.integers(1, 20)),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_average_takes_the_same_epochs_or_updates_wherever_a_run_is_stopped(
    tmp_path_factory, epoch, every, stops, best, keep_last, number
):
    """Computes in plain Python which checkpoints are kept and which are averaged."""
    folder = CheckpointFolder(tmp_path_factory.mktemp("folder"), keep_last, keep_best=1)
    steps = range(1, 21)
    for step in steps:
        kinds = ["epoch"] * (step % epoch == 0) + ["updates"] * (step % every == 0)
        if kinds or step in stops:
            score = -1.0 if step == best else 0.0
            score = None if step % epoch else score
            metadata = {"epoch": step // epoch, "every": every}
            folder.save(step, {}, metadata, score, kinds or ["stop"])
    of = {n: [step for step in reversed(steps) if step % n == 0] for n in (epoch, every)}
    top = best if best in of[epoch] else epoch
    kept = {*of[epoch][:keep_last], *of[every][:keep_last], top}
    epochs, updates = (
        consecutive([n for n in of[distance] if n in kept], distance)[:number]
        for distance in (epoch, every)
    )
    expected = updates if len(epochs) < number == len(updates) else epochs
    assert [int(path.stem[-8:]) for path in last_to_average(folder, number)] == expected
    besides = {int(path.stem[-8:]) for path in folder.last(99)} - kept
    last_save = max(n for n in steps if n in stops or not n % epoch or not n % every)
    assert besides <= {last_save}, "the checkpoint of a stop is kept until the next save only"


def test_unequally_spaced_updates_are_not_averaged(tmp_path):
    """`checkpoint_updates` may change when a run resumes."""
    folder = CheckpointFolder(tmp_path)
    for step, every in ((200, 200), (400, 200), (500, 100), (600, 100)):
        folder.save(step, {}, {"every": every}, kinds=["updates"])
    folder.save(450, {}, {"epoch": 1}, kinds=["epoch"])
    names = [path.name[-7:-4] for path in last_to_average(folder, 3)]
    assert names == ["600", "500", "400"]
    assert [path.name[-7:-4] for path in last_to_average(folder, 4)] == ["450"]


def test_best_epochs_whose_checkpoints_are_deleted_are_no_average_of_others(tmp_path):
    """The folder keeps the best epoch, which is the second one, and the last two."""
    run = RunFolder(tmp_path)
    run.recipe_file.write_text(tiny_run.recipe().to_yaml(), "utf-8")
    run.model_file.touch()
    folder = CheckpointFolder(run.checkpoints, keep_last=2, keep_best=1)
    history = [{"epoch": n, "val_loss": loss} for n, loss in enumerate([5.0, 1.0, 2.0, 9.0, 8.0])]
    for row in history:
        epoch = row["epoch"] + 1
        folder.save(10 * epoch, {}, {"epoch": epoch}, row["val_loss"], ["epoch"])
    run.write_history(history)
    with pytest.raises(ValueError, match="of its 2 best epochs: 3. .*larger `keep_best`"):
        average_run(tmp_path, tmp_path / "mean.keras", best=2)


def test_average_is_the_mean_of_floats_and_the_newest_of_others(tmp_path):
    """Computed in float64: a sum in float32 would round other values."""
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


A, B, INT8 = np.zeros(2), np.zeros(3), np.zeros(2, "int8")
REFUSED = {
    "missing": ({"a": A, "b": B}, {"a": A}, r"b is float64 \[3\] in .*1.npz, and missing in .*2"),
    "new": ({"a": A}, {"a": A, "c": B}, "c is missing in .*1.npz, and float64"),
    "shape": ({"b": B}, {"b": B[None]}, r"b is float64 \[3\] in .*, and float64 \[1, 3\] in"),
    # The mean of int8 without its scales, or of two factors, is not the mean of the weights.
    "int8": ({"a": INT8}, {"a": INT8}, "int8 or LoRA.*before `quantize`"),
    "LoRA": ({"q/lora_kernel_a": A}, {"q/lora_kernel_a": A}, "int8 or LoRA.*: model/q/lora"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_checkpoints_without_a_mean_are_refused(tmp_path, case):
    *saved, error = REFUSED[case]
    folder = CheckpointFolder(tmp_path)
    for step, arrays in enumerate(saved, start=1):
        folder.save(step, {f"model/{name}": array for name, array in arrays.items()}, {})
    with pytest.raises(ValueError, match=error):
        average_checkpoints(folder.last(2))
