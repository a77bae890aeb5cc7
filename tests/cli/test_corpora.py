"""A run by the command line from several corpora with weights and tags."""

import pytest
import yaml

from keras_transformer import load_run
from keras_transformer.data.number_corpus import number_names
from tests.cli.small_run import RECIPE, cli, succeed, write_lines

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.long]
PAIRS = list(dict.fromkeys(number_names("train", 300)))


def test_run_of_several_corpora_translates_with_its_tag(tmp_path):
    for name, pairs in (("a", PAIRS), ("b", PAIRS[:50]), ("c", PAIRS[:9])):
        write_lines(tmp_path / f"{name}.tsv", map("\t".join, pairs))
    corpora = [
        {"file": "a.tsv", "tag": "<a>"},
        {"file": "b.tsv", "tag": "<b>", "weight": 3},
        {"file": "c.tsv", "weight": 0},
    ]
    data = {"train": corpora, "validation": {"number_names": "held_out", "size": 20}}
    data |= {"test": ["b.tsv"], "tag": "<b>", "clean": {"identical": True}}
    training = {"batch_tokens": 4096, "epochs": 1, "warmup_steps": 1}
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(RECIPE | {"data": data, "training": training}), "utf-8")
    said = succeed("train", recipe, "--data", tmp_path, "--run", run).stderr
    assert f"a.tsv: {len(PAIRS)} pairs, 1 times an epoch, tag <a>" in said
    assert "b.tsv: 50 pairs, 3 times an epoch, tag <b>" in said
    assert "c.tsv: left out, its weight is 0" in said
    assert "also in `test`: the source of 100 pairs, and 100 pairs" in said
    shown = cli("prepare", recipe, "--data", tmp_path, "--run", run, "--dry-run")
    assert [row for row in said.splitlines() if "times an epoch" in row] == [
        row for row in shown.stdout.splitlines() if "times an epoch" in row
    ]

    translator, line = load_run(run), PAIRS[0][0]
    tag = translator.source_tokenizer.vocabulary.index("<b>")
    assert translator.source_tokenizer.encode(line)[0] == tag
    translated = cli("translate", run, stdin=line.encode())
    assert translated.stdout == f"{translator(line)}\n"
    succeed("evaluate", run, "--data", tmp_path)
    for kind in ("saved_model", "ctranslate2"):
        exported = tmp_path / kind
        succeed("export", run, exported, "--format", kind)
        succeed("verify", exported)
