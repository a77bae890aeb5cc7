"""Text, a recipe and the run that `train` makes of it, for the tests of the commands."""

import gzip
import sys

import pytest
import yaml
from typer.testing import CliRunner

from keras_transformer.cli import app

CLI = [sys.executable, "-c", "from keras_transformer.__main__ import main; main()"]
RECIPE = {
    "data": {
        "train": ["train.en", "train.de.gz"],
        "validation": ["small.tsv"],
        "test": ["small.tsv"],
    },
    "vocabulary": {"size": 330},
    "model": {
        "preset": "tiny",
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 32,
        "intermediate_dim": 64,
    },
    "training": {"batch_tokens": 2048, "epochs": 2, "warmup_steps": 50},
}


def cli(*words, stdin=b""):
    """In this process, which has TensorFlow already."""
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def succeed(*words, **options):
    """`cli`, for a command that must succeed."""
    ran = cli(*words, **options)
    assert ran.exit_code == 0, ran.stderr
    return ran


def fill(folder):
    """Writes text and the recipe into a folder, and trains `run` in it."""
    from keras_transformer.data.number_corpus import number_names

    english, german = zip(*number_names("train", 1500), strict=True)
    write_lines(folder / "train.en", english)
    with gzip.open(folder / "train.de.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(german) + "\n")
    write_lines(folder / "small.tsv", map("\t".join, number_names("held_out", 20)))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        succeed("train", "recipe.yaml", "--run", "run")


def write_lines(path, lines):
    """Writes a file of text, each line with its end."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def small(folder):
    """The sources and the targets of `small.tsv`."""
    lines = (folder / "small.tsv").read_text("utf-8").splitlines()
    return list(map(list, zip(*(line.split("\t") for line in lines), strict=True)))


def broken(folder, **changes):
    """A recipe with one section changed."""
    recipe = RECIPE | {name: RECIPE[name] | change for name, change in changes.items()}
    path = folder / "broken.yaml"
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    return path
