"""The commands `vocabulary`, which reads every file only once, and `prepare`."""

import os
import threading
from pathlib import Path

import pytest
import yaml

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from tests.cli.small_run import cli, succeed


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """`a.en` and `a.de` in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("a.en").write_text("half an hour\n" * 30, "utf-8")
    Path("a.de").write_text("½ Stunde\n" * 10 + "eine halbe Stunde\n" * 20, "utf-8")


def vocabulary(*words):
    return cli("vocabulary", *words, "--size", 280, "--output", "m")


@pytest.mark.parametrize("rule", ["nfc", "nfkc"])
def test_vocabulary_warns_of_text_that_it_changes(rule):
    ran = vocabulary("a.en", "a.de", "--normalization", rule)
    assert ran.exit_code == 0 and ran.stdout == "m: 280 tokens\n", ran.stderr
    warnings = [line for line in ran.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == (rule == "nfkc")
    for warning in warnings:
        assert "16.7% of the a.en, a.de lines (10 of 60)" in warning
        assert warning.count("'½ Stunde' -> '1⁄2 Stunde'") == 3


def test_vocabulary_has_tags_and_symbols_for_protected_text():
    ran = vocabulary(
        "a.en", "a.de", "--tag", "<a>", "--tag", "<b>", "--tag", "<a>", "--protected-symbols", 2
    )
    assert ran.exit_code == 0, ran.stderr
    tokens = Tokenizer.load("m").vocabulary
    assert {"<a>", "<b>", "⟦1⟧", "⟦2⟧"} <= {*tokens}
    assert Tokenizer.load("m", "<b>").encode("half")[0] == tokens.index("<b>")
    ran = vocabulary("a.en", "--tag", "news")
    assert ran.exit_code == 2 and "`--tag` must be a name in angle brackets" in ran.stderr


def test_prepare_refuses_a_tag_that_the_vocabulary_lacks_before_it_reads():
    assert vocabulary("a.en", "a.de", "--tag", "<a>").exit_code == 0
    train = [{"source": "a.en", "target": "a.de", "tag": "<b>"}]
    recipe = {"data": {"train": train, "tag": "<b>"}, "vocabulary": {"files": ["m"]}}
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    ran = cli("prepare", "recipe.yaml", "--run", "run")
    assert ran.exit_code == 2 and "Received: tag='<b>'" in ran.stderr
    assert "Counting" not in ran.stderr and not Path("run").exists()


def test_vocabulary_reads_a_pipe_once():
    os.mkfifo("pipe")
    text = Path("a.de").read_bytes()
    threading.Thread(target=lambda: Path("pipe").write_bytes(text), daemon=True).start()
    ran = vocabulary("pipe", "a.en")
    assert ran.stdout == "m: 280 tokens\n", ran.stderr


def test_vocabulary_names_the_files_without_text():
    Path("a.en").write_text(" \n")
    Path("a.de").write_text("")
    ran = vocabulary("a.en", "a.de")
    assert ran.exit_code == 2
    assert ran.stderr.startswith("Error: There must be a line of text")
    assert "a.en, a.de" in ran.stderr


def test_prepare_builds_the_store_that_train_uses():
    recipe = {"data": {"train": ["a.en", "a.de"]}, "vocabulary": {"size": 280}}
    Path("mine.yaml").write_text(yaml.safe_dump(recipe))
    said = cli("prepare", "mine.yaml", "--dry-run").stdout
    assert said == "30 pairs: a store of about 0.0 MB in runs/mine/tokens\n"
    assert not Path("runs").exists()
    ran = cli("prepare", "mine.yaml")
    assert (ran.exit_code, ran.stdout) == (0, said), ran.stderr
    (store,) = Path("runs/mine/tokens").iterdir()
    before = store.stat().st_ctime_ns
    listed = cli("prepare", "mine.yaml", "--list").stdout
    assert listed == f"{store.name}  30 pairs, 0.0 MB, of a.en | a.de\n"
    lines = []
    trainer = Trainer(Recipe.load("mine.yaml"), ".", "runs/mine", print_fn=lines.append)
    assert trainer.stream(trainer.tokenizers()).report.pairs_read == 30
    assert lines == [f"Tokens of `train`: {store.parent}"] and store.stat().st_ctime_ns == before
    refused = cli("prepare", "mine.yaml", "--remove", "other")
    assert refused.exit_code == 2 and "`--remove` must name a store in" in refused.stderr
    succeed("prepare", "mine.yaml", "--remove", store.name)
    assert not store.exists()


def test_size_without_room_for_a_character_is_refused_by_the_option():
    ran = cli("vocabulary", "a.en", "--size", 260, "--output", "m")
    assert ran.exit_code == 2 and "--size" in ran.stderr and "261" in ran.stderr
