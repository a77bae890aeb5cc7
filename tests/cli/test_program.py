"""Version, help and console of the program; the commands `export` and `recipe`."""

import dataclasses
import gzip
import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
import typer
import yaml

from keras_transformer.cli import app
from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.settings import read_yaml
from tests.builders import ROOT
from tests.cli.small_run import cli, small, succeed, write_lines

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

DISTRIBUTION = "keras-seq2seq-transformer"


@pytest.mark.long
def test_export_writes_what_it_names(folder):
    (folder / "lines.en").write_bytes(gzip.compress("\ufeffone\ntwo\u2028three\n".encode()))
    ran = cli("export", "run", "served", "--beam-size", 2, "--examples", "lines.en")
    assert (ran.stdout.strip(), ran.stderr) == ("served", "")
    examples = (folder / "served/examples.jsonl").read_text("utf-8").rstrip("\n").split("\n")
    assert [json.loads(line)["text"] for line in examples] == ["one", "two\u2028three"]
    card = json.loads((folder / "served/model_card.json").read_text("utf-8"))
    assert (card["name"], card["source_language"], card["search"]["beam_size"]) == ("run", "en", 2)
    ran = cli("verify", "served")
    assert ran.stdout.startswith("2 of 2 translations are equal"), ran.stderr
    search = "--alpha", 1.0, "--on-too-long", "error", "--examples", "lines.en"
    ran = cli("export", "run", "ct2", "--format", "ctranslate2", "--quantization", "int8", *search)
    assert ran.stdout.strip() == "ct2" and (folder / "ct2/model.bin").is_file(), ran.stderr
    rules = "length_penalty='mean', stopping='first_beams'"
    first, second = ran.stderr.splitlines()
    assert first == f"CTranslate2 searches by other rules than the run: {rules}"
    assert second.startswith("CTranslate2 translates ") and "2 examples" in second
    card = json.loads((folder / "ct2/model_card.json").read_text("utf-8"))
    assert (card["name"], card["target_language"], card["engine"]) == ("run", "de", "ctranslate2")
    assert (card["search"]["alpha"], card["search"]["on_too_long"]) == (1.0, "error")
    ran = cli("verify", "ct2")
    assert ran.stdout.startswith("2 of 2 translations are equal"), ran.stderr


@pytest.mark.long
def test_export_counts_the_examples_that_ctranslate2_translates_otherwise(folder, tmp_path):
    from keras_transformer import load_run, load_translator

    lines = small(folder)[0]
    write_lines(tmp_path / "some.en", lines)
    words = "--format", "ctranslate2", "--alpha", 0.2, "--examples", tmp_path / "some.en"
    ran = succeed("export", "run", tmp_path / "ct2", *words)
    engine, run = load_translator(tmp_path / "ct2", workers=1), load_run("run", alpha=0.2)
    rules = {"length_penalty": "mean", "stopping": "first_beams"}
    expected = [run(lines), run(lines, beam_size=1), run(lines, **rules)]
    found = [engine(lines), engine(lines, beam_size=1), engine(lines)]
    counts = [sum(map(str.__ne__, *texts)) for texts in zip(expected, found, strict=True)]
    assert counts[0] > 0 == counts[2], "the rules must differ, and nothing else"
    said = " ".join(ran.stderr.split())
    assert f"translates {counts[0]} of {len(lines)} examples otherwise than the run" in said
    assert f"With `--beam-size 1` for both, {counts[1]} differ; with CTranslate2's rules" in said
    assert said.endswith("(`search` of the card), 0.")


def test_recipe_prints_packaged_recipes_that_are_valid():
    names = cli("recipe").stdout.split()
    assert {"multi30k_en_de", "number_names"} <= set(names)
    from keras_transformer.runs.recipe import Recipe

    for name in names:
        assert Recipe.from_dict(read_yaml(cli("recipe", name).stdout)) == Recipe.load(name)


def test_version_is_the_version_of_the_package():
    ran = succeed("--version")
    assert ran.stdout.split() == ["keras-transformer", importlib.metadata.version(DISTRIBUTION)]


COMMANDS = list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command):
    ran = succeed(command, "--help")
    assert f"keras-transformer {command}" in ran.stdout.split("Example")[-1]


ALL = {
    field.name: field.default
    for field in (*dataclasses.fields(SearchSettings), *dataclasses.fields(TextSettings))
    if field.name not in ("processors", "sampler")
}
# How a default begins that is no text or number.
SHOWN = {
    "max_length": "no such limit",
    "suppressed_tokens": "none",
    "max_source_tokens": "data.max_length of a run's recipe",
    "protect": "all names if the vocabulary holds symbols",
    **dict.fromkeys(LANGUAGES, "none"),
}
OF_SCORES = ("length_penalty", "alpha", "max_source_tokens", *LANGUAGES)
# Commands that search -> the settings of a search that they do not take.
LEFT_OUT = {
    "translate": (),
    "export": (),
    "evaluate": ("distinct_texts",),
    "distil": ("distinct_texts", "on_too_long", "split", "protect"),
    "plot": ("distinct_texts", "on_too_long", "split", "protect"),
    "score": ALL.keys() - OF_SCORES,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_search_have_its_settings_with_their_defaults(command):
    parameters = {one.name: one for one in typer.main.get_command(app).commands[command].params}
    taken = ALL.keys() - LEFT_OUT.get(command, ALL.keys())
    own = {"protect"} if command == "serve" else set()
    assert parameters.keys() & ALL.keys() - own == taken
    for name in taken:
        assert parameters[name].default is None, "what is not given is the run's"
        shown = SHOWN.get(name, yaml.safe_dump(ALL[name]).split()[0])
        assert f" [default: the run's, or {shown}" in parameters[name].help
        assert f"--{name.replace('_', '-')}" in parameters[name].opts


EXPORTS = [
    # options -> what is missing in the card, search settings
    ((), ["--source-language CODE --target-language CODE"], {}),
    (("--target-language", "de"), ["--source-language CODE"], {"length_penalty": None}),
    (("--source-language", "en", "--target-language", "de"), [], {"length_ratio": 3.5}),
    ((), ["CODE"], {"extra_length": 7, "distinct_texts": False, "stopping": "first_beams"}),
    ((), ["CODE"], {"max_length": None, "suppressed_tokens": ()}),
]


@pytest.mark.parametrize("languages, advice, settings", EXPORTS)
def test_export_says_what_the_card_lacks(own_run, monkeypatch, languages, advice, settings):
    """Of a run that was trained on one file, whose name tells no language."""
    recipe = yaml.safe_load((own_run / "config.yaml").read_text("utf-8"))
    recipe["data"]["train"] = ["small.tsv"]
    (own_run / "config.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    seen = {}

    def export_saved_model(translator, path, card, **options):
        seen.update(settings=translator.all_settings, card=card)

    name = "keras_transformer.export.saved_model.export_saved_model"
    monkeypatch.setattr(name, export_saved_model)
    words = []
    for key, value in settings.items():
        option = key.replace("_", "-")
        words += [f"--no-{option}"] if value is False else [f"--{option}", value or "none"]
    ran = succeed("export", own_run, "served", *languages, *words)
    assert ran.stderr.count("\n") == len(advice) and all(one in ran.stderr for one in advice)
    given = dict(zip(languages[::2], languages[1::2], strict=True))
    for side in ("source", "target"):
        assert seen["card"][f"{side}_language"] == given.get(f"--{side}-language")
    for key, value in settings.items():
        assert seen["settings"][key] == value


HELP = """
import sys
import keras_transformer.runs.recipe
from keras_transformer.cli import app
for words in (["--help"], *([name, "--help"] for name in sys.argv[1:])):
    app(words, standalone_mode=False)
heavy = {"keras", "numpy", "tensorflow", "jax", "torch", "matplotlib", "sacrebleu"}
print("imported:", *heavy & set(sys.modules))
"""


def test_help_imports_nothing_that_takes_long():
    words = [sys.executable, "-c", HELP, *COMMANDS]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("imported:\n")


LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
}


@pytest.mark.parametrize("name", LOCALES)
def test_output_is_utf8_in_every_locale(name, tmp_path):
    """Where it could not be encoded, `doctor` and `evaluate` ended with an error."""
    (tmp_path / "recipe.yaml").write_text("ü ✓ 五\n", "utf-8")
    code = "from keras_transformer.__main__ import main; main()"
    for words, stream, text in (
        (["recipe", str(tmp_path / "recipe.yaml")], "stdout", "ü ✓ 五\n"),
        (["recipe", "ü ✓ 五"], "stderr", "Error: There is no recipe 'ü ✓ 五'"),
    ):
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | LOCALES[name]
        ran = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, env=environment
        )
        if name != "C" or stream == "stdout":
            assert getattr(ran, stream).decode("utf-8").startswith(text)
        assert b"Traceback" not in ran.stderr
