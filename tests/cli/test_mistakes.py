"""Every user error on the command line."""

import shutil

import pytest

from tests.cli.small_run import broken, cli

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def run_with(folder, name, content):
    """A copy of the run in which a file holds something else."""
    run = folder / "broken run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / "run", run)
    whole = (run / name).read_bytes()
    (run / name).write_bytes(content(whole) if callable(content) else content)
    return run


MISTAKES = {
    "empty data": (
        lambda f: ["train", broken(f, data={"train": ["empty.en", "empty.de"]}), "--run", "r"],
        ["`train`", "empty.en, ", "empty.de"],
    ),
    "empty test": (
        lambda f: ["evaluate", "run", "--source", "empty.en", "--reference", "empty.de"],
        ["empty.en"],
    ),
    "text for a recipe": (lambda f: ["train", "train.en"], ["train.en", "`data`", "YAML"]),
    "data for a recipe": (lambda f: ["train", "train.de.gz"], ["train.de.gz", "UTF-8"]),
    "empty recipe of a run": (
        lambda f: ["train", "recipe.yaml", "--run", run_with(f, "config.yaml", b"")],
        ["broken run/config.yaml", "nothing"],
    ),
    "damaged report": (
        lambda f: ["evaluate", run_with(f, "report.json", b'{"updates": 3')],
        ["broken run/report.json", "Delete it"],
    ),
    "half a model": (
        lambda f: ["translate", run_with(f, "model.keras", lambda whole: whole[:-100])],
        ["broken run/model.keras", "complete"],
    ),
    "no recipe": (lambda f: ["train", "nowhere.yaml"], ["nowhere.yaml", "number_names"]),
    "no data": (
        lambda f: ["train", "recipe.yaml", "--data", "/no", "--run", "r"],
        ["/no/train.en"],
    ),
    "unknown key": (lambda f: ["train", broken(f, training={"bach_tokens": 5})], ["bach_tokens"]),
    "wrong type": (lambda f: ["train", broken(f, training={"epochs": "x"})], ["epochs", "'x'"]),
    "wrong size": (lambda f: ["train", broken(f, model={"num_heads": 3})], ["num_heads=3"]),
    "unequal files": (
        lambda f: ["train", broken(f, data={"train": ["train.en", "short.de"]}), "--run", "r"],
        ["short.de", "train.en"],
    ),
    "invalid utf-8": (
        lambda f: ["train", broken(f, data={"train": ["bad.tsv"]}), "--run", "r"],
        ["bad.tsv", "line 2"],
    ),
    "other recipe": (
        lambda f: ["train", broken(f, training={"warmup_steps": 7}), "--run", "run"],
        ["another recipe"],
    ),
    "a changed key that is unknown": (
        lambda f: ["train", "recipe.yaml", "--set", "training.bach_tokens=5"],
        ["recipe.yaml with training.bach_tokens=5", "'batch_tokens'"],
    ),
    "a changed key that needs a new run": (
        lambda f: ["train", "recipe.yaml", "--run", "run", "--set", "training.warmup_steps=7"],
        ["another recipe: training.warmup_steps is 50 there, 7 here.", "--no-resume"],
    ),
    "a changed key without a section": (
        lambda f: ["doctor", "recipe.yaml", "--set", "epochs=5"],
        ["SECTION.KEY=VALUE", "'epochs=5'"],
    ),
    "no file to translate": (
        lambda f: ["translate", "run", "--input", "no.en"],
        ["`--input`", "no.en"],
    ),
    "a folder to translate": (lambda f: ["translate", "run", "--input", "run"], ["'run'"]),
    "no folder to translate into": (
        lambda f: ["translate", "run", "--input", "train.en", "--output", "nodir/out"],
        ["nodir", "--output"],
    ),
    "no run": (lambda f: ["translate", "no_run"], ["no_run", "no trained model"]),
    "no run to average": (lambda f: ["average", "no_run"], ["no_run"]),
    "too few checkpoints": (
        lambda f: ["average", "run", "--last", "9"],
        ["keeps only 2", "keep_last"],
    ),
    "no run to plot": (lambda f: ["plot", "no_run"], ["no_run"]),
    "no run to score": (lambda f: ["score", "no_run", "train.en", "train.en"], ["no_run"]),
    "n-best beyond the beam": (
        lambda f: ["translate", "run", "--n-best", 5],
        ["n_best=5", "beam_size=4"],
    ),
    "a length that overflows": (
        lambda f: ["translate", "run", "--extra-length", 2**31 - 1],
        ["extra_length=2147483647", "from 0 to 1,000,000"],
    ),
    "uneven files to score": (
        lambda f: ["score", "run", "train.en", "short.de"],
        ["train.en", "short.de", "1500 and 1 lines"],
    ),
    "half a test": (lambda f: ["evaluate", "run", "--source", "a"], ["--reference"]),
    "a folder to evaluate into": (lambda f: ["evaluate", "run", "--output", "."], ["--output"]),
    "no folder to average into": (
        lambda f: ["average", "run", "--last", 2, "--output", "nodir/x.keras"],
        ["nodir", "--output"],
    ),
    "export over files": (lambda f: ["export", "run", "."], ["not a SavedModel"]),
    "quantized SavedModel": (
        lambda f: ["export", "run", "new", "--quantization", "int8"],
        ["needs `--format ctranslate2`"],
    ),
    "CTranslate2 with a length": (
        lambda f: ["export", "run", "new", "--format", "ctranslate2", "--on-too-long", "error"],
        ["arguments of its `translate_batch`", "--on-too-long"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_in_one_clear_line_and_exit_code_2(folder, mistake):
    (folder / "short.de").write_text("eins\n")
    for name in ("empty.en", "empty.de"):
        (folder / name).write_text("")
    (folder / "bad.tsv").write_bytes(b"one\teins\ntwo\tzw\xffei\n")
    words, named = MISTAKES[mistake]
    ran = cli(*words(folder))
    assert ran.exit_code == 2, ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1, ran.stderr
    for name in named:
        assert name in ran.stderr
    assert "KERAS_TRANSFORMER_TRACEBACK" not in ran.stderr, "it is written for the user"
