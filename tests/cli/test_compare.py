"""`compare`: runs are folders written by hand, so nothing here trains or imports TensorFlow."""

import json
import subprocess
import sys

import pytest
import yaml
from sacrebleu.metrics import BLEU
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


def test_picture_has_the_curves_of_all_runs(write_run, in_folder, monkeypatch):
    from keras_transformer import plotting

    drawn, draw = {}, plotting.plot_histories
    monkeypatch.setattr(plotting, "plot_histories", lambda h: drawn.update(h) or draw(h))
    runs = write_run("one"), write_run("two"), write_run("new", history="")
    ran = compare(*runs, "--output", "curves.png")
    assert ran.exit_code == 0 and ran.stdout.splitlines()[-1] == "curves.png", ran.stderr
    assert (in_folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {name: path.read_text() for name, path in drawn.items()} == dict.fromkeys(
        ("one", "two"), HISTORY
    )


REFERENCES = [f"der Mann Nummer {n} schläft heute lange im Park" for n in range(40)]


@pytest.fixture
def files(in_folder):
    """References, good translations and bad ones, and the sources: the test split."""
    good = [line.replace("lange", "kurz") for line in REFERENCES]
    bad = [line.replace("schläft heute", "ist nie") for line in REFERENCES]
    for name, lines in (("good", good), ("bad", bad)):
        (in_folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    pairs = "".join(f"source\t{line}\n" for line in REFERENCES)
    (in_folder / "test.tsv").write_text(pairs, "utf-8")
    return {"good": good, "bad": bad}


def test_translations_are_compared_with_those_of_the_first_run(write_run, files):
    runs = write_run("one"), write_run("two"), write_run("three")
    given = [word for name in ("bad", "good", "bad") for word in ("--translations", name)]
    ran = compare(*runs, *given)
    assert ran.exit_code == 0, ran.stderr
    bad, good = (BLEU().corpus_score(files[name], [REFERENCES]).score for name in ("bad", "good"))
    assert f"\none\nBLEU {bad:.2f} (" in ran.stdout and f"\ntwo\nBLEU {good:.2f} (" in ran.stdout
    assert ran.stdout.count("\nWER 100.00 (nrefs:1|case:mixed|symbol:line|") == 3
    two, three = ran.stdout.split(" against one, paired bootstrap:\n")[1:]
    assert "\nPER 11.11, baseline 22.22: -11.11 (less is better), p = 0.001" in two
    assert two.startswith(f"BLEU {good:.2f}, baseline {bad:.2f}: +{good - bad:.2f}, p = 0.001")
    assert three.startswith(f"BLEU {bad:.2f}, baseline {bad:.2f}: +0.00, p = 1.000")


@pytest.mark.parametrize("line, has_bleu", [("eins", False), ("Ja, das stimmt.", True)])
def test_lines_with_too_few_tokens_for_bleu_are_not_compared_by_it(
    write_run, in_folder, line, has_bleu
):
    """Punctuation marks are tokens: the second line has five."""
    (in_folder / "test.tsv").write_text(f"source\t{line}\n")
    (in_folder / "out").write_text(f"{line}\n")
    ran = compare(write_run("one"), write_run("two"), *["--translations", "out"] * 2)
    assert ran.exit_code == 0 and "exact match 1.0000" in ran.stdout
    assert ("BLEU is not computed" in ran.stdout) != has_bleu
    assert ("BLEU 100.00, baseline 100.00: +0.00, p = 1.000" in ran.stdout) == has_bleu


MISTAKES = {
    "one run": (["one"], "two or more different runs"),
    "a run twice": (["one", "./one"], "two or more different runs"),
    "no run": (["one", "nowhere"], "There is no run in 'nowhere'"),
    "one file for two runs": (["one", "two", "--translations", "good"], "once for each run"),
    "files and --translate": (
        ["one", "two", *["--translations", "good"] * 2, "--translate"],
        "without `--translate`",
    ),
    "file of another length": (
        ["one", "two", *["--translations", "short"] * 2],
        "a translation for each of the 40 lines. Received: short, with 1 lines",
    ),
    "other test split": (["one", "other", "--translate"], "the same `test` split"),
    "no folder for the picture": (["one", "two", "--output", "no/curves.png"], "no folder 'no'"),
    "no curves": (["new", "newer", "--output", "curves.png"], "no curves to draw"),
    "damaged history": (["one", "damaged"], "damaged/history.csv is damaged"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_in_one_clear_line_and_exit_code_2(write_run, files, in_folder, mistake):
    for name in ("one", "two"):
        write_run(name)
    write_run("other", data=RECIPE["data"] | {"test": ["else.tsv"]})
    for name in ("new", "newer"):
        write_run(name, history="")
    write_run("damaged", history="epoch,loss\n0,x\n")
    (in_folder / "short").write_text("eins\n")
    words, named = MISTAKES[mistake]
    ran = compare(*words)
    assert ran.exit_code == 2 and named in ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1


def test_missing_matplotlib_is_an_error_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = compare("nowhere", "elsewhere", "--output", "curves.png")
    assert ran.exit_code == 2 and "Pictures need matplotlib: pip install" in ran.stderr


PROGRAM = """
import sys
from keras_transformer.cli import app
words = ["compare", "one", "two", "--translations", "good", "--translations", "bad"]
app(words, standalone_mode=False)
print("imported:", *{"keras", "tensorflow", "matplotlib"} & set(sys.modules))
"""


def test_comparison_imports_no_tensorflow(write_run, files):
    write_run("one")
    write_run("two")
    words = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("imported:\n") and "paired bootstrap" in ran.stdout
