"""Trains the packaged recipe `multi30k_en_de` with several seeds, and scores each model.

    python benchmarks/multi30k.py --data MULTI30K --runs quality
    python benchmarks/multi30k.py --data MULTI30K --runs quality --only raw de-en
    python benchmarks/multi30k.py --runs quality --only seed-11 --further SOURCES [SOURCES ...]
    python benchmarks/multi30k.py --table

One model a seed, one run after the other, on all cores. The recipe is fixed before: nothing here
is chosen by the scores of the test split, which are computed once, at the end of each run. `raw`
is the same recipe on text that is not tokenized, `de-en` the same from German to English, for which
nothing was tuned. `--set` is for keys that the recipe leaves at their defaults, as the precision:
bfloat16 is faster on some processors only. `--further` translates other files, without references,
by models that were scored before, and refuses others. The command may be interrupted: given again,
it goes on at the exact batch. The figures of each run are written to `benchmarks/results/multi30k`,
the translations to `benchmarks/outputs`.
"""

import argparse
import os
import pathlib
import re
import statistics

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from kept_outputs import keep_further, keep_output, read_scores
from scored_runs import (
    AVERAGED,
    NUMBER,
    SEARCHES,
    TEXT,
    averaged,
    command_of,
    read_results,
    score_run,
    table,
    train_run,
    when_measured,
    write_result,
)

import keras_transformer as kt
from keras_transformer.data.corpus import read_lines
from keras_transformer.runs import Recipe


def files(source, target):
    """Returns the settings of a recipe that reads the files with these suffixes."""
    splits = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    return [f"data.{key}=[{name}.{source}, {name}.{target}]" for key, name in splits.items()]


RUNS = {
    **{f"seed-{seed}": [f"training.seed={seed}"] for seed in (1, 2, 3, 11, 12, 13)},
    "raw": files("en.gz", "de.gz"),
    "de-en": files("lc.norm.tok.de.gz", "lc.norm.tok.en.gz"),
}
# The model and search that count: those of the published figure.
CHOSEN = f"beam 5 of last {AVERAGED}"
FURTHER = "beam 5"  # the search for text that has no references
PUBLISHED = 41.02  # Wu et al., 2021
# BLEU of two published outputs, which a correct BLEU must print.
CALIBRATION = {"system_a.de.gz": 38.594, "system_b.de.gz": 39.480}


def measure(name, data, runs, settings):
    """Trains and scores one run, with other settings of the recipe if there are any."""
    recipe = Recipe.load("multi30k_en_de", [*RUNS[name], *settings])
    found = train_run(recipe, data, runs / name)
    _, references = recipe.data.test
    command = command_of(["python benchmarks/multi30k.py --only", name], settings)

    def keep(column, translations, model):
        if column == CHOSEN:
            keep_output(
                f"multi30k/{name}",
                translations,
                model,
                references=f"multi30k/{references}",
                scores=kept_scores(f"multi30k/{references}", translations, data),
                pages=["results.md"],
                command=command,
                seed=recipe.training.seed,
            )

    splits = "validation", "test"
    scores = score_run(recipe, data, runs / name, splits, tokenized=name != "raw", keep=keep)
    write_result("multi30k", name, found | {"settings": settings} | scores)


def translate_further(name, runs, files):
    """Keeps translations of files that have no references, by a model that was scored before."""
    kept = read_scores().get(f"multi30k/{name}", {})
    translate = kt.load_run(runs / name, model=averaged(runs / name), **SEARCHES[FURTHER])
    keep_further(
        name,
        translate,
        files,
        search=FURTHER,
        model=translate.engine.model,
        scored=kept.get("weights_sha256"),
        command=kept.get("command"),
        seed=kept.get("seed"),
    )


def kept_scores(references, outputs, data):
    """Returns the figures of a page, of outputs for a file of references, and their signature."""
    file = data / references.removeprefix("multi30k/")
    score = kt.evaluation.bleu(outputs, list(read_lines(file)), tokenized=".tok." in file.name)
    return {"figures": {"BLEU": round(score.value, 2)}, "signature": score.signature}


def check_calibration(data, outputs):
    """Raises an error unless BLEU scores the published outputs as published."""
    references = list(read_lines(data / "test_2016_flickr.lc.norm.tok.de.gz"))
    for name, expected in CALIBRATION.items():
        score = kt.evaluation.bleu(list(read_lines(outputs / name)), references, tokenized=True)
        print(f"{name}: {score.value:.3f}, published output: {expected:.3f}")
        if round(score.value, 3) != expected:
            raise SystemExit(f"BLEU of {name} must be {expected}. Received: {score}")


def runs_table():
    """Returns the measured runs as lines of Markdown."""
    found = read_results("multi30k", RUNS)
    if not found:
        return ["No seed is measured yet."]
    scores = [f"{search} of last {last}" for last in (1, AVERAGED) for search in SEARCHES]
    numbers = dict.fromkeys((*scores, "minutes"), NUMBER)
    rows = []
    for name, run in found.items():
        for split in ("validation", "test"):
            bleu = [f"{run[split][score]:.2f}" for score in scores]
            tokenization = re.search(r"tok:\w+", run[split]["signature"])[0]
            when = ", ".join([when_measured(run), *run["settings"]])
            rows.append((name, split, tokenization, *bleu, run["minutes"], when))
    texts = dict.fromkeys(("run", "split", "BLEU"), TEXT)
    lines = table({**texts, **numbers, "measured": TEXT}, rows)
    seeds = [run["test"][CHOSEN] for name, run in found.items() if name.startswith("seed-")]
    if seeds:
        median = statistics.median(seeds)
        lines += ["", f"Median of {len(seeds)}: {median:.2f} (published: {PUBLISHED})."]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument(
        "--set",
        **{"nargs": "+", "default": [], "metavar": "KEY=VALUE", "dest": "settings"},
        help="settings to change, as training.precision=mixed_bfloat16; kept with the figures",
    )
    parser.add_argument("--further", nargs="+", type=pathlib.Path, help="files to translate")
    parser.add_argument("--calibration", type=pathlib.Path, help="folder of published outputs")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    if arguments.further:
        if arguments.runs is None:
            parser.error("--further needs --runs")
        for name in arguments.only:
            translate_further(name, arguments.runs, arguments.further)
    elif not arguments.table:
        if arguments.data is None or (arguments.runs or arguments.calibration) is None:
            parser.error("--data and --runs are required, unless --table is given")
        if arguments.calibration:
            check_calibration(arguments.data, arguments.calibration)
        if arguments.runs:
            arguments.runs.mkdir(parents=True, exist_ok=True)
            for name in arguments.only:
                if not read_results("multi30k", [name]):
                    measure(name, arguments.data, arguments.runs, arguments.settings)
    print(*runs_table(), sep="\n")


if __name__ == "__main__":
    main()
