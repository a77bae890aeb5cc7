"""Trains Multi30k with one setting changed at a time, and scores each run on the validation split.

    python benchmarks/ladder.py --data MULTI30K --runs ladder
    python benchmarks/ladder.py --data MULTI30K --runs ladder --only batch r_drop
    python benchmarks/ladder.py --runs ladder --table

A rung is an earlier rung with some settings changed. All see about 20 million target tokens, with
one seed. Two rungs are trained side by side, each on half of the cores. The command may be
interrupted: given again, it goes on at the exact batch. It never reads the test split.
"""

import argparse
import concurrent.futures
import csv
import datetime
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_transformer as kt
from keras_transformer.runs import Recipe, RunFolder, Trainer, average_run

SIDE_BY_SIDE = 2
TARGET_TOKENS = 20e6
AVERAGED = 10
# The published decoding: beam 5, log-probs / length.
BEAM = {"beam_size": 5, "length_penalty": "mean", "alpha": 1.0, "stopping": "first_beams"}
GREEDY = {"beam_size": 1}
PLAIN = {
    "data": {
        "train": ["train.lc.norm.tok.en.gz", "train.lc.norm.tok.de.gz"],
        "validation": ["val.lc.norm.tok.en.gz", "val.lc.norm.tok.de.gz"],
    },
    "vocabulary": {"size": 4000},
    "model": {"preset": "tiny", "normalize_first": True},
    "training": {
        **{"batch_tokens": 2048, "epochs": 40, "learning_rate": 0.002, "warmup_steps": 1000},
        **{"checkpoint_updates": 500, "keep_last": AVERAGED},
    },
}
# Name: the rung below, and what changes. Both vocabularies see 20 million target tokens.
RUNGS = {
    "plain": (None, {}),
    "vocabulary": ("plain", {"vocabulary.size": 10000, "training.epochs": 46}),
    "batch": ("vocabulary", {"training.batch_tokens": 8192, "training.learning_rate": 0.005}),
    "post_norm": (
        "batch",
        {
            **{"model.normalize_first": False, "model.attention_gain": 2**-0.5},
            **{"training.adam_epsilon": 1e-8, "training.clip_norm": 25.0},
        },
    ),
    "r_drop": ("batch", {"training.r_drop": 5.0}),
    "bpe_dropout": ("batch", {"training.subword_regularization": 0.1}),
    "deep": ("batch", {"model.num_encoder_layers": 6, "model.num_decoder_layers": 6}),
    "word_dropout": ("batch", {"training.word_dropout": 0.1}),
    "both": ("r_drop", {"training.subword_regularization": 0.1}),
}


def recipe_of(rung):
    """Returns a rung's recipe, as a dict of sections."""
    below, changes = RUNGS[rung]
    sections = recipe_of(below) if below else json.loads(json.dumps(PLAIN))
    for name, value in changes.items():
        section, key = name.split(".")
        sections[section][key] = value
    return sections


def climb(rung, data, runs):
    """Trains and scores a rung on the cores of this process; what was done is not done again."""
    run, result = runs / rung, runs / f"{rung}.json"
    if result.exists():
        return
    recipe = Recipe.from_dict(recipe_of(rung))
    trainer = Trainer(recipe, data, run)
    if not trainer.finished:
        trainer.train()
    sources, references = zip(*recipe.data.pairs("validation", data), strict=True)
    scores = {}
    for last in (1, AVERAGED):
        model = run / f"last{last}.keras"
        average_run(run, model, last=last)
        for name, search in (("greedy", GREEDY), ("beam", BEAM)):
            translate = kt.load_run(run, model=model, **search)
            bleu = kt.evaluation.bleu(translate(list(sources)), references, tokenized=True)
            scores[f"{name} of last {last}"] = vars(bleu)
    result.write_text(json.dumps(stamp() | {"scores": scores}, indent=2), "utf-8")


def stamp():
    """Returns when, with which commit and on how many cores something was measured."""
    command = ["git", "describe", "--always", "--dirty"]
    folder = pathlib.Path(__file__).parent
    commit = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()
    date = datetime.date.today().isoformat()
    return {"date": date, "commit": commit, "cores": len(os.sched_getaffinity(0))}


def climb_all(rungs, data, runs):
    """Trains rungs, `SIDE_BY_SIDE` at a time, each in a process on its own cores."""
    cores = sorted(os.sched_getaffinity(0))
    free = [set(cores[first::SIDE_BY_SIDE]) for first in range(min(SIDE_BY_SIDE, len(cores)))]

    def work(rung):
        own = free.pop()
        with open(runs / f"{rung}.log", "a") as log:
            subprocess.run(
                [sys.executable, __file__, "--data", data, "--runs", runs, "--climb", rung],
                **{"check": True, "stdout": log, "stderr": log},
                preexec_fn=functools.partial(os.sched_setaffinity, 0, own),
            )
        free.append(own)
        print(f"{rung}: done", flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(free)) as pool:
        list(pool.map(work, rungs))


def print_table(runs):
    """Prints the finished rungs, as Markdown."""
    names = ("greedy of last 1", "beam of last 1", f"beam of last {AVERAGED}")
    print("| rung | changes | loss | greedy | beam 5 | average, beam 5 | tokens/s | minutes |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for rung, (below, changes) in RUNGS.items():
        if not (runs / f"{rung}.json").exists():
            continue
        found = json.loads((runs / f"{rung}.json").read_text("utf-8"))
        with open(RunFolder(runs / rung).history_file, newline="") as file:
            history = list(csv.DictReader(file))
        loss = min(float(epoch["val_loss"]) for epoch in history)
        speed = statistics.median(float(epoch["tokens_per_second"]) for epoch in history)
        settings = [f"`{name.split('.')[1]}: {value}`" for name, value in changes.items()]
        scores = [f"{found['scores'][name]['value']:.2f}" for name in names]
        changed = f"{below}: " * bool(below) + ", ".join(settings)
        cells = (rung, changed, f"{loss:.3f}", *scores)
        print(f"| {' | '.join(cells)} | {speed:,.0f} | {TARGET_TOKENS / speed / 60:.0f} |")
    print(f"\nThe date, commit and number of cores of each are in {runs}/*.json.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k, tokenized")
    parser.add_argument("--runs", type=pathlib.Path, required=True, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=RUNGS, default=list(RUNGS), metavar="RUNG")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--climb", choices=RUNGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print_table(arguments.runs)
    elif arguments.data is None:
        parser.error("--data is required, unless --table is given")
    elif arguments.climb:
        climb(arguments.climb, arguments.data, arguments.runs)
    else:
        arguments.runs.mkdir(parents=True, exist_ok=True)
        climb_all(arguments.only, arguments.data, arguments.runs)
        print_table(arguments.runs)


if __name__ == "__main__":
    main()
