"""Averages: of consecutive epochs, of equally spaced updates, and of moving averages."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.models.transformer import load_model
from keras_transformer.runs.averaging import average_checkpoints, average_run, last_to_average
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.trainer import Trainer
from tests.builders import assert_same_arrays, normal
from tests.examples import examples
from tests.runs import tiny_run
from tests.session import made_once

pytestmark = pytest.mark.tensorflow_only


def consecutive(steps, distance):
    """The first of some steps, up to the first gap."""
    return [n for n in steps if {*range(steps[0], n, -distance)} <= {*steps}] if steps else []


@examples(short=15, long=100)
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


# One run with a moving average of the weights.

MOMENTUM = 0.75
PER_EPOCH = 10


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recipe = tiny_run.recipe(ema_momentum=MOMENTUM, average=2)

    def train(run):
        Trainer(recipe, ".", run, print_fn=lambda line: None).train()

    run = made_once(tmp_path_factory, "averaging", train)
    assert list(tiny_run.checkpoints(run)) == list(range(1, 2 * PER_EPOCH + 1))
    return run


def moving_averages(run):
    """{update: the moving averages}, computed with NumPy from the weights after every update."""
    model = load_model(RunFolder(run).model_file)
    averages = {}
    for update, (arrays, _) in tiny_run.checkpoints(run).items():
        weights = [w.astype("float64") for w in tiny_run.weights(arrays, model)]
        before = averages.get(update - 1, weights)
        pairs = zip(before, weights, strict=True)
        averages[update] = [MOMENTUM * old + (1 - MOMENTUM) * new for old, new in pairs]
    return averages


def assert_close(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "updates"),
    [
        ({"last": 2}, [20, 10]),
        ({"last": 4}, [20, 19, 18, 17]),
        ({"best": 1}, None),
    ],
    ids=str,
)
def test_average_run_averages_the_moving_averages(run, tmp_path, asked, updates):
    if updates is None:
        rows = tiny_run.history(run)
        best = min(range(2), key=lambda epoch: rows[epoch]["val_loss"])
        updates = [PER_EPOCH * (best + 1)]
    said = []
    paths = average_run(run, tmp_path / "mean.keras", **asked, print_fn=said.append)
    assert len(said) == (len(paths) == 4), "that they are no epochs"
    assert [int(path.stem[-8:]) for path in paths] == updates
    averages = moving_averages(run)
    means = [np.mean(w, axis=0) for w in zip(*(averages[n] for n in updates), strict=True)]
    assert_close(tiny_run.saved_weights(tmp_path / "mean.keras"), means)


@pytest.mark.slow
def test_recipe_with_average_averages_the_moving_averages_of_epochs(run):
    averages = moving_averages(run)
    means = [np.mean(w, axis=0) for w in zip(averages[10], averages[20], strict=True)]
    assert_close(tiny_run.saved_weights(run / "model.keras"), means)


@pytest.mark.slow
def test_average_belongs_to_its_run_by_any_spelling_of_its_path(run):
    """`--no-resume` deletes what belongs to the run."""
    folder = RunFolder(run)
    average_run(run, folder.checkpoints / ".." / "averaged.keras", last=2)
    assert "averaged.keras" in folder.owned_files()


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


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("model/query/kernel", np.zeros((2, 2), "int8")),
        ("model/query/lora_kernel_a", np.zeros((2, 2), "float32")),
    ],
)
def test_weights_whose_arrays_have_no_mean_are_refused(tmp_path, name, array):
    """The mean of int8 without its scales, or of two factors, is not the mean of the weights."""
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        folder.save(step, {name: array + step, "model/bias": np.zeros(2)}, {})
    with pytest.raises(ValueError, match=f"int8 or LoRA.*Received: {name}.*before `quantize`"):
        average_checkpoints(folder.last(2))


def test_average_of_nothing_is_rejected(tmp_path):
    path = CheckpointFolder(tmp_path).save(1, {"model/a": np.zeros(2)}, {})
    for paths, prefix in [([], "model/"), ([path], "weights/")]:
        with pytest.raises(ValueError, match="Received: paths="):
            average_checkpoints(paths, prefix)
