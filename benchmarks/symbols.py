"""Trains and scores sequences that are not language: pronunciation (SIGMORPHON 2020) and SCAN.

    python benchmarks/symbols.py g2p --data DATA --runs runs
    python benchmarks/symbols.py scan --data DATA --runs runs --only length-relative-11
    python benchmarks/symbols.py g2p --runs runs --data DATA --test
    python benchmarks/symbols.py g2p --runs runs --data DATA --exports g2p-11
    python benchmarks/symbols.py --table

`g2p` is one model of all 15 languages a seed: the packaged recipe `g2p`, and the language as first
symbol of each word. `scan` is the packaged recipe `scan`, for each split and kind of positions
(`near`: distances beyond 16 are one), with greedy search: a beam that ends with `first_beams` finds
early ends where the right answer is long and sure. Recipes were chosen by development data alone.
`--test` scores the test split, once; an ensemble of all g2p models too. `--exports` compares a
SavedModel, a folder for CTranslate2, and a server over each, with the run's own answers to the test
words of three languages. An interrupted command goes on at the exact batch if it is given again.
Figures are written to `benchmarks/results/symbols`, the outputs for the test split to
`benchmarks/outputs`.
"""

import argparse
import gzip
import os
import pathlib
import random
import re
import statistics

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from kept_outputs import keep_output, output_name
from scored_runs import (
    NUMBER,
    SEARCHES,
    TEXT,
    averaged,
    read_results,
    sides_of,
    table,
    train_run,
    when_measured,
    write_pairs,
    write_result,
)
from serve import Client, Server

import keras_transformer as kt
from keras_transformer import load_translator
from keras_transformer.runs import Recipe

LANGUAGES = "ady arm bul dut fre geo gre hin hun ice jpn kor lit rum vie".split()
EXPORTED = "fre", "kor", "vie"
RATES = "wer", "per"
SEEDS = 11, 12, 13
SPLITS = {"simple": "simple", "jump": "addprim_jump", "length": "length"}
POSITIONS = {
    "absolute": ["model.positions=sinusoidal", "model.max_relative_position=null"],
    "relative": [],
    "near": ["model.max_relative_position=16"],
}
SYMBOLS = ", ".join(f"<{name}>" for name in LANGUAGES)
G2P = {
    f"g2p-{seed}": [f"training.seed={seed}", f"vocabulary.symbols=[{SYMBOLS}]"] for seed in SEEDS
}
SCAN = {
    f"{split}-{name}-{seed}": [
        *(f"data.{key}=[{split}.{key}.tsv]" for key in ("train", "validation", "test")),
        f"training.seed={seed}",
        *positions,
    ]
    for split in SPLITS
    for name, positions in POSITIONS.items()
    for seed in SEEDS
}


def write_g2p(data, folder):
    """Writes the words of all languages, each behind the symbol of its language."""
    for ours, theirs in {"train": "train", "validation": "dev", "test": "test"}.items():
        pairs = []
        for name in LANGUAGES:
            file = data / "sigmorphon_2020_g2p" / theirs / f"{name}_{theirs}.tsv"
            pairs += [(f"<{name}>{word}", phones) for word, phones in kt.read_parallel(file)]
        write_pairs(folder / f"{ours}.tsv", pairs)


def write_scan(data, folder):
    """Writes commands and actions; a twentieth of the training commands is the validation."""
    for split, theirs in SPLITS.items():
        parts = {}
        for part in ("train", "test"):
            with gzip.open(data / "scan" / f"tasks_{part}_{theirs}.txt.gz", "rt") as file:
                parts[part] = re.findall(r"^IN: (.+) OUT: (.+)$", file.read(), re.MULTILINE)
        random.Random(1).shuffle(parts["train"])
        held_out = len(parts["train"]) // 20
        parts["validation"] = parts["train"][:held_out]
        parts["train"] = parts["train"][held_out:]
        for part, pairs in parts.items():
            write_pairs(folder / f"{split}.{part}.tsv", pairs)


# Pages that show what a search found; `results.md` shows all.
PAGES = {"beam 5": ["not_translation.md", "results.md"], "greedy": ["results.md"]}
TASKS = {
    "g2p": (G2P, write_g2p, ("greedy", "beam 5")),
    "scan": (SCAN, write_scan, ("greedy",)),
}


def rates(sources, outputs, references):
    """Returns WER and PER, for g2p of each language and their means."""
    names = [re.match(r"<(\w+)>", source) for source in sources]
    groups = {}
    for name, *texts in zip(names, outputs, references, strict=True):
        groups.setdefault(name[1] if name else "all", []).append(texts)
    scores = {
        name: [round(kt.evaluation.score(m, *zip(*rows, strict=True)).value, 2) for m in RATES]
        for name, rows in groups.items()
    }
    means = [round(statistics.mean(column), 2) for column in zip(*scores.values(), strict=True)]
    return {"mean": means} | (scores if len(scores) > 1 else {})


def kept_scores(references, outputs, folder):
    """Returns the figures of the pages, of outputs for `"g2p/test"` and the like, and a signature.

    The figures are WER and PER, or the percentage of SCAN's commands whose actions are right.
    """
    task, split = references.split("/")
    sources, expected = zip(*kt.read_parallel(folder / f"{split}.tsv"), strict=True)
    wer, per = rates(sources, outputs, expected)["mean"]
    figures = {"WER": wer, "PER": per} if task == "g2p" else {"right": round(100 - wer, 2)}
    return {
        "figures": figures,
        "signature": kt.evaluation.score("wer", outputs, expected).signature,
    }


def score(translate, recipe, folder, splits, keep):
    """Returns the rates of each split and search.

    `keep` is called with the split, the search, the outputs and the model.
    """
    found = {}
    for split in splits:
        sources, references = sides_of(recipe, split, folder)
        for search in TASKS[folder.name][2]:
            outputs = translate(sources, **SEARCHES[search])
            found.setdefault(split, {})[search] = rates(sources, outputs, references)
            keep(split, search, outputs, translate.engine.model)
    return found


def keeper(folder, recipe, name, trained):
    """Returns the function that keeps outputs for the test split, of one or several runs."""
    task = folder.name
    references = f"{task}/{pathlib.Path(recipe.data.test[0]).stem}"

    def keep(split, search, outputs, model):
        if split == "test":
            keep_output(
                output_name(task, name, search),
                outputs,
                model,
                references=references,
                scores=kept_scores(references, outputs, folder),
                pages=PAGES[search],
                command=f"python benchmarks/symbols.py {task} --only {' '.join(trained)} --test",
                seed=recipe.training.seed if len(trained) == 1 else None,
            )

    return keep


def compare_exports(run, recipe, folder):
    """Prints how many answers of each export, and of a server over it, are the run's own."""
    translate = kt.load_run(run, model=averaged(run), **SEARCHES["beam 5"])
    sources = [source for source, _ in recipe.data.pairs("test", folder)]
    words = [word for word in sources if word[1:4] in EXPORTED]
    expected = translate(words)
    card = {"source_language": "und", "target_language": "und"}
    saved = kt.export_saved_model(translate, run / "saved", card=card)
    ct2 = kt.export_ctranslate2(translate, run / "ct2", card=card)
    served = tf.saved_model.load(str(saved))
    found = served.serve(tf.constant(words))["translation"].numpy()
    answers = {
        "SavedModel": [text.decode() for text in found],
        "CTranslate2": load_translator(ct2)(words),
    }
    for export in (saved, ct2):
        with Server(export) as server:
            client = Client(server.port)
            answers[f"server of {export.name}"] = [client.translate(word)[1] for word in words]
    for name, found in answers.items():
        equal = sum(one == other for one, other in zip(found, expected, strict=True))
        print(f"{name:20} {equal:,} of {len(words):,} equal the run's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", choices=("g2p", "scan"))
    parser.add_argument("--data", type=pathlib.Path, help="folder of both corpora")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="names of runs")
    parser.add_argument("--test", action="store_true", help="score the test split too")
    parser.add_argument("--exports", metavar="RUN", help="compare the exports of a trained run")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    if arguments.table:
        print(*results_table(), sep="\n")
        return
    if not (arguments.task and arguments.data and arguments.runs):
        parser.error("a task, --data and --runs are required, unless --table is given")
    runs, write, _ = TASKS[arguments.task]
    asked = [*(arguments.only or runs), *([arguments.exports] if arguments.exports else [])]
    if unknown := [name for name in asked if name not in runs]:
        parser.error(f"the runs are {', '.join(runs)}. Received: {unknown[0]}")
    folder = arguments.runs / arguments.task
    folder.mkdir(parents=True, exist_ok=True)
    write(arguments.data, folder)
    if name := arguments.exports:
        recipe = Recipe.load(arguments.task, runs[name])
        compare_exports(folder / name, recipe, folder)
        return
    splits = ["validation", *(["test"] if arguments.test else [])]
    translators = []
    names = arguments.only or list(runs)
    for name in names:
        recipe = Recipe.load(arguments.task, runs[name])
        found = train_run(recipe, folder, folder / name)
        translate = kt.load_run(folder / name, model=averaged(folder / name))
        translators.append(translate)
        keep = keeper(folder, recipe, name, [name])
        write_result("symbols", name, found | score(translate, recipe, folder, splits, keep))
    if len(translators) > 1 and arguments.task == "g2p":
        models = [each.model for each in translators]
        together = kt.Translator(models, *translate.tokenizers)
        keep = keeper(folder, recipe, "g2p-ensemble", names)
        found = score(together, recipe, folder, splits, keep)
        write_result("symbols", "g2p-ensemble", found)


def results_table():
    """Returns the measured runs as lines of Markdown."""
    rows = []
    for name, found in read_results("symbols", [*G2P, "g2p-ensemble", *SCAN]).items():
        when = when_measured(found) if "date" in found else ""
        for split in ("validation", "test"):
            if split in found:
                scores = [found[split].get(name) for name in ("greedy", "beam 5")]
                cells = [f"{v:.2f}" for s in scores for v in (s["mean"] if s else ())]
                cells += [""] * (4 - len(cells))
                rows.append((name, split, *cells, found.get("minutes", ""), when))
    numbers = [f"{rate} {search}" for search in ("greedy", "beam 5") for rate in ("WER", "PER")]
    columns = dict.fromkeys(("run", "split"), TEXT) | dict.fromkeys((*numbers, "minutes"), NUMBER)
    return table({**columns, "measured": TEXT}, rows)


if __name__ == "__main__":
    main()
