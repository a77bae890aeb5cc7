"""Compares students with their teacher: quality, speed and size, by greedy search and beam 5.

    python benchmarks/students.py multi30k_en_de TEACHER TEACHER_INT8 STUDENT STUDENT_INT8 \
        --data MULTI30K [--run STUDENT_RUN]

Each model is a folder that `export --format ctranslate2` wrote, the teacher first, in float32; the
last column divides by its speed with beam 5. `--run` adds a row of our own `Translator`. BLEU is
that of the recipe's text, tokenized, on one split: `validation` to choose, `--split test` at the
end. One core; the speeds are medians of some rounds, in each of which every model translates the
whole split, in turns. "One" is the median of sentences that are translated alone.
"""

import argparse
import os
import pathlib
import statistics
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

from scored_runs import NUMBER, SEARCHES, TEXT, table

import keras_transformer as kt
from keras_transformer.cli.progress import sentence_progress
from keras_transformer.decoding import CTranslate2Translator
from keras_transformer.runs import Recipe

ALONE = 100  # sentences that are translated alone


def seconds(function, *arguments, **options):
    """Returns the seconds of a call, and its result."""
    began = time.perf_counter()
    found = function(*arguments, **options)
    return time.perf_counter() - began, found


def size(path):
    """Returns the megabytes of a folder's model, or of a file."""
    return (path / "model.bin" if path.is_dir() else path).stat().st_size / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="recipe of the data")
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="the teacher's first")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--run", type=pathlib.Path, help="run that our Translator translates")
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    pairs = Recipe.load(arguments.recipe).data.pairs(arguments.split, arguments.data)
    sources, references = map(list, zip(*pairs, strict=True))
    searches = {name: SEARCHES[name] for name in ("greedy", "beam 5")}
    models = {}
    for folder in arguments.folders:
        name = f"{folder.name}, CTranslate2"
        models[name] = size(folder), CTranslate2Translator(folder, workers=1)
    if arguments.run:
        name = f"{arguments.run.name}, Translator"
        models[name] = size(arguments.run / "model.keras"), kt.load_run(arguments.run)
    rows = [(name, search) for name in models for search in searches]
    speeds, outputs, alone = {row: [] for row in rows}, {}, {row: [] for row in rows}
    with sentence_progress(len(rows) * (arguments.rounds + 1) * len(sources)) as progress:
        for number in range(arguments.rounds + 1):
            for row in rows:
                name, search = row
                translate = models[name][1]
                taken, outputs[row] = seconds(translate, sources, **searches[search])
                progress(len(sources))
                if number:  # the first round warms up
                    speeds[row].append(len(sources) / taken)
                    part = sources[: ALONE // arguments.rounds]
                    alone[row] += [seconds(translate, s, **searches[search])[0] for s in part]
    reference = statistics.median(speeds[rows[0][0], "beam 5"])
    cells = []
    for row in rows:
        speed = statistics.median(speeds[row])
        bleu = kt.evaluation.bleu(outputs[row], references, tokenized=True).value
        numbers = f"{bleu:.2f}", f"{speed:,.0f}", f"{1000 * statistics.median(alone[row]):.1f}"
        cells.append(
            (row[0], row[1], f"{models[row[0]][0]:.1f}", *numbers, f"{speed / reference:.1f}")
        )
    titles = "MB", "BLEU", "sentences/s", "one, ms", "times the teacher"
    columns = dict.fromkeys(("model", "search"), TEXT) | dict.fromkeys(titles, NUMBER)
    print(*table(columns, cells), sep="\n")


if __name__ == "__main__":
    main()
