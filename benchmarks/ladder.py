"""Trains Multi30k with one idea changed at a time, and scores each run on the validation split.

    python benchmarks/ladder.py --data MULTI30K --runs ladder
    python benchmarks/ladder.py --data MULTI30K --runs ladder --only cosine r_drop
    python benchmarks/ladder.py --table

A rung is an earlier rung with some settings changed. All see the same text, about 20 million target
tokens, with the same seed; BPE-dropout makes more tokens of it, `long` and `no_word_dropout` see it
twice, and `r_drop` has fewer epochs, in which it sees each pair twice. The short rungs, of settings
that are expected to change little, see 5 million, and are compared with each other only. Two rungs
are trained side by side, each on half of the cores. The command may be interrupted: given again, it
goes on at the exact batch. It never reads the test split. Each rung's figures are written to
`benchmarks/results/ladder` or `benchmarks/results/short`; a rung that is there is not trained
again.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from scored_runs import (
    AVERAGED,
    NUMBER,
    TEXT,
    read_results,
    score_run,
    table,
    train_run,
    when_measured,
    write_result,
)

from keras_transformer.runs import Recipe
from keras_transformer.settings import yaml_line

SIDE_BY_SIDE = 2
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
LADDER = {
    "plain": (None, {}),
    "vocabulary": ("plain", {"vocabulary.size": 10000, "training.epochs": 46}),
    "cosine": (
        "vocabulary",
        {
            **{"training.schedule": "cosine", "training.decay_epochs": 46},
            **{"training.learning_rate": 0.0025},
        },
    ),
    "bpe_dropout": ("cosine", {"training.subword_regularization": 0.1}),
    "r_drop": (
        "cosine",
        {
            **{"training.r_drop": 5.0, "training.epochs": 40, "training.decay_epochs": 40},
            **{"training.precision": "mixed_bfloat16"},
        },
    ),
    "word_dropout": ("cosine", {"training.word_dropout": 0.1}),
    "long": (
        "word_dropout",
        {
            **{"training.epochs": 92, "training.decay_epochs": 92},
            **{"training.precision": "mixed_bfloat16"},
        },
    ),
    "no_word_dropout": ("long", {"training.word_dropout": 0.0}),
}
SHORT = {
    "short": (
        "cosine",
        {
            **{"training.epochs": 12, "training.decay_epochs": 12},
            **{"training.precision": "mixed_bfloat16"},
        },
    ),
    # Shows what chance does.
    "seed_2": ("short", {"training.seed": 2}),
    "inverse_sqrt": ("short", {"training.schedule": "inverse_sqrt", "training.decay_epochs": None}),
    "floor": ("short", {"training.min_learning_rate": 0.00025}),
    "weight_decay": ("short", {"training.weight_decay": 0.1}),
    "no_smoothing": ("short", {"training.label_smoothing": 0.0}),
    # The defaults of Adam's authors.
    "adam": ("short", {"training.beta_2": 0.999, "training.adam_epsilon": 1e-8}),
    "attention_gain": ("short", {"model.attention_gain": 0.7071}),
    "relative": ("short", {"model.positions": "relative"}),
    "both": ("weight_decay", {"model.attention_gain": 0.7071}),
    "both_seed_2": ("both", {"training.seed": 2}),
    # The same warm-up by the text: four times the slots, a quarter of the updates.
    "large_batch": (
        "short",
        {
            **{"training.batch_tokens": 8192, "training.learning_rate": 0.005},
            **{"training.warmup_steps": 250},
        },
    ),
    "post_norm": (
        "large_batch",
        {
            **{"model.normalize_first": False, "model.attention_gain": 0.7071},
            **{"training.adam_epsilon": 1e-8, "training.clip_norm": 25.0},
        },
    ),
}
# Name of the figures' folder: its rungs.
PARTS = {"ladder": LADDER, "short": SHORT}
RUNGS = LADDER | SHORT


def part_of(rung):
    """Returns the folder of a rung's figures."""
    return next(part for part, rungs in PARTS.items() if rung in rungs)


def recipe_of(rung):
    """Returns a rung's recipe, as a dict of sections."""
    below, changes = RUNGS[rung]
    sections = recipe_of(below) if below else json.loads(json.dumps(PLAIN))
    for name, value in changes.items():
        section, key = name.split(".")
        sections[section][key] = value
    return sections


def climb(rung, data, runs):
    """Trains and scores a rung on the cores of this process."""
    recipe = Recipe.from_dict(recipe_of(rung))
    found = train_run(recipe, data, runs / rung)
    scores = score_run(recipe, data, runs / rung, ["validation"], ("greedy", "beam 5"))
    write_result(part_of(rung), rung, found | scores)


def climb_all(rungs, data, runs):
    """Trains rungs, `SIDE_BY_SIDE` at a time, each in a process on its own cores.

    Returns:
        bool: whether all succeeded.
    """
    cores = sorted(os.sched_getaffinity(0))
    free = [set(cores[first::SIDE_BY_SIDE]) for first in range(min(SIDE_BY_SIDE, len(cores)))]

    def work(rung):
        own = free.pop(0)
        with open(runs / f"{rung}.log", "a") as log:
            done = subprocess.run(
                [sys.executable, __file__, "--data", data, "--runs", runs, "--climb", rung],
                **{"check": False, "stdout": log, "stderr": log},
                preexec_fn=functools.partial(os.sched_setaffinity, 0, own),
            )
        free.append(own)
        print(f"{rung}: {f'failed, see {log.name}' if done.returncode else 'done'}", flush=True)
        return not done.returncode

    with concurrent.futures.ThreadPoolExecutor(len(free)) as pool:
        return all(list(pool.map(work, [r for r in rungs if not read_results(part_of(r), [r])])))


def rungs_table(part):
    """Returns the measured rungs of a part as lines of Markdown."""
    bleu = {"greedy": "greedy of last 1", "beam 5": "beam 5 of last 1"}
    if part == "ladder":  # the last ten epochs of a short rung include its first ones
        bleu["average, beam 5"] = f"beam 5 of last {AVERAGED}"
    # Perplexity does not depend on label smoothing, as the loss does.
    measure = "loss" if part == "ladder" else "perplexity"
    numbers = dict.fromkeys((measure, *bleu, "tokens/s", "minutes"), NUMBER)
    columns = {"rung": TEXT, "what changes": TEXT, **numbers, "measured": TEXT}
    rows = []
    for rung, found in read_results(part, PARTS[part]).items():
        below, changes = RUNGS[rung]
        settings = [f"`{n.split('.')[1]}: {yaml_line(value)}`" for n, value in changes.items()]
        changed = f"{below}: {', '.join(settings)}" if below else "the recipe of version 0.3"
        scores = [f"{found['validation'][name]:.2f}" for name in bleu.values()]
        speed = f"{found['tokens_per_second']:,}", found["minutes"]
        value = f"{found[f'validation_{measure}']:.3f}"
        rows.append((rung, changed, value, *scores, *speed, when_measured(found)))
    return table(columns, rows)


def print_tables():
    """Prints the measured rungs, a table for each part."""
    print("\n\n".join("\n".join(rungs_table(part)) for part in PARTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k, tokenized")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=RUNGS, default=list(RUNGS), metavar="RUNG")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--climb", choices=RUNGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print_tables()
    elif arguments.data is None or arguments.runs is None:
        parser.error("--data and --runs are required, unless --table is given")
    elif arguments.climb:
        climb(arguments.climb, arguments.data, arguments.runs)
    else:
        arguments.runs.mkdir(parents=True, exist_ok=True)
        succeeded = climb_all(arguments.only, arguments.data, arguments.runs)
        print_tables()
        sys.exit(not succeeded)


if __name__ == "__main__":
    main()
