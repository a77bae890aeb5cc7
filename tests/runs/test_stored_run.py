"""A run that the version before wrote, with settings that have gone since, goes on in this one.

`stored_run` was trained at commit 4416780; `scores.json` has what that commit scored.
"""

import json
import pathlib
import shutil

import pytest
import yaml

import keras_transformer as kt
from keras_transformer.runs import build
from keras_transformer.runs.recipe import Recipe
from keras_transformer.training.model_state import save_model
from tests.builders import randomize
from tests.cli.small_run import cli, succeed
from tests.session import equal_files_are_one_model  # noqa: F401

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
STORED = pathlib.Path(__file__).parent / "stored_run"
TOKENIZERS = pathlib.Path(__file__).parents[1] / "data" / "stored_tokenizers"
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
    ran = succeed("train", path, "--run", run)
    epochs = [line.split(",")[0] for line in (run / "history.csv").read_text().splitlines()]
    assert len(epochs) == 1 + 3


# {kind of the run: names of the stored tokenizers of source and target}
KINDS = {
    "symbols": ("characters.json", "words.json"),
    "imported": ("marian.model", "marian.model"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_run_with_tokenizers_of_before_translates_and_is_exported(kind, tmp_path):
    pytest.importorskip("ctranslate2")
    (run := tmp_path / "run").mkdir()
    for side, name in zip(("source", "target"), KINDS[kind], strict=True):
        shutil.copy(TOKENIZERS / name, run / f"{side}.model")
        if kind == "imported":
            vocabulary = pathlib.Path(name).with_suffix(".vocabulary.json")
            shutil.copy(TOKENIZERS / vocabulary, run / f"{side}.vocabulary.json")
    recipe = yaml.safe_load((STORED / "config.yaml").read_text("utf-8"))
    sides = {"source": "characters", "target": "words"} if kind == "symbols" else {}
    recipe["vocabulary"] = {"joint": False, **sides}
    tokenizers = [kt.Tokenizer.load(run / f"{side}.model") for side in ("source", "target")]
    special = {n: getattr(tokenizers[0], n) for n in ("pad_token_id", "start_token_id")}
    special |= {n: getattr(tokenizers[0], n) for n in ("end_token_id", "unk_token_id")}
    recipe["model"] |= {"tie_embeddings": "decoder", **special}
    recipe["search"] = {"beam_size": 1, "max_length": 5, "split": "lines"}
    (run / "config.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    config = build.config_of(Recipe.from_dict(recipe), tokenizers)
    save_model(randomize(kt.Transformer(config)), run / "model.keras")
    translator = kt.load_run(run)
    lines = ["twenty-one", "", "two"]
    folder = kt.export_ctranslate2(translator, tmp_path / "ct2")
    assert kt.load_translator(folder, workers=1)(lines) == translator(lines)
    assert translator.tokenizers[0].encode(lines) == tokenizers[0].encode(lines)
