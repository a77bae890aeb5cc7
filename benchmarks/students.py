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
import functools
import os
import pathlib
import statistics

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

from decode_peers.timing import in_turns, timed
from scored_runs import NUMBER, SEARCHES, TEXT, sides_of, table

import keras_transformer as kt
from keras_transformer import load_translator
from keras_transformer.runs import Recipe

ALONE = 100  # sentences that are translated alone


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
    recipe = Recipe.load(arguments.recipe)
    sources, references = sides_of(recipe, arguments.split, arguments.data)
    searches = {name: SEARCHES[name] for name in ("greedy", "beam 5")}
    models = {
        f"{folder.name}, CTranslate2": (size(folder), load_translator(folder, workers=1))
        for folder in arguments.folders
    }
    if arguments.run:
        translator = kt.load_run(arguments.run)
        models[f"{arguments.run.name}, Translator"] = (
            size(arguments.run / "model.keras"),
            translator,
        )
    works = {
        (name, search): functools.partial(translate, **options)
        for name, (_, translate) in models.items()
        for search, options in searches.items()
    }
    outputs = {row: work(sources) for row, work in works.items()}
    whole = {row: functools.partial(work, sources) for row, work in works.items()}
    seconds = in_turns(whole, arguments.rounds)
    speeds = {row: len(sources) / statistics.median(each) for row, each in seconds.items()}
    reference = next(speeds[row] for row in works if row[1] == "beam 5")
    cells = []
    for row, work in works.items():
        bleu = kt.evaluation.bleu(outputs[row], references, tokenized=True).value
        one = statistics.median(timed(functools.partial(work, s)) for s in sources[:ALONE])
        numbers = models[row[0]][0], bleu, speeds[row], 1000 * one, speeds[row] / reference
        formats = "{:.1f}", "{:.2f}", "{:,.0f}", "{:.1f}", "{:.1f}"
        cells.append((*row, *map(str.format, formats, numbers)))
    titles = "MB", "BLEU", "sentences/s", "one, ms", "times the teacher"
    columns = dict.fromkeys(("model", "search"), TEXT) | dict.fromkeys(titles, NUMBER)
    print(*table(columns, cells), sep="\n")


if __name__ == "__main__":
    main()
