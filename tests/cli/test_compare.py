"""`compare`: runs are folders written by hand, so nothing here trains or imports TensorFlow."""

import json
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from keras_transformer.cli import app
from keras_transformer.runs.recipe import Recipe

RECIPE = {"data": {"train": ["a.tsv"], "validation": ["b.tsv"], "test": ["test.tsv"]}}
# The best epoch is the second one by `val_loss`, and the third one by `val_bleu`.
HISTORY = """epoch,loss,val_loss,val_bleu,gradient_norm
0,5.25,4.5,,1.0
1,3.125,2.5,10.5,1.0
2,2.0625,2.75,12.25,1.0
"""
REPORT = {"updates": 30, "parameters": 12345, "tokens_per_second": 678, "seconds": 90.4}
SIGNATURE = "nrefs:1|tok:13a|version:2.6.0"


def scores(value, signature=SIGNATURE):
    return {
        "BLEU": {"name": "BLEU", "value": value, "signature": signature, "length_ratio": 1.0},
        "exact_match": 0.5,
        "search": {"beam_size": 4, "alpha": 0.6},
    }


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write_run(tmp_path):
    def write(name, history=HISTORY, report=REPORT, **sections):
        run = tmp_path / name
        run.mkdir()
        recipe = Recipe.from_dict(RECIPE | sections)
        (run / "config.yaml").write_text(recipe.to_yaml(), "utf-8")
        (run / "history.csv").write_text(history, "utf-8")
        (run / "report.json").write_text(json.dumps(report), "utf-8")
        (run / "model.keras").touch()
        return name

    return write


def compare(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def tables(text):
    """{title: {section: {key: [values]}}}; no value holds two spaces."""
    found = {}
    for block in text.split("\n\n"):
        heading, *rows = block.splitlines()
        keys = {}
        sections = found[heading.split("  ")[0].strip()] = {}
        for row in rows:
            key, *values = [cell.strip() for cell in row.strip().split("  ") if cell.strip()]
            if row.startswith("  "):
                keys[key] = values
            else:
                keys = sections[key] = {}
    return found


def test_settings_that_differ_are_those_that_change_what_is_trained(write_run):
    fields = Recipe.from_dict(RECIPE | {"model": {"preset": "tiny"}}).model_config(8).to_dict()
    fields = {n: v for n, v in fields.items() if "vocabulary" not in n}
    one = write_run("one", model={"preset": "tiny"})
    same = write_run("same", model=fields)
    assert "All settings are the same." in compare(one, same).stdout
    split = {"number_names": "train", "size": 5}
    training = {"learning_rate": 1e-5, "patience": 3}
    other = write_run(
        *("other", HISTORY, REPORT),
        data=RECIPE["data"] | {"train": split},
        model={"preset": "tiny", "dropout": 0.1},
        training=training,
    )
    ran = compare(one, same, other)
    assert ran.exit_code == 0, ran.stderr
    found = tables(ran.stdout)["settings that differ"]
    for keys in found.values():
        keys |= {key: list(map(yaml.safe_load, values)) for key, values in keys.items()}
    assert found == {
        "data": {"train": [["a.tsv"], ["a.tsv"], split]},
        "model": {"dropout": [0.3, 0.3, 0.1]},
        "training": {"learning_rate": [None, None, 1e-5], "patience": [None, None, 3]},
    }


def test_figures_are_those_of_the_files(write_run):
    bleu = {"translation_sample": 5, "monitor": "val_bleu"}
    runs = write_run("one"), write_run("two", training=bleu), write_run("three", report={})
    figures = tables(compare(*runs).stdout)["figures"]
    assert figures["run"] == {
        "finished": ["yes", "yes", "no"],
        "epochs": ["3", "3", "3"],
        "updates": ["30", "30", "-"],
        "parameters": ["12,345", "12,345", "-"],
        "tokens_per_second": ["678", "678", "-"],
        "seconds": ["90", "90", "-"],
    }
    assert figures["best epoch"] == {
        "epoch": ["2", "3", "2"],
        "loss": ["3.1250", "2.0625", "3.1250"],
        "val_loss": ["2.5000", "2.7500", "2.5000"],
        "val_bleu": ["10.5000", "12.2500", "10.5000"],
    }
    last = {"epoch": "3", "loss": "2.0625", "val_loss": "2.7500", "val_bleu": "12.2500"}
    assert figures["last epoch"] == {name: [value] * 3 for name, value in last.items()}


def test_run_without_a_recipe_or_a_finished_epoch_is_compared_as_far_as_it_goes(
    write_run, in_folder
):
    runs = write_run("one"), write_run("new", history="", report={})
    (in_folder / "kept").mkdir()
    (in_folder / "kept" / "history.csv").write_text("epoch,loss\n0,4.5\n1,3.5\n")
    ran = compare(*runs, "kept")
    assert ran.exit_code == 0, ran.stderr
    assert "All settings are the same." in ran.stdout and "kept has no recipe" in ran.stdout
    best = tables(ran.stdout)["figures"]["best epoch"]
    assert best["loss"] == ["3.1250", "-", "3.5000"] and best["epoch"] == ["2", "-", "2"]


def test_scores_are_compared_only_if_their_signatures_are_equal(write_run):
    one = write_run("one", report=REPORT | scores(20.5))
    two = write_run("two", report=REPORT | scores(21.25))
    three = write_run("three", report=REPORT | scores(22.0, "nrefs:1|tok:none|version:2.6.0"))
    ran = compare(one, two)
    assert tables(ran.stdout)["figures"]["scores"]["BLEU"] == ["20.5000", "21.2500"]
    assert ran.stdout.splitlines()[-1] == f"BLEU: {SIGNATURE}"
    *_, warning, first, second = compare(one, three).stdout.splitlines()
    assert warning == "BLEU: do not compare the values, their signatures differ."
    assert first.split() == ["one:", SIGNATURE] and "tok:none" in second


def test_search_settings_of_scores_are_settings_too(write_run):
    one, wide = scores(20.5), scores(21.0)
    wide["search"] = {"beam_size": 8, "alpha": 0.6}
    runs = write_run("one", report=REPORT | one), write_run("wide", report=REPORT | wide)
    assert tables(compare(*runs).stdout)["settings that differ"] == {
        "search": {"beam_size": ["4", "8"]}
    }


MISTAKES = {
    "one run": (["one"], "two or more different runs"),
    "a run twice": (["one", "./one"], "two or more different runs"),
    "no run": (["one", "nowhere"], "There is no run in 'nowhere'"),
    "damaged history": (["one", "damaged"], "damaged/history.csv is damaged"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_in_one_clear_line_and_exit_code_2(write_run, mistake):
    write_run("one")
    write_run("damaged", history="epoch,loss\n0,x\n")
    words, named = MISTAKES[mistake]
    ran = compare(*words)
    assert ran.exit_code == 2 and named in ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1


PROGRAM = """
import sys
from keras_transformer.cli import app
app(["compare", "one", "two"], standalone_mode=False)
print("imported:", *{"keras", "tensorflow", "matplotlib"} & set(sys.modules))
"""


def test_comparison_imports_no_tensorflow(write_run):
    write_run("one")
    write_run("two")
    words = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("imported:\n")
