"""Two worker processes train the run of one worker; a dead worker stops the other."""

import collections
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.runs import workers
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from tests import processes
from tests.builders import ROOT
from tests.cli.small_run import cli
from tests.runs import tiny_run
from tests.waiting import wait_until

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# A dead unit of relu has no gradient but rounding, which Adam scales to a whole step.
RECIPE = tiny_run.recipe(dropout=0.0, learning_rate=0.003, warmup_steps=20, checkpoint_updates=5)
RECIPE.model["activation"] = "gelu"
SECONDS_TO_NOTICE = 90


def command(folder, run, recipe):
    words = ["train", str(folder / recipe), "--run", str(folder / run)]
    return [sys.executable, "-m", "tests.runs.recording_worker", str(folder / run), *words]


def start(folder, run, **files):
    """Starts two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "subprocess", processes)
        return workers.start_workers(command(folder, run, "workers.yaml"), 2, cwd=ROOT, **files)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A folder with the recipe for one worker, and for several, which share a token store."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "single.yaml").write_text(RECIPE.to_yaml())
    training = replace(RECIPE.training, distribution="multi_worker")
    data = replace(RECIPE.data, store=str(folder / "tokens"))
    several = replace(RECIPE, training=training, data=data)
    (folder / "workers.yaml").write_text(several.to_yaml())
    return folder


@pytest.fixture(scope="module")
def folder(recipes):
    """The recipes, and the run that one worker trains."""
    folder = recipes
    processes.run(command(folder, "single", "single.yaml"), cwd=ROOT, check=True)
    return folder


def weights(folder, run):
    path, arrays, _ = CheckpointFolder(folder / run / "checkpoints").newest()
    # The gradient of a key bias is rounding noise.
    kept = {n: a for n, a in arrays.items() if n.startswith("model/") and "key/bias" not in n}
    return path.name, kept


def assert_same_run(folder, run):
    reports = [json.loads((folder / r / "report.json").read_text()) for r in (run, "single")]
    for report in reports:
        for name in ("seconds", "tokens_per_second", "dropped", "notes"):
            del report[name]
        assert report.pop("backend") == "tensorflow"
        assert report.pop("overlaps") == {"validation": {"sources": 0, "pairs": 0}}
    assert reports[0] == pytest.approx(reports[1], rel=1e-5)
    (name, found), (expected_name, expected) = (weights(folder, r) for r in (run, "single"))
    assert name == expected_name
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, atol=1e-4)


def seen(folder, run, number):
    """For each update, the pairs that all workers together received."""
    lines = [(folder / f"{run}.{worker}").read_text().splitlines() for worker in range(number)]
    for parts in zip(*lines, strict=True):
        pairs = [tuple(map(tuple, pair)) for part in parts for pair in json.loads(part)]
        yield collections.Counter(pairs)


@pytest.mark.long
def test_two_workers_train_the_run_of_one_and_see_each_pair_once_an_epoch(folder):
    assert [worker.wait(timeout=400) for worker in start(folder, "two")] == [0, 0]
    assert_same_run(folder, "two")
    updates = list(seen(folder, "two", 2))
    assert updates == list(seen(folder, "single", 1)), "the same pairs in every update"
    epochs = RECIPE.training.epochs
    length = len(updates) // epochs
    tokenizer = Tokenizer.load(folder / "two" / "tokenizer.json")
    sides = zip(*RECIPE.data.pairs("train", "."), strict=True)
    ids = (tokenizer.encode(list(lines), add_end=True) for lines in sides)
    corpus = collections.Counter(tuple(map(tuple, pair)) for pair in zip(*ids, strict=True))
    for epoch in range(epochs):
        pairs = sum(updates[epoch * length : (epoch + 1) * length], collections.Counter())
        assert pairs == corpus, "each exactly once"
    assert all((folder / f"two.{worker}").stat().st_size for worker in (0, 1))


@pytest.mark.long
def test_dead_worker_stops_the_other_and_a_restart_resumes(folder):
    """First the second worker dies, and after the restart the first one."""
    errors = folder / "killed.stderr"
    for victim, step in ((1, 5), (0, 10), (None, None)):
        with open(errors, "wb") as file:
            started = start(folder, "killed", stderr=file)
        if victim is None:
            break
        saved = folder / "killed" / "checkpoints" / f"checkpoint-{step:08d}.npz"
        wait_until(saved.exists, 300)
        started[victim].kill()
        started[victim].wait()
        assert started[1 - victim].wait(timeout=SECONDS_TO_NOTICE) == 2
        told = errors.read_text()
        assert "worker was lost" in told and "start all workers again" in told
        assert "Traceback" not in told
    assert [worker.wait(timeout=400) for worker in started] == [0, 0], errors.read_text()
    assert "Resuming after" in errors.read_text()
    assert_same_run(folder, "killed")


@pytest.mark.parametrize("config", ["", "{}"])
def test_invalid_tf_config_is_an_error_of_one_line(recipes, config, monkeypatch):
    if config:
        monkeypatch.setenv("TF_CONFIG", config)
    else:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    ran = cli("train", recipes / "workers.yaml", "--run", recipes / "never")
    assert ran.exit_code == 2
    assert "TF_CONFIG" in ran.stderr and len(ran.stderr.strip().splitlines()) == 1
