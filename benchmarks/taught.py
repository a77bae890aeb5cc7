"""Trains three models on Multi30k, lets them learn from their own ensemble, and scores all of them.

    python benchmarks/taught.py --data MULTI30K --runs quality
    python benchmarks/taught.py --data MULTI30K --runs quality --further SOURCES [SOURCES ...]
    python benchmarks/taught.py --table

First, one model a seed: the packaged recipe `multi30k_en_de` with relative positions, an attention
gain, weight decay and 60 epochs. Then their ensemble translates the training text, each line four
times. Last, each of them goes on for three epochs, with these pairs and the original ones. No
setting is chosen by a score of the test split, which is translated when all models are trained.
`--pair de-en` and `en-fr` are the same steps with other files, for which nothing was tuned. The
French files lie in `multi30k_fr` beside MULTI30K; its test split has no references.

`--further` translates other files, without references, by models that were scored before, and
refuses others.

The command may be interrupted: given again, it goes on at the exact batch. The figures of each
model are written to `benchmarks/results/taught`, its translations to `benchmarks/outputs`.
"""

import argparse
import functools
import os
import pathlib
from dataclasses import dataclass

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import multi30k
from kept_outputs import keep_further, keep_output, output_name, weights_sha256
from scored_runs import (
    AVERAGED,
    NUMBER,
    SEARCHES,
    TEXT,
    averaged,
    command_of,
    distil,
    read_results,
    sides_of,
    table,
    train_run,
    when_measured,
    write_result,
)

import keras_transformer as kt
from keras_transformer.runs import Recipe

RECIPE = "multi30k_en_de"
FRENCH = "../multi30k_fr"
PAIRS = {
    "en-de": [],
    "de-en": multi30k.files("lc.norm.tok.de.gz", "lc.norm.tok.en.gz"),
    "en-fr": [
        f"data.train=[train.lc.norm.tok.en.gz, {FRENCH}/train.lc.norm.tok.fr.gz]",
        f"data.validation=[val.lc.norm.tok.en.gz, {FRENCH}/val.lc.norm.tok.fr.gz]",
        "data.test=null",
    ],
}
RELATIVE = [
    "model.positions=relative",
    "model.attention_gain=0.7071",
    "training.weight_decay=0.1",
    "training.epochs=60",
    "training.decay_epochs=60",
]
TEACHES = "--n-best 4 --beam-size 5 --length-penalty mean --alpha 1 --stopping first_beams".split()
TAUGHT = [
    "model.dropout=0.2",
    "training.epochs=3",
    "training.decay_epochs=3",
    "training.learning_rate=0.001",
    "training.warmup_steps=200",
    "training.word_dropout=0",
]
# Which model of a run counts: the average of the last epochs.
LAST = {"relative": AVERAGED, "taught": 1}
SEARCHED = "greedy", "beam 5"


def model_name(pair, kind, which):
    """Returns the name of a model; `which` is a seed or `"ensemble"`."""
    return "-".join([*([pair] if PAIRS[pair] else []), kind, str(which)])


@dataclass(frozen=True)
class Family:
    """Models of one pair of languages and several seeds.

    Attributes:
        pair: name in `PAIRS`.
        seeds: list of ints.
        data: folder of Multi30k.
        runs: folder of the runs.
        settings: further settings of the recipe, as `KEY=VALUE`.
    """

    pair: str
    seeds: list[int]
    data: pathlib.Path
    runs: pathlib.Path
    settings: list[str]

    def name(self, kind, which):
        return model_name(self.pair, kind, which)

    def run(self, kind, seed):
        """Returns the folder of a run."""
        return self.runs / self.name(kind, seed)

    @property
    def command(self):
        """What trains and scores these models."""
        words = ["--pair", self.pair, "--seeds", *map(str, self.seeds)]
        return command_of(["python benchmarks/taught.py", *words], self.settings)

    def recipe(self, seed):
        """Returns the recipe of a model that learns alone."""
        changed = [*PAIRS[self.pair], *RELATIVE, *self.settings, f"training.seed={seed}"]
        return Recipe.load(RECIPE, changed)

    def translators(self):
        """Yields name, seed (of an ensemble `None`) and `Translator` of each model and ensemble."""
        for kind, last in LAST.items():
            models = []
            for seed in self.seeds:
                run = self.run(kind, seed)
                translate = kt.load_run(run, model=averaged(run, last))
                models.append(translate.engine.model)
                yield self.name(kind, seed), seed, translate
            if len(models) > 1:
                ensemble = kt.Translator(models, *translate.tokenizers)
                yield self.name(kind, "ensemble"), None, ensemble


def train(family):
    """Trains what is not trained yet."""
    for seed in family.seeds:
        train_one(family, "relative", seed, family.recipe(seed))
    teachers = [family.run("relative", seed) for seed in family.seeds]
    pairs = family.runs / family.name("pairs", "ensemble")
    recipe_file = distil(teachers, family.data, pairs, TEACHES)
    for seed in family.seeds:
        begins_with = family.run("relative", seed).resolve()
        changed = [*TAUGHT, f"training.init_from={begins_with}", f"training.seed={seed}"]
        train_one(family, "taught", seed, Recipe.load(recipe_file, changed))


def train_one(family, kind, seed, recipe):
    found = train_run(recipe, family.data, family.run(kind, seed))
    add_result(family.name(kind, seed), found)


def score(family):
    """Scores each model, keeps its translations of the test split and what its weights are."""
    recipe = family.recipe(family.seeds[0])
    names = ["validation", *(["test"] if recipe.data.test else [])]
    splits = {name: sides_of(recipe, name, family.data) for name in names}
    for name, seed, translate in family.translators():
        model = translate.engine.model
        found = {"weights_sha256": weights_sha256(model)}
        for split, (sources, references) in splits.items():
            outputs = {search: translate(sources, **SEARCHES[search]) for search in SEARCHED}
            found[split] = bleu_of(outputs, references)
            if split == "test":
                keep(family, f"multi30k/{recipe.data.test[1]}", name, seed, outputs, model)
        add_result(name, found)


def bleu_of(outputs, references):
    """Returns BLEU of each search, and the signature."""
    scores = {
        search: kt.evaluation.bleu(lines, references, tokenized=True)
        for search, lines in outputs.items()
    }
    signatures = {score.signature for score in scores.values()}
    found = {search: round(score.value, 2) for search, score in scores.items()}
    return found | {"signature": signatures.pop()}


def keep(family, references, name, seed, outputs, model):
    """Keeps the translations of the test split by each search."""
    for search, lines in outputs.items():
        keep_output(
            output_name("multi30k", name, search),
            lines,
            model,
            references=references,
            scores=multi30k.kept_scores(references, lines, family.data),
            pages=["results.md"],
            command=family.command,
            seed=seed,
        )


def translate_further(family, files):
    """Keeps translations of files that have no references, by models that were scored before."""
    for name, seed, translate in family.translators():
        scored = result_of(name).get("weights_sha256")
        keep_further(
            name,
            functools.partial(translate, **SEARCHES[multi30k.FURTHER]),
            files,
            search=multi30k.FURTHER,
            model=translate.engine.model,
            scored=scored,
            command=family.command,
            seed=seed,
        )


def result_of(name):
    """Returns the figures that a model has."""
    return read_results("taught", [name]).get(name, {})


def add_result(name, found):
    """Adds figures to those that a model has."""
    write_result("taught", name, result_of(name) | found)


def results_table(pair, seeds):
    """Returns the scored models as lines of Markdown."""
    names = [model_name(pair, kind, which) for kind in LAST for which in (*seeds, "ensemble")]
    rows = []
    for name, found in read_results("taught", names).items():
        splits = (found.get(split, {}) for split in ("validation", "test"))
        scores = [split.get(search) for split in splits for search in SEARCHED]
        cells = ["" if value is None else f"{value:.2f}" for value in scores]
        rows.append((name, *cells, when_measured(found) if "date" in found else ""))
    numbers = [f"{split}: {search}" for split in ("validation", "test") for search in SEARCHED]
    return table({"model": TEXT, **dict.fromkeys(numbers, NUMBER), "trained": TEXT}, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs")
    parser.add_argument("--pair", choices=PAIRS, default="en-de")
    parser.add_argument("--seeds", nargs="+", type=int, default=[14, 15, 16])
    parser.add_argument(
        "--set",
        **{"nargs": "+", "default": [], "metavar": "KEY=VALUE", "dest": "settings"},
        help="settings to change, as training.precision=mixed_bfloat16",
    )
    parser.add_argument("--further", nargs="+", type=pathlib.Path, help="files to translate")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    if not arguments.table:
        if arguments.data is None or arguments.runs is None:
            parser.error("--data and --runs are required, unless --table is given")
        arguments.runs.mkdir(parents=True, exist_ok=True)
        names = "pair", "seeds", "data", "runs", "settings"
        family = Family(*(getattr(arguments, name) for name in names))
        if arguments.further:
            translate_further(family, arguments.further)
        else:
            train(family)
            score(family)
    print(*results_table(arguments.pair, arguments.seeds), sep="\n")


if __name__ == "__main__":
    main()
