"""Trains a student of 4+2 layers on what teachers translate, and scores it in 8 bits.

    python benchmarks/distilled.py NAME TEACHER [TEACHER ...] --data MULTI30K --runs quality
    python benchmarks/distilled.py NAME TEACHER [TEACHER ...] --data MULTI30K --runs quality \
        --further SOURCES [SOURCES ...]
    python benchmarks/distilled.py --table

The teachers are runs of Multi30k, of `multi30k.py` or `taught.py`: as an ensemble, they translate
the training text, each line four times. The student begins with layers of `--begin`, a run of the
same width (by default the first teacher), and trains for four epochs on these and the original
pairs. `--longer` prefers longer translations, and passes over the original pairs three times an
epoch. The student is exported to CTranslate2 in 8 bits, and translates without a beam.

`--further` translates files without references, by a student that was scored before. Figures are
written to `benchmarks/results/distilled`, translations of the test split to `benchmarks/outputs`.
"""

import argparse
import os
import pathlib

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import multi30k
import yaml
from kept_outputs import keep_further, keep_output, output_name, read_scores
from scored_runs import (
    NUMBER,
    RESULTS,
    TEXT,
    averaged,
    command_of,
    distil,
    read_results,
    run_command,
    sides_of,
    table,
    train_run,
    when_measured,
    write_result,
)

import keras_transformer as kt
from keras_transformer import load_translator
from keras_transformer.runs import Recipe

SEARCH = "greedy"
LAST = 1  # the last epoch: the loss of the references may be lowest in the first one
TEACHES = "--n-best 4 --beam-size 5 --length-penalty mean --stopping first_beams".split()
ALPHA = {False: "1", True: "2"}  # by `--longer`
ORIGINAL = 3  # passes of `--longer` over the original pairs
STUDENT = [
    "model.num_decoder_layers=2",
    "model.dropout=0.1",
    "training.epochs=4",
    "training.decay_epochs=4",
    "training.learning_rate=0.001",
    "training.warmup_steps=200",
    "training.word_dropout=0",
    "training.label_smoothing=0",
]


def distilled_recipe(teachers, data, output, longer):
    """Lets the teachers translate; returns the path of the recipe that the student learns by."""
    path = distil(teachers, data, output, [*TEACHES, "--alpha", ALPHA[longer]])
    if longer:
        recipe = yaml.safe_load(path.read_text("utf-8"))
        recipe["data"]["train"][0]["weight"] = ORIGINAL
        path.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    return path


def measure(arguments, words):
    """Trains, exports and scores the student, and keeps its translations of the test split."""
    name, data, run = arguments.name, arguments.data, arguments.runs / arguments.name
    pairs = run.with_name(f"{name}-pairs")
    recipe_file = distilled_recipe(arguments.teachers, data, pairs, arguments.longer)
    begins_with = (arguments.begin or arguments.teachers[0]).resolve()
    changed = [*STUDENT, f"training.init_from={begins_with}", *arguments.settings]
    recipe = Recipe.load(recipe_file, changed)
    found = train_run(recipe, data, run)
    translate, model = exported(run), kt.load_model(averaged(run, LAST))
    for split in ("validation", "test"):
        sources, references = sides_of(recipe, split, data)
        outputs = translate(sources)
        bleu = kt.evaluation.bleu(outputs, references, tokenized=True)
        found[split] = {"BLEU": round(bleu.value, 2), "length_ratio": round(bleu.length_ratio, 3)}
    file = f"multi30k/{recipe.data.test[1]}"
    keep_output(
        output_name("multi30k", name, SEARCH),
        outputs,
        model,
        references=file,
        scores=multi30k.kept_scores(file, outputs, data),
        pages=["results.md"],
        command=words,
        seed=recipe.training.seed,
    )
    write_result("distilled", name, found)


def exported(run):
    """Returns the translator of a student's export in 8 bits, which it writes if there is none."""
    folder = run.with_name(f"{run.name}-int8")
    if not folder.exists():
        options = "--format", "ctranslate2", "--quantization", "int8", "--beam-size", "1"
        run_command("export", run, folder, "--model", averaged(run, LAST), *options)
    return load_translator(folder, workers=1)


def translate_further(arguments):
    """Keeps translations of files that have no references, by a student that was scored before."""
    run = arguments.runs / arguments.name
    kept = read_scores().get(output_name("multi30k", arguments.name, SEARCH), {})
    keep_further(
        arguments.name,
        exported(run),
        arguments.further,
        search=SEARCH,
        model=kt.load_model(averaged(run, LAST)),
        scored=kept.get("weights_sha256"),
        command=kept.get("command"),
        seed=kept.get("seed"),
    )


def results_table():
    """Returns the scored students as lines of Markdown."""
    names = sorted(path.stem for path in (RESULTS / "distilled").glob("*.json"))
    splits = "validation", "test"
    rows = []
    for name, found in read_results("distilled", names).items():
        scores = [f"{found[split]['BLEU']:.2f}" for split in splits]
        rows.append((name, *scores, found["updates"], found["minutes"], when_measured(found)))
    numbers = dict.fromkeys((*splits, "updates", "minutes"), NUMBER)
    return table({"student": TEXT, **numbers, "trained": TEXT}, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="of the student")
    parser.add_argument("teachers", nargs="*", type=pathlib.Path, help="runs")
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the student")
    parser.add_argument("--begin", type=pathlib.Path, help="run whose layers it begins with")
    parser.add_argument("--longer", action="store_true", help="teach longer translations")
    parser.add_argument(
        "--set",
        **{"nargs": "+", "default": [], "metavar": "KEY=VALUE", "dest": "settings"},
        help="settings to change, as training.precision=mixed_bfloat16",
    )
    parser.add_argument("--further", nargs="+", type=pathlib.Path, help="files to translate")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    if not arguments.table:
        if not (arguments.name and arguments.teachers and arguments.data and arguments.runs):
            parser.error("NAME, TEACHER, --data and --runs are required, unless --table is given")
        if arguments.further:
            translate_further(arguments)
        else:
            measure(arguments, trained_by(arguments))
    print(*results_table(), sep="\n")


def trained_by(arguments):
    """Returns the command that trains the student, with the names of its runs only."""
    words = ["python benchmarks/distilled.py", arguments.name]
    words += [teacher.name for teacher in arguments.teachers]
    words += ["--begin", arguments.begin.name] if arguments.begin else []
    words += ["--longer"] if arguments.longer else []
    return command_of(words, arguments.settings)


if __name__ == "__main__":
    main()
