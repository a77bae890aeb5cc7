"""Trains the packaged recipe `small_corpus` on 5,000 pairs and more, and scores each model.

    python benchmarks/small_corpora.py --data DATA --runs small
    python benchmarks/small_corpora.py --data DATA --runs small --only 5000 20000
    python benchmarks/small_corpora.py --table

The pairs are English to Spanish, from Tatoeba: DATA has `train.tsv.gz` and `val.tsv.gz`. The first
pairs in an order drawn by chance are a small corpus. Runs are scored on the validation split, of
which the first 500 pairs also give `val_loss`; the test split is not read. The command may be
interrupted: given again, it goes on at the exact batch. The figures of each run are written to
`benchmarks/results/small_corpora`, the translations to `benchmarks/outputs`.
"""

import argparse
import os
import pathlib
import random

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from kept_outputs import keep_output
from scored_runs import (
    NUMBER,
    SEARCHES,
    TEXT,
    averaged,
    read_results,
    table,
    train_run,
    when_measured,
    write_pairs,
    write_result,
)

import keras_transformer as kt
from keras_transformer.runs import Recipe

ORDER = 5  # seed of the order of the pairs
SEED = 11  # of all runs
WATCHED = 500  # pairs of the validation split that give `val_loss`
SEARCH = "beam 4"
REFERENCES = "val.tsv.gz"
WEAK_NOISE = "model.dropout=0.1", "training.word_dropout=0.0"


def epochs(number):
    """Returns the settings of a run with this number of epochs."""
    return f"training.epochs={number}", f"training.decay_epochs={number}"


def vocabulary(size):
    """Returns the setting of a run with a vocabulary of this size."""
    return (f"vocabulary.size={size}",)


# Name of a run -> number of pairs, and what differs from the recipe.
RUNS = {
    "5000": (5000, ()),
    "5000-40-epochs": (5000, epochs(40)),
    "5000-40-epochs-vocabulary-1000": (5000, epochs(40) + vocabulary(1000)),
    "5000-40-epochs-vocabulary-2000": (5000, epochs(40) + vocabulary(2000)),
    "5000-40-epochs-bpe-dropout-vocabulary-2000": (
        5000,
        epochs(40) + vocabulary(2000) + ("training.subword_regularization=0.1",),
    ),
    "5000-40-epochs-weak-noise": (5000, epochs(40) + WEAK_NOISE),
    "5000-40-epochs-weak-noise-vocabulary-2000": (5000, epochs(40) + WEAK_NOISE + vocabulary(2000)),
    "5000-40-epochs-weak-noise-vocabulary-4000": (5000, epochs(40) + WEAK_NOISE + vocabulary(4000)),
    "20000": (20_000, epochs(20)),
    "20000-weak-noise": (20_000, epochs(20) + WEAK_NOISE),
}


def write_corpora(data, folder):
    """Writes the pairs that the runs train on, and those that give `val_loss`."""
    pairs = list(kt.read_parallel(data / "train.tsv.gz"))
    random.Random(ORDER).shuffle(pairs)
    for number in {number for number, _ in RUNS.values()}:
        write_pairs(folder / f"train.{number}.tsv", pairs[:number])
    watched = list(kt.read_parallel(data / REFERENCES))[:WATCHED]
    write_pairs(folder / "watched.tsv", watched)


def measure(name, data, folder):
    """Trains and scores one run, and keeps its translations."""
    number, settings = RUNS[name]
    files = f"data.train=[train.{number}.tsv]", "data.validation=[watched.tsv]"
    recipe = Recipe.load("small_corpus", [*files, f"training.seed={SEED}", *settings])
    found = train_run(recipe, folder, folder / name)
    model = averaged(folder / name)
    translate = kt.load_run(folder / name, model=model, **SEARCHES[SEARCH])
    sources, _ = zip(*kt.read_parallel(data / REFERENCES), strict=True)
    translations = translate(list(sources))
    scores = kept_scores(f"tatoeba/{REFERENCES}", translations, data)
    keep_output(
        f"tatoeba/{name}",
        translations,
        translate.engine.model,
        references=f"tatoeba/{REFERENCES}",
        scores=scores,
        pages=["results.md"],
        command=f"python benchmarks/small_corpora.py --only {name}",
        seed=SEED,
    )
    write_result("small_corpora", name, found | scores)


def kept_scores(references, outputs, data):
    """Returns BLEU and chrF of outputs for `"tatoeba/val.tsv.gz"`, and the signature of BLEU."""
    _, expected = zip(*kt.read_parallel(data / references.removeprefix("tatoeba/")), strict=True)
    bleu, chrf = (kt.evaluation.score(metric, outputs, expected) for metric in ("bleu", "chrf"))
    figures = {"BLEU": round(bleu.value, 2), "chrF": round(chrf.value, 2)}
    return {"figures": figures, "signature": bleu.signature}


def runs_table():
    """Returns the measured runs as lines of Markdown."""
    rows = []
    for name, found in read_results("small_corpora", RUNS).items():
        number, settings = RUNS[name]
        scores = ", ".join(f"{value:.2f}" for value in found["figures"].values())
        changes = ", ".join(f"`{setting}`" for setting in settings)
        measured = found["minutes"], when_measured(found)
        rows.append((f"{number:,}", changes, found["updates"], scores, *measured))
    texts = dict.fromkeys(("pairs", "differs from the recipe in"), TEXT)
    numbers = dict.fromkeys(("updates", "BLEU, chrF", "minutes"), NUMBER)
    return table({**texts, **numbers, "measured": TEXT}, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of the corpus")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    if not arguments.table:
        if arguments.data is None or arguments.runs is None:
            parser.error("--data and --runs are required, unless --table is given")
        arguments.runs.mkdir(parents=True, exist_ok=True)
        write_corpora(arguments.data, arguments.runs)
        for name in arguments.only:
            measure(name, arguments.data, arguments.runs)
    print(*runs_table(), sep="\n")


if __name__ == "__main__":
    main()
