"""Completion in a shell: the answers that Typer's scripts for bash and zsh ask for."""

import os
import subprocess
import sys

import pytest

from keras_transformer.cli import app, completion
from keras_transformer.runs.recipe import packaged_recipes


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/small", "runs/wide", "alone", "runs/[x]"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    (tmp_path / "served").mkdir()
    for name in ("mine.yaml", "notes.txt"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    "text, folders",
    [
        ("", ["alone"]),
        ("ru", ["runs/[x]", "runs/small", "runs/wide"]),
        ("runs/", ["runs/[x]", "runs/small", "runs/wide"]),
        ("runs/w", ["runs/wide"]),
        ("runs/[", ["runs/[x]"]),
        ("./runs/s", ["runs/small"]),
        ("served", []),
    ],
)
def test_runs_are_folders_with_a_recipe(text, folders):
    assert completion.run_folders(text) == folders


@pytest.mark.parametrize(
    "text, names",
    [
        ("", [*packaged_recipes(), "mine.yaml"]),
        ("m", ["multi30k_en_de", "mine.yaml"]),
        ("n", ["number_names"]),
        ("w", ["wmt_base", "wmt_big"]),
        ("x", []),
    ],
)
def test_recipes_are_packaged_ones_and_yaml_files(text, names):
    assert completion.recipe_names(text) == names


@pytest.fixture
def ask(monkeypatch, capsys):
    """Asks as the scripts of the shells do, by environment variables."""

    def ask(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            app(prog_name="keras-transformer")
        assert ended.value.code == 0
        return capsys.readouterr().out

    return ask


def bash(words):
    words = f"keras-transformer {words}"
    position = str(len(words.split()) - 1)
    script = {"_KERAS_TRANSFORMER_COMPLETE": "complete_bash"}
    return script | {"COMP_WORDS": words, "COMP_CWORD": position}


@pytest.mark.parametrize(
    "words, answer",
    [
        ("translate runs/", ["runs/[x]", "runs/small", "runs/wide"]),
        ("compare alone runs/w", ["runs/wide"]),
        ("train nu", ["number_names"]),
        ("train x --run al", ["alone"]),
        ("comp", ["compare"]),
        ("verify ser", []),  # then bash completes file names
    ],
)
def test_bash_gets_the_words(ask, words, answer):
    assert ask(**bash(words)).split() == answer


def test_zsh_gets_the_words(ask):
    asked = {"_KERAS_TRANSFORMER_COMPLETE": "complete_zsh"}
    said = ask(_TYPER_COMPLETE_ARGS="keras-transformer translate runs/s", **asked)
    assert '"runs/small"' in said and "runs/wide" not in said
    assert "_files" in ask(_TYPER_COMPLETE_ARGS="keras-transformer verify ser", **asked)


PROGRAM = """
import atexit, sys
from keras_transformer.cli import app
slow = {"keras", "numpy", "tensorflow", "matplotlib"}
atexit.register(lambda: print("imported:", *slow & set(sys.modules)))
app(prog_name="keras-transformer")
"""


def test_completion_imports_nothing_that_takes_long():
    words = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(words, env=os.environ | bash("train nu"), capture_output=True, text=True)
    assert ran.stdout == "number_names\nimported:\n", ran.stderr
