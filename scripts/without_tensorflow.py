"""Runs the steps of quickstart.sh, then all commands but `import` and `serve`: without TensorFlow.

    KERAS_BACKEND=jax python scripts/without_tensorflow.py FOLDER [--quick]

It trains a run that is never stopped, and one that is killed by SIGKILL and resumed: their last
checkpoints must be equal bit by bit, and 99% of the held-out number names must be translated
exactly. With `--quick` it trains less and does not check the translations.
"""

import argparse
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

from keras_transformer import number_names
from keras_transformer.lazy_names import is_installed
from keras_transformer.runs import read_checkpoint

LEAST_EXACT_MATCH = 0.99
# A checkpoint every 37 updates: most of them lie within an epoch.
CHANGES = ["training.checkpoint_updates=37", "training.keep_last=10"]
# 80 updates of two micro-batches; one shape, as JAX compiles each.
QUICK = ["data.train={number_names: train, size: 2000}", "training.batch_tokens=1024"]
QUICK += ["data.validation={number_names: held_out, size: 40, seed: 1}", "training.epochs=2"]
QUICK += ["data.test={number_names: held_out, size: 40, seed: 2}"]
QUICK += ["training.checkpoint_updates=7", "training.accumulation_steps=2", "training.shapes=1"]
QUICK += ["model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.hidden_dim=32"]
KILLED_AFTER = {True: 7, False: 70}  # updates
PROGRAM = [sys.executable, "-m", "keras_transformer"]


def run(*words, text="", code=0):
    """Runs a command of the command line; returns its output, and exits if its code is another."""
    started = time.perf_counter()
    ran = subprocess.run([*PROGRAM, *map(str, words)], input=text, capture_output=True, text=True)
    print(f"{time.perf_counter() - started:6.1f} s  {' '.join(map(str, words))}", flush=True)
    check(ran.returncode == code, f"exit code {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout if code == 0 else ran.stderr


def check(is_right, what):
    if not is_right:
        sys.exit(f"Error: {what}")


def updates(run_folder):
    """Returns the updates of the newest checkpoint, and its path."""
    paths = run_folder.glob("checkpoints/checkpoint-*.npz")
    found = [(int(path.stem.rpartition("-")[2]), path) for path in paths]
    return max(found, default=(0, None))


def kill_within(train, run_folder, count):
    """Starts a training and kills it when it has made `count` updates."""
    with subprocess.Popen([*PROGRAM, *map(str, train)], stderr=subprocess.DEVNULL) as process:
        while updates(run_folder)[0] < count and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    check(process.returncode == -signal.SIGKILL, "the training ended before it was killed")
    print(f"{'':10}killed after {updates(run_folder)[0]} updates", flush=True)


def check_equal(one, other):
    """Checks that two runs have the same last checkpoint and the same history."""
    (number, path), (other_number, other_path) = updates(one), updates(other)
    arrays, others = (read_checkpoint(each)[0] for each in (path, other_path))
    check(number == other_number and arrays.keys() == others.keys(), "other updates or arrays")
    unlike = [name for name in arrays if not np.array_equal(arrays[name], others[name])]
    check(not unlike, f"weights differ after the kill: {unlike}")
    histories = []
    for folder in (one, other):
        with open(folder / "history.csv", encoding="utf-8", newline="") as file:
            histories.append([row | {"tokens_per_second": ""} for row in csv.DictReader(file)])
    check(histories[0] == histories[1], "the histories differ")
    print(f"{'':10}{number} updates: {len(arrays)} arrays and the histories are equal", flush=True)


def check_training(whole, killed, changes, is_quick):
    """Trains a run, and one that is killed and resumed; checks that they are equal."""
    train = ["train", "number_names", *changes, "--run"]
    run(*train, whole)
    kill_within([*train, killed], killed, KILLED_AFTER[is_quick])
    run(*train, killed)
    check_equal(whole, killed)


def check_translations(run_folder, is_quick):
    """Evaluates a run; checks the exact match and a translation unless it trained little."""
    print(run("evaluate", run_folder, "--samples", 1))
    match = json.loads((run_folder / "report.json").read_text("utf-8"))["exact_match"]
    check(is_quick or match >= LEAST_EXACT_MATCH, f"exact match {match}")
    translation = run("translate", run_folder, text="twenty-one\n\n")
    check(is_quick or translation == "einundzwanzig\n\n", f"translated as {translation!r}")


def check_other_commands(run_folder, folder):
    """Runs the other commands on a trained run."""
    check("number_names: train" in run("recipe", "number_names"), "not the recipe")
    lines = folder / "lines.en", folder / "lines.de"
    for path, side in zip(lines, zip(*number_names("held_out", 200), strict=True), strict=True):
        path.write_text("\n".join(side) + "\n", "utf-8")
    parts = folder / "parts"
    run("split", *lines, "--output", parts, "--validation", 20, "--test", 20)
    check((parts / "train.de").is_file(), "no part for training")
    few = "data.train={number_names: train, size: 500}"
    run("prepare", "number_names", "--set", few, "--run", run_folder)
    check(any((run_folder / "tokens").iterdir()), "no token store")
    check(run("score", run_folder, *lines).count("\n") == 200, "not a line a pair")
    text = ["--no-corpus", "--text", parts / "val.en"]
    run("distil", "number_names", run_folder, *text, "--output", folder / "distilled")
    check((folder / "distilled.yaml").is_file(), "no recipe for a student")
    run("average", run_folder, "--last", 2)
    run("plot", run_folder, "--text", "seven hundred and twenty-one")
    check((run_folder / "attention.png").is_file(), "no picture")
    check(list((run_folder / "logs").rglob("events.out.tfevents.*")), "no logs for TensorBoard")
    run("vocabulary", *lines, "--size", 300, "--output", folder / "new.model")
    run("export", run_folder, folder / "ct2", "--format", "ctranslate2", "--quantization", "int8")
    check((folder / "ct2" / "model.bin").is_file(), "no model for CTranslate2")
    run("verify", folder / "ct2")
    if not is_installed("tensorflow"):
        error = run("export", run_folder, folder / "served", code=2)
        check(error.count("\n") == 1 and "TensorFlow" in error, f"not one line: {error!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder to write, new")
    parser.add_argument("--quick", action="store_true", help="train less")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True)
    installed = "installed" if is_installed("tensorflow") else "not installed"
    print(f"KERAS_BACKEND={os.environ.get('KERAS_BACKEND')}, TensorFlow is {installed}.")
    changes = [word for each in CHANGES + QUICK * asked.quick for word in ("--set", each)]
    whole, killed = asked.folder / "whole", asked.folder / "killed"
    run("doctor", "number_names", *changes)
    check_training(whole, killed, changes, asked.quick)
    check_translations(killed, asked.quick)
    check_other_commands(killed, asked.folder)
    print("All passed.")


if __name__ == "__main__":
    main()
