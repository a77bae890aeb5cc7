"""Kills training runs at random moments until they finish, and compares their final states.

    python benchmarks/kill_resume.py --runs 20

Each run is killed with SIGKILL, once or several times, at a random moment or during a save, and
started again until it is finished. Its last checkpoint must be bit-identical to that of a run that
was never killed, its history must agree, and every file in its folder must be readable.
"""

import argparse
import csv
import os
import pathlib
import random
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
    "training": {"batch_tokens": 512, "epochs": 4, "warmup_steps": 50, "checkpoint_updates": 3},
}
COMMAND = [sys.executable, "-c", "from keras_transformer.cli import app; app()", "train"]
# Columns of the history that depend on the clock, or on when the run was resumed.
NOT_COMPARED = ("tokens_per_second", "gradient_norm")


def start(folder, run):
    command = [*COMMAND, str(folder / "recipe.yaml"), "--run", str(folder / run)]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kill_resume_"))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    began = time.perf_counter()
    finish(folder, "never_killed")
    seconds = time.perf_counter() - began
    truth = last_state(folder, "never_killed")
    print(f"never killed: {seconds:.0f} s, {truth[0]}", flush=True)
    same = in_saves = 0
    for number in range(arguments.runs):
        run = f"run_{number}"
        kills = []
        if number % 3 == 0:  # random moments rarely fall into a save
            checkpoints = folder / run / "checkpoints"
            while (hit := kill_in_a_save(start(folder, run), checkpoints)) is False:
                kills.append("just after a save")
            if hit:
                kills.append("during a save")
                in_saves += 1
        else:
            for _ in range(rng.randint(1, 2)):
                moment = rng.uniform(0.1, 1.0) * seconds
                if kill_after(start(folder, run), moment):
                    kills.append(f"after {moment:.1f} s")
        finish(folder, run)
        check_readable(folder / run)
        is_same = last_state(folder, run) == truth
        same += is_same
        print(f"{run}: killed {', '.join(kills) or 'never'}: {'same' if is_same else 'DIFFERS'}")
        sys.stdout.flush()
    print(f"{same} of {arguments.runs} runs are bit-identical to the one that was never killed")
    print(f"{in_saves} kills were in the middle of a save")
    sys.exit(same < arguments.runs or in_saves == 0)


if __name__ == "__main__":
    main()
