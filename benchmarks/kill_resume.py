"""Kills training runs with SIGKILL, resumes them to their end, and compares their final states.

    python benchmarks/kill_resume.py --runs 20

The first run is killed at each of `POINTS`, one after the other. The others are killed once or
several times, at a random moment or during a save. The last checkpoint of each must be
bit-identical to that of a run that was never killed, its history must agree, and every file in its
folder must be readable. The run that is never killed has its tokens in memory, the others have a
token store.
"""

import argparse
import csv
import functools
import os
import pathlib
import pkgutil
import random
import signal
import subprocess
import sys
import tempfile
import time

import yaml

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_transformer.runs import CheckpointFolder, read_checkpoint

RECIPE = {
    "data": {
        "train": {"number_names": "train", "size": 600},
        "validation": {"number_names": "held_out", "size": 50},
    },
    "vocabulary": {"size": 300},
    "model": {
        "preset": "tiny",
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 64,
        "dropout": 0.1,
    },
    "training": {
        **{"batch_tokens": 512, "epochs": 4, "warmup_steps": 50, "checkpoint_updates": 3},
        # Everything that draws random numbers, and what makes an update of a gradient.
        **{"subword_regularization": 0.1, "word_dropout": 0.1, "r_drop": 1.0},
        **{"weight_decay": 0.01, "clip_norm": 1.0},
    },
}
UNKILLED = "never_killed"
IN_A_SAVE = "in the write of a checkpoint"
# Where a run kills itself, in this order: the function whose call does it, a text in the arguments
# of the call, and the number of the call.
POINTS = {
    IN_A_SAVE: ("numpy.lib.format.write_array", "", 20),
    "in an epoch": ("keras_transformer.runs.RunKeeper.on_train_batch_end", "", 5),
    "in a resume": ("keras_transformer.runs.keeper.restore_model_state", "", 1),
    "before a checkpoint is renamed": ("os.replace", "checkpoint-", 1),
    "after it is renamed": ("keras_transformer.atomic_file._flush_folder", "checkpoints", 1),
    "in validation": ("keras_transformer.runs.RunKeeper.on_test_batch_end", "", 1),
    "before the best model is saved": ("keras_transformer.training.callbacks.save_model", "", 1),
    # The first call is that of the resume.
    "before the history is written": ("keras_transformer.runs.RunFolder.write_history", "", 2),
}
# Columns of the history that depend on the clock, or on when the run was resumed.
NOT_COMPARED = ("tokens_per_second", "gradient_norm")


def kill_at(point):
    """Makes this process kill itself at one of `POINTS`."""
    path, argument, calls = POINTS[point]
    owner, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    function = getattr(owner, name)

    @functools.wraps(function)
    def killing(*args, **kwargs):
        nonlocal calls
        calls -= argument in str(args)
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, killing)


def start(folder, run, point=""):
    """Starts a training that kills itself at a point, if one is given."""
    command = [sys.executable, __file__, "train", point]
    command += [str(folder / f"{'memory' if run == UNKILLED else 'store'}.yaml"), str(folder / run)]
    log = open(folder / f"{run}.log", "ab")  # noqa: SIM115 (the process inherits it)
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def kill_after(process, seconds):
    """Kills a process after some time; returns whether it was still running."""
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def kill_in_a_save(process, checkpoints):
    """Kills a process while it writes a checkpoint.

    Returns:
        bool, whether it left a partly written file; `None` if the process ended first.
    """
    for stale in checkpoints.glob(".partial.checkpoint-*"):  # left by an earlier kill
        stale.unlink()
    while process.poll() is None:
        if any(checkpoints.glob(".partial.checkpoint-*")):
            process.kill()
            process.wait()
            return any(checkpoints.glob(".partial.checkpoint-*"))
    return None


def finish(folder, run):
    if start(folder, run).wait() != 0:
        sys.exit(f"{run} did not finish:\n{(folder / f'{run}.log').read_text()}")


def last_state(folder, run):
    path = CheckpointFolder(folder / run / "checkpoints").last(1)[0]
    arrays, metadata = read_checkpoint(path)
    history = [
        {name: value for name, value in row.items() if name not in NOT_COMPARED}
        for row in metadata["history"]
    ]
    return path.name, {name: array.tobytes() for name, array in arrays.items()}, history


def check_readable(run):
    """Raises an error if a file of a run cannot be read, or a temporary file is left."""
    import keras_transformer

    for path in (run / "checkpoints").glob("checkpoint-*.npz"):
        read_checkpoint(path)
    keras_transformer.load_run(run)(["twenty-one"])
    with open(run / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    if [int(row["epoch"]) for row in rows] != list(range(RECIPE["training"]["epochs"])):
        raise ValueError(f"{run}/history.csv: {rows}")
    left = [path for path in run.rglob("*") if "partial" in path.name or "corrupt" in path.name]
    if left:
        raise ValueError(f"left behind: {left}")


def train(point, recipe, run):
    """The process that `start` starts."""
    from keras_transformer.cli import app

    if point:
        kill_at(point)
    app(["train", recipe, "--run", run])


def kill_at_every_point(folder, run):
    """Returns the points at which the run was killed."""
    for point in POINTS:
        if start(folder, run, point).wait() != -signal.SIGKILL:
            sys.exit(f"not killed {point}:\n{(folder / f'{run}.log').read_text()}")
    return list(POINTS)


def kill_at_random(folder, run, rng, seconds):
    """Returns the moments at which the run was killed."""
    kills = []
    for _ in range(rng.randint(1, 2)):
        moment = rng.uniform(0.1, 1.0) * seconds
        if kill_after(start(folder, run), moment):
            kills.append(f"after {moment:.1f} s")
    return kills


def kill_in_the_next_save(folder, run):
    kills = []
    while (hit := kill_in_a_save(start(folder, run), folder / run / "checkpoints")) is False:
        kills.append("just after a save")
    return kills + [IN_A_SAVE] * bool(hit)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="killed at moments not chosen")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kill_resume_"))
    (folder / "memory.yaml").write_text(yaml.safe_dump(RECIPE))
    RECIPE["data"]["store"] = str(folder / "tokens")
    (folder / "store.yaml").write_text(yaml.safe_dump(RECIPE))
    began = time.perf_counter()
    finish(folder, UNKILLED)
    seconds = time.perf_counter() - began
    truth = last_state(folder, UNKILLED)
    print(f"never killed: {seconds:.0f} s, {truth[0]}", flush=True)
    same = in_saves = 0
    for number in range(arguments.runs + 1):
        run = f"run_{number}"
        if number == 0:
            kills = kill_at_every_point(folder, run)
        elif number % 3 == 1:  # random moments rarely fall into a save
            kills = kill_in_the_next_save(folder, run)
        else:
            kills = kill_at_random(folder, run, rng, seconds)
        finish(folder, run)
        check_readable(folder / run)
        in_saves += kills.count(IN_A_SAVE)
        is_same = last_state(folder, run) == truth
        same += is_same
        print(f"{run}: killed {', '.join(kills) or 'never'}: {'same' if is_same else 'DIFFERS'}")
        sys.stdout.flush()
    print(f"{same} of {arguments.runs + 1} runs are bit-identical to the one that was never killed")
    print(f"{in_saves} kills were in the middle of a save")
    sys.exit(same <= arguments.runs or in_saves == 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(*sys.argv[2:])
    else:
        main()
