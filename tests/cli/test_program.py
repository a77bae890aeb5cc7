"""Version, help and console of the program; the commands `export`, `vocabulary` and `recipe`."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import typer

from keras_transformer.cli import app
from keras_transformer.console import console
from tests.cli.small_run import cli

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

DISTRIBUTION = "keras-seq2seq-transformer"


def test_export_and_vocabulary_write_what_they_name(folder):
    (folder / "lines.en").write_text("one\ntwo\n", "utf-8")
    ran = cli("export", "run", "served", "--beam-size", 2, "--examples", "lines.en")
    assert ran.stdout.strip() == "served", ran.stderr
    card = json.loads((folder / "served/model_card.json").read_text("utf-8"))
    assert (card["name"], card["source_language"], card["search"]["beam_size"]) == ("run", "en", 2)
    ran = cli("verify", "served")
    assert ran.stdout.startswith("2 of 2 translations are equal"), ran.stderr
    ran = cli("export", "run", "ct2", "--format", "ctranslate2", "--quantization", "int8")
    assert ran.stdout.strip() == "ct2" and (folder / "ct2/model.bin").is_file(), ran.stderr
    ran = cli("vocabulary", "train.*", "--size", 300, "--output", "joint.model")
    assert ran.stdout.strip() == "joint.model: 300 tokens", ran.stderr


def test_recipe_prints_packaged_recipes_that_are_valid():
    names = cli("recipe").stdout.split()
    assert {"multi30k_en_de", "number_names"} <= set(names)
    from keras_transformer.runs.recipe import Recipe

    for name in names:
        assert Recipe.from_yaml(cli("recipe", name).stdout) == Recipe.load(name)


def test_text_is_shown_as_it_is(capsys):
    """Also text that looks like markup of the console."""
    console.print("[b]one[/b] -> [/i] :smile:")
    assert capsys.readouterr().err == "[b]one[/b] -> [/i] :smile:\n"


def test_version_is_the_version_of_the_package():
    ran = cli("--version")
    assert ran.exit_code == 0
    assert ran.stdout.split() == ["keras-transformer", importlib.metadata.version(DISTRIBUTION)]


COMMANDS = list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command):
    ran = cli(command, "--help")
    assert ran.exit_code == 0
    assert f"keras-transformer {command}" in ran.stdout.split("Example")[-1]


HELP = """
import sys
from keras_transformer.cli import app
for words in (["--help"], *([name, "--help"] for name in sys.argv[1:])):
    app(words, standalone_mode=False)
print("imported:", *{"keras", "numpy", "tensorflow", "matplotlib"} & set(sys.modules))
"""


def test_help_imports_nothing_that_takes_long():
    words = [sys.executable, "-c", HELP, *COMMANDS]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("imported:\n")
