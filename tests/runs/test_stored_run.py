"""A run that the version before wrote, with settings that have gone since, goes on in this one.

`stored_run` was trained at commit 4416780; `scores.json` has what that commit scored.
"""

import json
import pathlib
import shutil

import pytest
import yaml

import keras_transformer as kt
from tests.cli.small_run import cli

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
STORED = pathlib.Path(__file__).parent / "stored_run"
GONE = "config.yaml: copied_tokens, protect_by of `search` has gone: ignored."


@pytest.fixture
def run(tmp_path):
    return shutil.copytree(STORED, tmp_path / "run")


def test_stored_run_scores_and_translates_as_before(run):
    with pytest.warns(UserWarning, match=GONE):
        translator = kt.load_run(run)
    assert translator.text_settings.split == "sentences"
    for row in json.loads((STORED / "scores.json").read_text("utf-8")):
        scored = translator.score(row["source"], row["target"])
        assert scored.score == pytest.approx(row["score"], abs=1e-3)
    assert len(translator(["one %s", "", "two"])) == 3


@pytest.mark.filterwarnings("default")
def test_stored_run_is_evaluated_and_exported(run, tmp_path):
    for words in (
        ["translate", run, "--max-length", 5],
        ["evaluate", run, "--max-length", 5],
        ["export", run, tmp_path / "ct2", "--format", "ctranslate2", "--max-length", 5],
    ):
        ran = cli(*words, stdin=b"one\ntwo %s\n")
        assert ran.exit_code == 0 and GONE in " ".join(ran.stderr.split()), ran.stderr


@pytest.mark.filterwarnings("default")
def test_stored_run_goes_on_training_by_a_recipe_without_what_has_gone(run, tmp_path):
    recipe = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    recipe["training"]["epochs"] = 3
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    ran = cli("train", path, "--run", run)
    assert ran.exit_code == 2 and "`copied_tokens` has gone" in ran.stderr
    del recipe["search"]["protect_by"], recipe["search"]["copied_tokens"]
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    ran = cli("train", path, "--run", run)
    assert ran.exit_code == 0, ran.stderr
    epochs = [line.split(",")[0] for line in (run / "history.csv").read_text().splitlines()]
    assert len(epochs) == 1 + 3
