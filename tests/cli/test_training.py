"""The commands `train` and `average`: what they print and write, and how they are stopped."""

import json
import random
import re
import shlex
import signal
import subprocess

import pytest
import yaml

from tests import processes
from tests.builders import assert_same_arrays
from tests.cli.small_run import CLI, RECIPE, broken, cli, succeed, write_lines
from tests.processes import Popen
from tests.runs import tiny_run
from tests.screen import Screen, run_on_terminal
from tests.waiting import wait_until

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def assert_plain(text):
    """Nothing but lines of text."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), text


@pytest.mark.long
def test_train_on_a_terminal_leaves_it_clean_when_ctrl_c_is_typed(folder, tmp_path):
    """It prints the warning and the command that resumes; the next command it names works."""
    english = (folder / "train.en").read_text("utf-8").splitlines()[:300]
    write_lines(folder / "little.tsv", (f"{line}\t{line}" for line in english))
    recipe = RECIPE | {
        "data": {"train": ["little.tsv"]},
        "vocabulary": {"size": 8000},
        "training": RECIPE["training"] | {"batch_tokens": 64},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    words = ["train", tmp_path / "mine.yaml", "--run", tmp_path / "a run"]
    status, written = run_on_terminal(CLI[-1], *words, answer=("━.* loss ", b"\x03"))
    assert status == 128 + signal.SIGINT, written
    screen = Screen(written)
    assert screen.cursor_is_shown
    assert "━" not in "".join(screen.rows), "the line is gone"
    assert not [row for row in screen.wrapped if row.startswith("epoch")]
    text = "".join(screen.rows)  # as the terminal wraps it
    assert re.search("Warning: The text yields only [0-9]+ tokens", text)
    assert "UserWarning" not in text and "Stopped by SIGINT" in text
    ran = succeed(*words)
    assert_plain(ran.stderr)
    start, first = re.search(
        r"Resuming.*batch (\d+)\.\nepoch \d/2 batch (\d+)/", ran.stderr
    ).groups()
    assert start == first, "the first update of this process"
    next_words = shlex.split(ran.stderr.splitlines()[-1].removeprefix("Next: "))
    assert next_words[1:3] == ["evaluate", str(tmp_path / "a run")] and "--source" in next_words
    next_words = ["small.tsv" if word == "FILE" else word for word in next_words[1:]]
    succeed(*next_words)
    refused = cli("plot", tmp_path / "a run")
    assert refused.exit_code == 2 and "give `--text`" in refused.stderr
    assert "--source" not in refused.stderr, "an option of another command"


def test_train_writes_recipe_report_history_and_logs(folder):
    run = folder / "run"
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == RECIPE["model"]
    report = json.loads((run / "report.json").read_text())
    assert report["epochs"] == 2 and report["updates"] > 0 and report["tokens_per_second"] > 0
    header, *rows = (run / "history.csv").read_text().splitlines()
    assert {"epoch", "loss", "val_loss", "learning_rate", "tokens_per_second"} <= set(
        header.split(",")
    )
    assert len(rows) == 2
    assert list((run / "logs").rglob("events.out.tfevents.*"))


@pytest.mark.long
def test_training_told_to_stop_ends_as_if_it_had_not_been(folder, tmp_path):
    """By SIGTERM, at any update, in a real process: the same bits at the end."""
    training = {"batch_tokens": 1024, "epochs": 1, "ema_momentum": 0.9}
    kept = {"checkpoint_updates": 3, "keep_last": 4, "average": 2}
    recipe = RECIPE | {"training": RECIPE["training"] | training | kept}
    (folder / "long.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped run"
    command = ["train", "long.yaml", "--data", ".", "--run"]
    changes = ["--set", "training.epochs=3"]  # the signal arrives long before the end
    after = random.SystemRandom().randrange(3, 18)  # or some updates later, on a busy machine
    print(f"SIGTERM after update {after}")
    process = Popen([*CLI, *command, stopped, *changes], stderr=subprocess.PIPE)
    is_saved = lambda: max(updates_saved(stopped), default=0) >= after  # noqa: E731
    wait_until(lambda: is_saved() or process.poll() is not None, 300)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, stderr
    assert_plain(stderr.decode())
    *_, what, how, again = stderr.decode().splitlines()
    assert what.startswith(f"Stopped by SIGTERM. The checkpoint is {stopped}/checkpoints/")
    assert "The same command resumes the run" in how
    assert shlex.split(again) == ["keras-transformer", *command, str(stopped), *changes]
    for run in (stopped, whole):
        finished = processes.run([*CLI, *command, run, *changes], capture_output=True)
        assert finished.returncode == 0, finished.stderr
    assert yaml.safe_load((stopped / "config.yaml").read_text())["training"]["epochs"] == 3
    assert tiny_run.losses(stopped) == tiny_run.losses(whole)
    expected, resumed = tiny_run.checkpoints(whole), tiny_run.checkpoints(stopped)
    assert list(expected) == list(resumed)
    for update, (arrays, _) in expected.items():
        assert_same_arrays(resumed[update][0], arrays)
    models = [tiny_run.saved_weights(run / "model.keras") for run in (stopped, whole)]
    tiny_run.assert_equal(*models)


def updates_saved(run):
    return [int(path.stem[-8:]) for path in (run / "checkpoints").glob("checkpoint-*.npz")]


@pytest.mark.long
def test_training_that_diverges_ends_in_one_clear_line_and_exit_code_1(folder, own_run):
    """`--no-resume` starts over, also with another recipe."""
    words = ("train", broken(folder, training={"learning_rate": 1e30}), "--run", own_run)
    refused = cli(*words)
    assert refused.exit_code == 2 and "--no-resume" in refused.stderr
    ran = cli(*words, "--no-resume")
    assert ran.exit_code == 1
    error = ran.stderr.splitlines()[-1]
    assert re.match(
        r"Error: loss nan and gradient_norm \S+ at update 2 \(epoch 1, batch 2\)", error
    )
    assert "There is no checkpoint." in error and "lower the learning rate" in error
    assert "Traceback" not in ran.stderr and not (own_run / "model.keras").exists()


def test_average_writes_a_model_that_translates(folder):
    ran = succeed("average", "run", "--last", 2)
    assert ran.stdout.strip() == "run/averaged.keras"
    assert [line.split("/")[-1] for line in ran.stderr.splitlines()] == [
        f"checkpoint-{update:08d}.npz" for update in sorted(tiny_run.checkpoints("run"))[:-3:-1]
    ]
    ran = cli("translate", "run", "--model", "run/averaged.keras", stdin=b"one\ntwo\n")
    assert ran.exit_code == 0 and ran.stdout.count("\n") == 2
