"""The command line: one small run, all commands, and every user error."""

import gzip
import importlib.metadata
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
import typer
import yaml
from typer.testing import CliRunner

from keras_transformer.cli import app
from keras_transformer.cli.training import report_lines
from keras_transformer.console import console
from keras_transformer.models.transformer import load_model
from tests.runs import tiny_run
from tests.screen import Screen, run_on_terminal
from tests.session import made_once

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

DISTRIBUTION = "keras-seq2seq-transformer"
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
    """Data, a recipe, the run trained by it, and what `train` printed."""
    return made_once(tmp_path_factory, "cli", fill)


def fill(folder):
    from keras_transformer.data.number_corpus import number_names

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
    (folder / "said.log").write_text(ran.stderr, "utf-8")


@pytest.mark.long
def test_train_into_a_file_writes_plain_lines(folder):
    text = (folder / "said.log").read_text("utf-8")
    assert_plain(text)
    *_, last = text.splitlines()
    assert last == "Next: keras-transformer evaluate run --data ."
    updates = json.loads((folder / "run" / "report.json").read_text())["updates"] // 2
    assert re.search(rf"^epoch 1/2 batch 1/{updates} loss \d+\.\d+ lr \S+ [\d,]+ tok/s", text, re.M)
    epochs = r"^epoch [12]/2 loss \S+ val_loss \S+ val_accuracy \d+\.\d% [\d,]+ tok/s$"
    assert len(re.findall(epochs, text, re.M)) == 2
    assert re.search("^ +dropped  empty 0, too long 0, length ratio 0$", text, re.M)
    assert "{" not in text


def assert_plain(text):
    """Nothing but lines of text."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), text


@pytest.mark.long
def test_train_on_a_terminal_leaves_it_clean_when_ctrl_c_is_typed(folder, tmp_path):
    """It prints the warning and the command that resumes; the next command it names works."""
    english = (folder / "train.en").read_text("utf-8").splitlines()[:300]
    (folder / "little.tsv").write_text("".join(f"{line}\t{line}\n" for line in english), "utf-8")
    recipe = RECIPE | {
        "data": {"train": ["little.tsv"]},
        "vocabulary": {"size": 8000},
        "training": RECIPE["training"] | {"batch_tokens": 64},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    words = ["train", tmp_path / "mine.yaml", "--run", tmp_path / "a run"]
    status, written = run_on_terminal(CLI[-1], *words, answer=("━.* loss ", b"\x03"))
    assert status == 128 + signal.SIGINT, written
    screen = Screen(written)
    assert screen.cursor_is_shown
    assert "━" not in "".join(screen.rows), "the line is gone"
    assert not [row for row in screen.wrapped if row.startswith("epoch")]
    text = "".join(screen.rows)  # as the terminal wraps it
    assert re.search("Warning: The text yields only [0-9]+ tokens", text)
    assert "UserWarning" not in text and "Stopped by SIGINT" in text
    ran = cli(*words)
    assert ran.exit_code == 0, ran.stderr
    assert_plain(ran.stderr)
    start, first = re.search(
        r"Resuming.*batch (\d+)\.\nepoch \d/2 batch (\d+)/", ran.stderr
    ).groups()
    assert start == first, "the first update of this process"
    next_words = shlex.split(ran.stderr.splitlines()[-1].removeprefix("Next: "))
    assert next_words[1:3] == ["evaluate", str(tmp_path / "a run")] and "--source" in next_words
    next_words = ["small.tsv" if word == "FILE" else word for word in next_words[1:]]
    assert cli(*next_words).exit_code == 0
    refused = cli("plot", tmp_path / "a run")
    assert refused.exit_code == 2 and "give `--text`" in refused.stderr
    assert "--source" not in refused.stderr, "an option of another command"


def test_train_writes_recipe_report_history_and_logs(folder):
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


def test_report_of_any_values_is_shown():
    report = {
        "updates": 12345,
        "exact_match": 0.5,
        "dropped": {"empty": 1000, "too_long": 0},
        "search": {"beam_size": 4, "length_penalty": "gnmt", "alpha": 0.6, "is_on": True},
        "BLEU": {"name": "BLEU", "value": 31.25, "signature": "nrefs:1|case:mixed"},
        "greedy": {"length_penalty": None, "inner": {"list": [1, 2]}},
    }
    lines = [line.strip() for line in report_lines(report)]
    assert lines == [
        "updates  12,345",
        "exact match  0.5",
        "dropped  empty 1,000, too_long 0",
        "search  beam_size 4, length_penalty gnmt, alpha 0.6, is_on True",
        "BLEU  name BLEU, value 31.25, signature nrefs:1|case:mixed",
        "greedy  length_penalty None, inner list [1, 2]",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "lost", ["model.keras", pytest.param("tokenizer.model", marks=pytest.mark.long)]
)
def test_train_of_an_evaluated_run_writes_a_lost_file_again(folder, tmp_path, lost):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    assert cli("evaluate", run, "--beam-size", 1).exit_code == 0
    report = (run / "report.json").read_text()
    (run / lost).unlink()
    ran = cli("train", "recipe.yaml", "--run", run)
    assert ran.exit_code == 0, ran.stderr
    assert "length_penalty gnmt" in ran.stderr and (run / "report.json").read_text() == report
    assert cli("translate", run, stdin=b"one\n").exit_code == 0


@pytest.mark.long
def test_training_told_to_stop_ends_as_if_it_had_not_been(folder, tmp_path):
    """By SIGTERM and by Ctrl-C, at any update, in real processes: the same bits at the end."""
    training = {"batch_tokens": 512, "epochs": 2, "ema_momentum": 0.9}
    changes = ["--set", "training.epochs=3"]
    kept = {"checkpoint_updates": 3, "keep_last": 4, "average": 2}
    recipe = RECIPE | {"training": RECIPE["training"] | training | kept}
    (folder / "long.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped run"
    words = ["train", "long.yaml", "--run"]
    never_stopped = subprocess.Popen([*CLI, *words, whole, *changes], stderr=subprocess.PIPE)
    words = [*words, str(stopped), *changes]
    per_epoch = 56  # updates
    for epoch, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        after = epoch * per_epoch + random.SystemRandom().randrange(10, per_epoch - 15)
        print(f"{number.name} after update {after}")
        process = subprocess.Popen([*CLI, *words], stderr=subprocess.PIPE)
        while process.poll() is None and max(updates_saved(stopped), default=0) < after:
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + number, stderr
        assert_plain(stderr.decode())
        *_, what, how, command = stderr.decode().splitlines()
        newest = tiny_run.checkpoints(stopped)[max(updates_saved(stopped))][1]
        assert newest["epoch"] == epoch and newest["batch"] > 0, newest
        assert what.startswith(
            f"Stopped by {number.name}. The checkpoint is {stopped}/checkpoints/"
        )
        assert "The same command resumes the run" in how
        assert shlex.split(command) == ["keras-transformer", *words[:2], "--data", ".", *words[2:]]
    finished = subprocess.run([*CLI, *words], capture_output=True)
    assert finished.returncode == 0, finished.stderr
    _, stderr = never_stopped.communicate(timeout=300)
    assert never_stopped.returncode == 0, stderr
    assert yaml.safe_load((stopped / "config.yaml").read_text())["training"]["epochs"] == 3
    assert tiny_run.losses(stopped) == tiny_run.losses(whole)
    expected, resumed = tiny_run.checkpoints(whole), tiny_run.checkpoints(stopped)
    assert list(expected) == list(resumed) and max(expected) == 3 * per_epoch
    for update, (arrays, _) in expected.items():
        tiny_run.assert_equal(resumed[update][0].values(), arrays.values())
    path = whole / "model.keras"
    saved = tiny_run.saved_weights(path)
    tiny_run.assert_equal(tiny_run.saved_weights(stopped / "model.keras"), saved)
    # The model of this recipe: the mean of the moving averages at the ends of two epochs.
    names = [variable.path.replace("/", "_") for variable in load_model(path).trainable_variables]
    last = [
        [expected[epoch * per_epoch][0][f"optimizer/adam/{name}_average"] for name in names]
        for epoch in (2, 3)
    ]
    for weight, *values in zip(saved, *last, strict=True):
        np.testing.assert_allclose(weight, np.mean(values, axis=0), rtol=1e-6, atol=1e-7)


def updates_saved(run):
    return [int(path.stem[-8:]) for path in (run / "checkpoints").glob("checkpoint-*.npz")]


@pytest.mark.long
def test_training_that_diverges_ends_in_one_clear_line_and_exit_code_1(folder, tmp_path):
    """`--no-resume` starts over, also with another recipe."""
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
    last = [arrays for arrays, _ in tiny_run.checkpoints("run").values()][-2:]
    assert [line.split("/")[-1] for line in ran.stderr.splitlines()] == [
        f"checkpoint-{update:08d}.npz" for update in sorted(tiny_run.checkpoints("run"))[:-3:-1]
    ]
    model = load_model("run/averaged.keras")
    expected = np.mean([tiny_run.weights(arrays, model)[0] for arrays in last], axis=0)
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
    (folder / "two.en.gz").write_bytes(gzip.compress(b"\ntwenty-one"))
    (folder / "two.de").write_text("before")
    files = ("--input", "two.en.gz", "--output", "two.de")
    filed = cli("translate", "run", "--batch-sentences", 1, *files)
    assert filed.exit_code == 0 and filed.stdout == filed.stderr == ""
    written = (folder / "two.de").read_bytes().decode()
    assert written == "\n" + lines[0] + "\n", "also a batch without any text"


def translator(**settings):
    """The run's, in Python."""
    from keras_transformer import load_run

    return load_run("run", **settings)


def test_hypotheses_and_scores_printed_are_the_translators(folder):
    """With every option of the search, and none of them at its default."""
    lines = ["twenty-one", "", "six hundred and two", "two"]
    words = "--beam-size 5 --length-penalty mean --alpha 0.9 --length-ratio 2 --extra-length 9"
    words += " --stopping first_beams --no-count-end-token --max-length 8"
    found = translator(
        **{"beam_size": 5, "length_penalty": "mean", "alpha": 0.9},
        **{"length_ratio": 2.0, "extra_length": 9, "max_length": 8},
        **{"stopping": "first_beams", "count_end_token": False},
    )(lines, n_best=3)
    assert [len(hypotheses) for hypotheses in found] == [3, 1, 3, 3]
    stdin = "\n".join(lines).encode()
    ran = cli("translate", "run", "--n-best", 3, "--scores", *words.split(), stdin=stdin)
    assert ran.exit_code == 0, ran.stderr
    rows = [line.split("\t") for line in ran.stdout.removesuffix("\n").split("\n")]
    expected = [(str(n), h) for n, best in enumerate(found, start=1) for h in best]
    assert [(number, text) for number, _, text in rows] == [(n, h.text) for n, h in expected]
    printed = [float(score) for _, score, _ in rows]
    np.testing.assert_allclose(printed, [h.score for _, h in expected], atol=1e-4)
    assert rows[3][1:] == ["0.0000", ""], "the empty line"
    unnumbered = cli("translate", "run", "--scores", *words.split(), stdin=stdin)
    best = [f"{best[0].score:.4f}\t{best[0].text}" for best in found]
    assert unnumbered.stdout == "".join(f"{line}\n" for line in best)


def test_score_gives_translations_the_scores_they_were_found_with(folder):
    """Compares the full forward pass with the search, token by token."""
    sources = [line.split("\t")[0] for line in (folder / "small.tsv").read_text().splitlines()]
    hypotheses = [best for line in translator()(sources, n_best=4) for best in line]
    repeated = np.repeat(sources, 4)
    (folder / "found.en").write_text("".join(f"{line}\n" for line in repeated), "utf-8")
    (folder / "found.de").write_text("".join(f"{h.text}\n" for h in hypotheses), "utf-8")
    ran = cli("score", "run", "found.en", "found.de", "--tokens")
    assert ran.exit_code == 0, ran.stderr
    same, log_prob_sum, token_count = 0, 0.0, 0
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    for (*figures, pieces), hypothesis in zip(
        ([*map(float, row[:4]), row[4:]] for row in rows), hypotheses, strict=True
    ):
        score, log_prob, n, perplexity = figures
        tokens, log_probs = zip(*(piece.rsplit(" ", 1) for piece in pieces), strict=True)
        log_probs = [float(value) for value in log_probs]
        assert len(tokens) == n and tokens[-1] == "</s>"
        np.testing.assert_allclose(log_prob, sum(log_probs), atol=1e-4 * (n + 1))
        np.testing.assert_allclose(perplexity, np.exp(-log_prob / n), rtol=1e-3)
        np.testing.assert_allclose(score, log_prob / ((5 + n) / 6) ** 0.6, atol=2e-4)
        log_prob_sum, token_count = log_prob_sum + log_prob, token_count + n
        # A translation may be cut off, or its text cut into other tokens than it was made of.
        if list(tokens) == hypothesis.tokens:
            np.testing.assert_allclose(score, hypothesis.score, atol=1e-4)
            np.testing.assert_allclose(log_probs, hypothesis.log_probs, atol=1e-4)
            same += 1
    assert same >= 20
    pairs, tokens, *means = re.findall(r"-?[\d,.]*\d", ran.stderr)
    assert (pairs, tokens) == ("80", f"{token_count:,.0f}")
    mean = log_prob_sum / token_count
    np.testing.assert_allclose([float(value) for value in means], [mean, np.exp(-mean)], rtol=1e-3)


def test_score_leaves_the_end_token_out_of_the_length(folder):
    (folder / "count.en").write_text("two\ntwenty-one\n", "utf-8")
    (folder / "count.de").write_text("zwei\neinundzwanzig\n", "utf-8")
    penalty = ("--length-penalty", "mean", "--alpha", 1, "--no-count-end-token")
    ran = cli("score", "run", "count.en", "count.de", *penalty)
    assert ran.exit_code == 0, ran.stderr
    for row in ran.stdout.splitlines():
        score, log_prob, n, _ = map(float, row.split("\t"))
        np.testing.assert_allclose(score, log_prob / (n - 1), atol=2e-4)


def test_score_in_bfloat16_rounds(folder):
    """The option reaches the model, whose results change by rounding."""
    (folder / "one.en").write_text("twenty-one\n")
    (folder / "one.de").write_text("einundzwanzig\n")
    exact, rounded = (
        [float(x) for x in cli("score", "run", "one.en", "one.de", "--dtype", dtype).stdout.split()]
        for dtype in ("float32", "bfloat16")
    )
    assert exact != rounded
    np.testing.assert_allclose(rounded, exact, rtol=0.05)


@pytest.mark.long
def test_translate_draws_a_picture_of_every_line_with_text(folder, tmp_path):
    words = ("translate", "run", "--attention", tmp_path / "out.png")
    ran = cli(*words, stdin=b"sixty-six\n\none\n")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.count("\n") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1.png", "out-3.png"]
    assert cli(*words, stdin=b"one").exit_code == 0
    alone, of_many = (tmp_path / "out.png").read_bytes(), (tmp_path / "out-3.png").read_bytes()
    assert alone.startswith(b"\x89PNG") and alone == of_many, "the same line, the same picture"
    refused = cli(*words, stdin=b"one\n" * 21)
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "at most 20" in refused.stderr and "21 lines" in refused.stderr


def test_missing_matplotlib_is_an_error_before_anything_is_translated(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("keras_transformer.cli.decoding.load_translator", None)  # never called
    refused = cli("translate", "run", "--attention", "out.png", stdin=b"one\n")
    assert refused.exit_code == 2 and refused.stdout == ""
    assert refused.stderr.startswith("Error: Pictures need matplotlib: pip install")


@pytest.mark.long
def test_long_lines_are_reported_on_standard_error(folder):
    stdin = ("one\n" + "seventy-three thousand, two hundred. " * 9 + "\ntwo\n").encode()
    bound = ("translate", "run", "--max-source-tokens", 30)
    ran = cli(*bound, stdin=stdin)
    assert ran.exit_code == 0, ran.stderr
    translations = ran.stdout.splitlines()
    assert len(translations) == 3
    assert [translations[0], translations[2]] == translator()(["one", "two"])
    assert re.fullmatch(
        r"Line 2 is too long for one piece: translated in \d+ pieces.\n", ran.stderr
    )
    ran = cli(*bound, "--on-too-long", "truncate", stdin=stdin)
    assert ran.stdout.count("\n") == 3
    assert re.fullmatch(r"Line 2 is too long: its last \d+ tokens are left out.\n", ran.stderr)
    ran = cli(*bound, "--on-too-long", "error", stdin=stdin)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "at most 30 tokens" in ran.stderr and "line 2" in ran.stderr


def test_max_source_tokens_defaults_to_max_length_of_the_recipe(folder, tmp_path):
    """The model was not trained on longer lines."""
    run = shutil.copytree(folder / "run", tmp_path / "run")
    recipe = RECIPE | {"data": RECIPE["data"] | {"max_length": 40}}
    (run / "config.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    from keras_transformer import load_run

    assert load_run(run).settings.max_source_tokens == 40
    assert load_run(run, max_source_tokens=50).settings.max_source_tokens == 50


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


def test_evaluate_of_an_unfinished_run_prints_a_note(folder, tmp_path):
    run = shutil.copytree(folder / "run", tmp_path / "run", ignore=lambda *_: ["checkpoints"])
    (run / "report.json").write_text("{}")
    ran = cli("evaluate", run, "--beam-size", 1)
    assert ran.exit_code == 0 and "not finished" in ran.stderr and "`earlier`" in ran.stderr
    assert "exact_match" in json.loads((run / "report.json").read_text())


@pytest.mark.long
def test_evaluate_takes_other_files(folder, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    words = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.de", "--tokenized")
    before = (folder / "run" / "report.json").read_text()
    ran = cli("evaluate", "run", *words)
    assert "of 2 lines" in ran.stdout and "BLEU" not in ran.stdout
    (tmp_path / "a.de").write_text("eins zwei drei vier\nzwei\n")
    output = "--output", tmp_path / "out.de", "--reference", tmp_path / "a.de"
    several = cli("evaluate", "run", *words, *output).stdout
    assert "tok:none" in several and "nrefs:2" in several and "length ratio" in several
    ran = cli("evaluate", "run", *words, "--baseline", tmp_path / "out.de")
    assert ": +0.00, p = 1.000 (nrefs:1|bs:1000" in ran.stdout
    ran = cli("evaluate", "run", *words, "--baseline", folder / "small.tsv")
    assert ran.exit_code == 2
    assert "`--baseline` must hold a translation for each of the 2 lines" in ran.stderr
    assert (folder / "run" / "report.json").read_text() == before, "no score of the recipe's test"


@pytest.mark.long
def test_compare_translates_as_evaluate_does(folder, tmp_path):
    """The same model twice: equal scores, and a difference that is chance."""
    twin = shutil.copytree(folder / "run", tmp_path / "twin")
    sources = [line.split("\t")[0] for line in (folder / "small.tsv").read_text().splitlines()]
    (tmp_path / "a.en").write_text("".join(f"{line}\n" for line in sources), "utf-8")
    (tmp_path / "a.de").write_text("eins zwei drei vier\n" * 20)
    words = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.de", "--beam-size", 2)
    ran = cli("compare", "run", twin, "--translate", *words)
    assert ran.exit_code == 0, ran.stderr
    bleu, chrf = cli("evaluate", "run", "--samples", 0, *words).stdout.splitlines()[:2]
    assert ran.stdout.count(f"\n{bleu}\n{chrf}\n") == 2
    assert f"{twin} against run, paired bootstrap:\nBLEU" in ran.stdout
    assert ": +0.00, p = 1.000 (nrefs:1|bs:1000" in ran.stdout


@pytest.mark.parametrize("blocked", ["output", "report"])
def test_scores_are_printed_even_if_they_cannot_be_written(folder, tmp_path, blocked):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "out.txt").write_text("before")
    # A folder in place of the temporary file: even root cannot write it.
    name = "out.txt" if blocked == "output" else "run/report.json"
    (tmp_path / name).with_name(f".partial.{pathlib.Path(name).name}").mkdir()
    before = (run / "report.json").read_text()
    ran = cli("evaluate", run, "--output", tmp_path / "out.txt", "--beam-size", 1)
    assert ran.exit_code == 2 and "could not be written" in ran.stderr
    assert "Free space" not in ran.stderr
    assert "chrF2" in ran.stdout and "exact match" in ran.stdout and "reference " in ran.stdout
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert lines == ["before"] if blocked == "output" else len(lines) == 20
    assert (run / "report.json").read_text() == before


@pytest.mark.filterwarnings("always")
def test_evaluate_obeys_the_options_for_long_lines(folder, tmp_path):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    words = ("evaluate", run, "--beam-size", 1, "--max-source-tokens", 4, "--on-too-long")
    refused = cli(*words, "error")
    assert refused.exit_code == 2 and "--on-too-long truncate" in refused.stderr
    ran = cli(*words, "truncate")
    assert ran.exit_code == 0 and "without its last" in ran.stderr
    said = json.loads((run / "report.json").read_text())["search"]
    assert (said["max_source_tokens"], said["on_too_long"]) == (4, "truncate")


@pytest.mark.long
@pytest.mark.filterwarnings("always")
def test_advice_on_long_lines_can_be_followed(folder, tmp_path):
    (tmp_path / "long.en").write_text("one " * 2100 + "\n")
    (tmp_path / "long.de").write_text("eins\n")
    words = ("score", "run", tmp_path / "long.en", tmp_path / "long.de")
    refused = cli(*words)
    assert refused.exit_code == 2 and "--max-source-tokens" in refused.stderr
    assert cli(*words, "--max-source-tokens", 9000).exit_code == 0
    ran = cli("plot", "run", "--text", "one " * 300)
    assert ran.exit_code == 0 and "left out" in ran.stderr


@pytest.mark.long
def test_evaluate_searches_as_translate_does(folder):
    """With the same options, which the report records."""
    search = ("--beam-size", 1, "--length-penalty", "none", "--alpha", 0)
    search += ("--stopping", "first_beams", "--no-count-end-token", "--max-length", 30)
    report = folder / "run" / "report.json"
    before = report.read_text()
    ran = cli("evaluate", "run", "--output", "greedy.txt", *search)
    assert ran.exit_code == 0, ran.stderr
    said = json.loads(report.read_text())["search"]
    bound = {"max_source_tokens": 256, "on_too_long": "split", "max_length": 30}
    bound |= {"stopping": "first_beams", "count_end_token": False}
    assert said == {"beam_size": 1, "length_penalty": None, "alpha": 0.0, **bound}
    report.write_text(before)
    stdin = "".join(
        line.split("\t")[0] + "\n" for line in (folder / "small.tsv").read_text().splitlines()
    )
    translated = cli("translate", "run", *search, stdin=stdin.encode())
    assert (folder / "greedy.txt").read_text("utf-8") == translated.stdout
    assert translated.stdout != cli("translate", "run", stdin=stdin.encode()).stdout


def test_plot_draws_what_it_names(folder):
    ran = cli("plot", "run", "--text", "sixty-six")
    assert ran.exit_code == 0, ran.stderr
    names = {pathlib.Path(line).name for line in ran.stdout.splitlines()}
    assert {"attention.png", "curves.png", "positions.png"} <= names
    for name in names:
        assert (folder / "run" / name).read_bytes().startswith(b"\x89PNG")
    made = json.loads((folder / "run" / "run.json").read_text())["files"]
    assert names <= set(made), "what `--no-resume` may delete"


def test_export_and_vocabulary_write_what_they_name(folder):
    (folder / "lines.en").write_text("one\ntwo\n", "utf-8")
    ran = cli("export", "run", "served", "--beam-size", 2, "--examples", "lines.en")
    assert ran.stdout.strip() == "served", ran.stderr
    card = json.loads((folder / "served/model_card.json").read_text("utf-8"))
    assert (card["name"], card["source_language"], card["search"]["beam_size"]) == ("run", "en", 2)
    ran = cli("verify", "served")
    assert ran.stdout.startswith("2 of 2 translations are equal"), ran.stderr
    ran = cli("export", "run", "ct2", "--format", "ctranslate2", "--quantization", "int8")
    assert ran.stdout.strip() == "ct2" and (folder / "ct2/model.bin").is_file(), ran.stderr
    ran = cli("vocabulary", "train.*", "--size", 300, "--output", "joint.model")
    assert ran.stdout.strip() == "joint.model: 300 tokens", ran.stderr


def test_recipe_prints_packaged_recipes_that_are_valid():
    names = cli("recipe").stdout.split()
    assert {"multi30k_en_de", "number_names"} <= set(names)
    from keras_transformer.runs.recipe import Recipe

    for name in names:
        assert Recipe.from_yaml(cli("recipe", name).stdout) == Recipe.load(name)


def broken(folder, **changes):
    """A recipe with one section changed."""
    recipe = RECIPE | {name: RECIPE[name] | change for name, change in changes.items()}
    path = folder / "broken.yaml"
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    return path


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


def test_invalid_utf8_on_standard_input_names_the_line(folder):
    ran = cli("translate", "run", stdin=b"one\ntwo \xff\n")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "line 2" in ran.stderr and ran.stderr.count("\n") == 1


def test_text_is_shown_as_it_is(capsys):
    """Also text that looks like markup of the console."""
    console.print("[b]one[/b] -> [/i] :smile:")
    assert capsys.readouterr().err == "[b]one[/b] -> [/i] :smile:\n"


def test_version_is_the_version_of_the_package():
    ran = cli("--version")
    assert ran.exit_code == 0
    assert ran.stdout.split() == ["keras-transformer", importlib.metadata.version(DISTRIBUTION)]


COMMANDS = list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command):
    ran = cli(command, "--help")
    assert ran.exit_code == 0
    assert f"keras-transformer {command}" in ran.stdout.split("Example")[-1]


HELP = """
import sys
from keras_transformer.cli import app
for words in (["--help"], *([name, "--help"] for name in sys.argv[1:])):
    app(words, standalone_mode=False)
print("imported:", *{"keras", "numpy", "tensorflow", "matplotlib"} & set(sys.modules))
"""


def test_help_imports_nothing_that_takes_long():
    words = [sys.executable, "-c", HELP, *COMMANDS]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("imported:\n")
