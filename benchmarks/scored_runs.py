"""Trains runs, scores them by BLEU, keeps the figures: for `ladder.py` and `multi30k.py`."""

import csv
import json
import pathlib
import statistics
import subprocess
import sys

from stamp import stamp

import keras_transformer as kt
from keras_transformer.atomic_file import write_text
from keras_transformer.runs import RunFolder, Trainer, average_run

RESULTS = pathlib.Path(__file__).parent / "results"
AVERAGED = 10
TEXT, NUMBER = "---", "---:"  # kinds of columns in Markdown
SEARCHES = {
    "greedy": {"beam_size": 1},
    # The paper's, and that of the published 41.02: log-probs / length.
    "beam 4": {"beam_size": 4},
    "beam 5": {
        **{"beam_size": 5, "length_penalty": "mean", "alpha": 1.0},
        **{"stopping": "first_beams"},
    },
}


def train_run(recipe, data, run):
    """Trains a run to its end; an interrupted one goes on, and a finished one is left alone.

    Args:
        recipe: `Recipe`.
        data: folder of the data.
        run: path of the run's folder.

    Returns:
        dict of figures: the losses of each epoch, the time, and when and where the run started.
        `"minutes"` are target tokens divided by the median speed of the epochs: neither validation
        nor checkpoints are in them.
    """
    started = start_of(run)
    trainer = Trainer(recipe, data, run)
    if not trainer.finished:
        trainer.train()
    folder = RunFolder(run)
    with open(folder.history_file, newline="") as file:
        history = list(csv.DictReader(file))
    speed = statistics.median(float(epoch["tokens_per_second"]) for epoch in history)
    losses, curve, perplexities = (
        [round(float(epoch[name]), 4) for epoch in history]
        for name in ("loss", "val_loss", "val_perplexity")
    )
    tokens = trainer.stream(trainer.tokenizers()).report.target_tokens * len(history)
    report = folder.report()
    return started | {
        "epochs": len(history),
        "updates": report["updates"],
        "parameters": report["parameters"],
        "target_tokens": tokens,
        "tokens_per_second": round(speed),
        "minutes": round(tokens / speed / 60),
        "training_loss_of_epochs": losses,
        "validation_loss": min(curve),
        "validation_perplexity": min(perplexities),
        "validation_loss_of_epochs": curve,
    }


def run_command(*words):
    """Runs a command of this package; raises an error if it fails."""
    subprocess.run([sys.executable, "-m", "keras_transformer", *map(str, words)], check=True)


def distil(teachers, data, output, options):
    """Lets runs translate the training text, as an ensemble.

    Args:
        teachers: paths of the runs; the recipe is that of the first.
        data: folder of the data.
        output: path without an ending, of the files to write.
        options: list of options of the command `distil`.

    Returns:
        path of the recipe with the pairs as one more corpus.
    """
    files = [teachers[0] / "config.yaml", *teachers, "--data", data, "--output", output]
    run_command("distil", *files, *options)
    return output.with_name(f"{output.name}.yaml")


def start_of(run):
    """Returns the `stamp` of a run's start, which a file beside its folder keeps."""
    file = run.with_name(f"{run.name}.json")
    if not run.exists():
        write_text(file, json.dumps(stamp()))
    return json.loads(file.read_text("utf-8"))


def score_run(recipe, data, run, splits, searches=tuple(SEARCHES), tokenized=True, keep=None):
    """Scores the last checkpoint and the average of the last `AVERAGED`.

    Args:
        recipe, data, run: as in `train_run`, of a finished run.
        splits: `"validation"`, `"test"` or both.
        searches: names in `SEARCHES`.
        tokenized: whether the text is tokenized; else BLEU tokenizes it by `13a`.
        keep: function of a column of the scores, the translations of the test split and the model,
            or `None`.

    Returns:
        dict: split -> `"beam 5 of last 10"` and the like -> BLEU, `"signature"`, and
        `"length_ratios"`, by the same names.
    """
    texts = {split: sides_of(recipe, split, data) for split in splits}
    scores = {split: {"length_ratios": {}} for split in splits}
    for last in (1, AVERAGED):
        model = averaged(run, last)
        for name in searches:
            translate = kt.load_run(run, model=model, **SEARCHES[name])
            for split, (sources, references) in texts.items():
                translations = translate(sources)
                bleu = kt.evaluation.bleu(translations, references, tokenized=tokenized)
                column = f"{name} of last {last}"
                if split == "test" and keep is not None:
                    keep(column, translations, translate.engine.model)
                scores[split] |= {column: round(bleu.value, 2), "signature": bleu.signature}
                scores[split]["length_ratios"][column] = round(bleu.length_ratio, 3)
    return scores


def sides_of(recipe, split, data):
    """Returns the sources and the references of a split, as two lists."""
    return [list(side) for side in zip(*recipe.data.pairs(split, data), strict=True)]


def command_of(words, settings):
    """Returns a command with the changed settings of its recipe, as text."""
    return " ".join([*words, *(["--set", *settings] if settings else [])])


def write_pairs(path, pairs):
    """Writes a corpus: a source, a tab and its target on each line."""
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")


def averaged(run, last=AVERAGED):
    """Averages the last epochs of a run; returns the path of the model."""
    path = pathlib.Path(run) / f"last{last}.keras"
    average_run(run, path, last=last)
    return path


def write_result(part, name, result):
    """Keeps the figures of a run, a dict of JSON."""
    path = RESULTS / part / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"run": name} | result, indent=2) + "\n")


def read_results(part, names):
    """Returns the figures that are kept, by name and in the order of the names."""
    paths = {name: RESULTS / part / f"{name}.json" for name in names}
    return {name: json.loads(p.read_text("utf-8")) for name, p in paths.items() if p.exists()}


def table(columns, rows):
    """Returns a table as lines of Markdown.

    Args:
        columns: dict: title -> `TEXT` or `NUMBER`.
        rows: iterables of cells.
    """
    return [f"| {' | '.join(map(str, cells))} |" for cells in (columns, columns.values(), *rows)]


def when_measured(found):
    """Returns date, commit and number of cores of a result, as text."""
    cores = "1 core" if found["cores"] == 1 else f"{found['cores']} cores"
    return f"{found['date']}, {found['commit']}, {cores}"
