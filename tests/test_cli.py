"""The command line as a person uses it: one small run, all commands, and every mistake."""

import gzip
import json
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from keras_transformer.cli import app
from keras_transformer.console import console
from keras_transformer.models.transformer import load_model
from tests import runs

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

CLI = [sys.executable, "-c", "from keras_transformer.cli import app; app()"]
RECIPE = {
    "data": {
        "train": ["train.en", "train.de.gz"],
        "validation": ["small.tsv"],
        "test": ["small.tsv"],
    },
    "vocabulary": {"size": 330},
    "model": {
        "preset": "tiny",
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 32,
        "intermediate_dim": 64,
    },
    "training": {"batch_tokens": 2048, "epochs": 2, "warmup_steps": 50},
}


def cli(*words, stdin=b""):
    """In this process, which has TensorFlow already."""
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a recipe, and the run it gave."""
    from keras_transformer.data.number_names import number_names

    folder = tmp_path_factory.mktemp("cli")
    english, german = zip(*number_names("train", 1500), strict=True)
    (folder / "train.en").write_text("\n".join(english) + "\n", "utf-8")
    with gzip.open(folder / "train.de.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(german) + "\n")
    small = ["\t".join(pair) + "\n" for pair in number_names("held_out", 20)]
    (folder / "small.tsv").write_text("".join(small), "utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ran = cli("train", "recipe.yaml", "--run", "run")
    assert ran.exit_code == 0, ran.stderr
    return folder


def test_train_leaves_a_run_that_explains_itself(folder):
    run = folder / "run"
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == RECIPE["model"]
    report = json.loads((run / "report.json").read_text())
    assert report["epochs"] == 2 and report["updates"] > 0 and report["tokens_per_second"] > 0
    header, *rows = (run / "history.csv").read_text().splitlines()
    assert {"epoch", "loss", "val_loss", "learning_rate", "tokens_per_second"} <= set(
        header.split(",")
    )
    assert len(rows) == 2
    assert list((run / "logs").rglob("events.out.tfevents.*"))


def test_train_of_a_finished_run_changes_nothing(folder):
    before = (folder / "run" / "model.keras").stat().st_mtime_ns
    ran = cli("train", "recipe.yaml", "--run", "run")
    assert ran.exit_code == 0 and "trained already" in ran.stderr
    assert (folder / "run" / "model.keras").stat().st_mtime_ns == before


def test_training_told_to_stop_ends_as_if_it_had_not_been(folder, tmp_path):
    """By SIGTERM and by Ctrl-C, at any update, in real processes: the same bits at the end."""
    training = {"batch_tokens": 512, "epochs": 3, "ema_momentum": 0.9}
    kept = {"checkpoint_updates": 3, "keep_last": 4, "average": 2}
    recipe = RECIPE | {"training": RECIPE["training"] | training | kept}
    (folder / "long.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped run"
    words = ["train", "long.yaml", "--run"]
    never_stopped = subprocess.Popen([*CLI, *words, whole], stderr=subprocess.PIPE)
    words = [*words, str(stopped)]
    per_epoch = 56  # updates
    for epoch, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        after = epoch * per_epoch + random.SystemRandom().randrange(10, per_epoch - 15)
        process = subprocess.Popen([*CLI, *words], stderr=subprocess.PIPE)
        while process.poll() is None and max(updates_saved(stopped), default=0) < after:
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + number, stderr
        *_, what, how, command = stderr.decode().splitlines()
        newest = runs.checkpoints(stopped)[max(updates_saved(stopped))][1]
        assert newest["epoch"] == epoch and newest["batch"] > 0, newest
        assert what.startswith(f"Stopped by {number.name}. All is saved in {stopped}/checkpoints/")
        assert "The same command goes on" in how
        assert shlex.split(command) == ["keras-transformer", *words[:2], "--data", ".", *words[2:]]
    finished = subprocess.run([*CLI, *words], capture_output=True)
    assert finished.returncode == 0, finished.stderr
    _, stderr = never_stopped.communicate(timeout=300)
    assert never_stopped.returncode == 0, stderr
    assert runs.losses(stopped) == runs.losses(whole)
    expected, resumed = runs.checkpoints(whole), runs.checkpoints(stopped)
    assert list(expected) == list(resumed) and max(expected) == 3 * per_epoch
    for update, (arrays, _) in expected.items():
        runs.assert_equal(resumed[update][0].values(), arrays.values())
    saved = runs.saved_weights(whole / "model.keras")
    runs.assert_equal(runs.saved_weights(stopped / "model.keras"), saved)
    # The model of this recipe: the mean of the raw weights, whatever is averaged for validation.
    model = load_model(whole / "model.keras")
    last = [runs.weights(arrays, model) for arrays, _ in list(expected.values())[-2:]]
    for weight, *values in zip(saved, *last, strict=True):
        np.testing.assert_allclose(weight, np.mean(values, axis=0), rtol=1e-6, atol=1e-7)


def updates_saved(run):
    return [int(path.stem[-8:]) for path in (run / "checkpoints").glob("checkpoint-*.npz")]


def test_training_that_diverges_ends_in_one_clear_line_and_exit_code_1(folder, tmp_path):
    """And `--no-resume` begins anew, by another recipe too."""
    run = shutil.copytree(folder / "run", tmp_path / "run")
    words = ("train", broken(folder, training={"learning_rate": 1e30}), "--run", run)
    refused = cli(*words)
    assert refused.exit_code == 2 and "--no-resume" in refused.stderr
    ran = cli(*words, "--no-resume")
    assert ran.exit_code == 1
    error = ran.stderr.splitlines()[-1]
    assert re.match(
        r"Error: loss nan and gradient_norm \S+ at update 2 \(epoch 1, batch 2\)", error
    )
    assert "There is no checkpoint." in error and "lower the learning rate" in error
    assert "Traceback" not in ran.stderr and not (run / "model.keras").exists()


def test_average_writes_a_model_that_translates(folder):
    ran = cli("average", "run", "--last", 2)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.strip() == "run/averaged.keras"
    last = [arrays for arrays, _ in runs.checkpoints("run").values()][-2:]
    assert [line.split("/")[-1] for line in ran.stderr.splitlines()] == [
        f"checkpoint-{update:08d}.npz" for update in sorted(runs.checkpoints("run"))[:-3:-1]
    ]
    model = load_model("run/averaged.keras")
    expected = np.mean([runs.weights(arrays, model)[0] for arrays in last], axis=0)
    np.testing.assert_allclose(np.array(model.trainable_variables[0]), expected, atol=1e-6)
    ran = cli("translate", "run", "--model", "run/averaged.keras", stdin=b"one\ntwo\n")
    assert ran.exit_code == 0 and ran.stdout.count("\n") == 2


def test_translate_gives_a_line_for_a_line(folder):
    stdin = "twenty-one\n\n  \nΩ € \U0001f600\u2028x\ntwo".encode()
    command = [*CLI, "translate", "run"]
    ran = subprocess.run(command, input=stdin, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.decode().split("\n")
    assert len(lines) == 6 and lines[-1] == "", "five lines, each with its end"
    assert lines[1] == lines[2] == ""
    assert ran.stderr == b"", "nothing but the translation"
    alone = cli("translate", "run", stdin=b"twenty-one\n")
    assert alone.stdout == lines[0] + "\n"


def test_evaluate_scores_the_translations_it_writes(folder):
    words = ("evaluate", "run", "--output", "translations.txt", "--samples", "1")
    ran = cli(*words)
    assert ran.exit_code == 0, ran.stderr
    translations = (folder / "translations.txt").read_text("utf-8").splitlines()
    pairs = [line.split("\t") for line in (folder / "small.tsv").read_text("utf-8").splitlines()]
    from sacrebleu.metrics import CHRF

    references = [[pair[1] for pair in pairs]]
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["chrF2"]["value"] == CHRF().corpus_score(translations, references).score
    assert "BLEU" not in report, "these references are one word each"
    same = sum(line == pair[1] for line, pair in zip(translations, pairs, strict=True))
    assert report["exact_match"] == same / 20
    out = ran.stdout
    assert f"reference    {pairs[0][1]}" in out and "chrF2" in out and "of 20 lines" in out


def test_evaluate_takes_other_files(folder, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    words = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.de", "--tokenized")
    before = (folder / "run" / "report.json").read_text()
    ran = cli("evaluate", "run", *words)
    assert "of 2 lines" in ran.stdout and "BLEU" not in ran.stdout
    (tmp_path / "a.de").write_text("eins zwei drei vier\nzwei\n")
    assert "tok:none" in cli("evaluate", "run", *words).stdout
    assert (folder / "run" / "report.json").read_text() == before, "no score of the recipe's test"


def test_plot_draws_what_it_names(folder):
    ran = cli("plot", "run", "--text", "sixty-six")
    assert ran.exit_code == 0, ran.stderr
    names = {pathlib.Path(line).name for line in ran.stdout.splitlines()}
    assert {"attention.png", "curves.png", "positions.png"} <= names
    for name in names:
        assert (folder / "run" / name).read_bytes().startswith(b"\x89PNG")


def test_export_and_vocabulary_write_what_they_name(folder):
    ran = cli("export", "run", "served")
    assert ran.stdout.strip() == "served" and (folder / "served/saved_model.pb").is_file()
    ran = cli("vocabulary", "train.*", "--size", 300, "--output", "joint.model")
    assert ran.stdout.strip() == "joint.model: 300 tokens", ran.stderr


def test_recipe_prints_packaged_recipes_that_are_valid():
    names = cli("recipe").stdout.split()
    assert {"multi30k_en_de", "number_names"} <= set(names)
    from keras_transformer.recipe import Recipe

    for name in names:
        assert Recipe.from_yaml(cli("recipe", name).stdout) == Recipe.load(name)


def broken(folder, **changes):
    """A recipe with one section changed."""
    recipe = RECIPE | {name: RECIPE[name] | change for name, change in changes.items()}
    path = folder / "broken.yaml"
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    return path


MISTAKES = {
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
    "no run": (lambda f: ["translate", "no_run"], ["no_run", "no trained model"]),
    "no run to average": (lambda f: ["average", "no_run"], ["no_run"]),
    "too few checkpoints": (lambda f: ["average", "run", "--last", "9"], ["keeps 2", "keep_last"]),
    "no run to plot": (lambda f: ["plot", "no_run"], ["no_run"]),
    "half a test": (lambda f: ["evaluate", "run", "--source", "a"], ["--reference"]),
    "export over files": (lambda f: ["export", "run", "."], ["not a SavedModel"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_in_one_clear_line_and_exit_code_2(folder, mistake):
    (folder / "short.de").write_text("eins\n")
    (folder / "bad.tsv").write_bytes(b"one\teins\ntwo\tzw\xffei\n")
    words, named = MISTAKES[mistake]
    ran = cli(*words(folder))
    assert ran.exit_code == 2, ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1, ran.stderr
    for name in named:
        assert name in ran.stderr


def test_invalid_utf8_on_standard_input_names_the_line(folder):
    ran = cli("translate", "run", stdin=b"one\ntwo \xff\n")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "line 2" in ran.stderr and ran.stderr.count("\n") == 1


def test_text_is_shown_as_it_is(capsys):
    """Also a translation with what would be a markup of the console."""
    console.print("[b]one[/b] -> [/i] :smile:")
    assert capsys.readouterr().err == "[b]one[/b] -> [/i] :smile:\n"


@pytest.mark.parametrize(
    "command",
    ["train", "average", "translate", "evaluate", "export", "plot", "vocabulary", "recipe"],
)
def test_help_of_every_command_has_an_example(command):
    ran = cli(command, "--help")
    assert ran.exit_code == 0
    assert f"keras-transformer {command}" in ran.stdout.split("Example")[-1]


def test_help_answers_in_a_second():
    """The best of five: how fast it is, not how busy the machine."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*CLI, "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0
