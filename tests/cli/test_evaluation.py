"""The commands `evaluate` and `plot`."""

import json
import os
import pathlib
import re
import shutil
from types import SimpleNamespace

import pytest

from keras_transformer.cli.directions import Direction
from keras_transformer.cli.evaluation import Evaluation, notes, record
from keras_transformer.cli.options import ONE_BEST
from keras_transformer.evaluation import Score
from keras_transformer.runs import RunFolder
from tests.cli.small_run import cli, small, succeed, write_lines

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def test_evaluate_scores_the_translations_it_writes(folder):
    best_of_4 = ("--beam-size", 4, "--n-best", 4)
    words = ("evaluate", "run", "--output", "translations.txt", "--samples", "1", *best_of_4)
    ran = succeed(*words)
    translations = (folder / "translations.txt").read_text("utf-8").splitlines()
    from sacrebleu.metrics import CHRF

    sources, references = small(folder)
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["chrF2"]["value"] == CHRF().corpus_score(translations, [references]).score
    assert "BLEU" not in report, "these references are one word each"
    same = sum(map(str.__eq__, translations, references))
    assert report["exact_match"] == same / 20
    from keras_transformer import load_run

    found = load_run("run", beam_size=4, distinct_texts=True)(sources, n_best=4)
    ranked = [[each.text for each in best] for best in found]
    right = sum(map(list.__contains__, ranked, references))
    assert report["accuracy@4"] == right / 20 and f"accuracy@4 {right / 20:.4f}" in ran.stdout
    out = ran.stdout
    assert f"reference    {references[0]}" in out and "chrF2" in out and "of 20 lines" in out


def test_evaluate_of_an_unfinished_run_prints_a_note(folder, tmp_path):
    run = shutil.copytree(folder / "run", tmp_path / "run", ignore=lambda *_: ["checkpoints"])
    (run / "report.json").write_text("{}")
    ran = cli("evaluate", run, "--beam-size", 1)
    assert ran.exit_code == 0 and "not finished" in ran.stderr
    assert "exact_match" in json.loads((run / "report.json").read_text())


@pytest.mark.long
def test_evaluate_takes_other_files(folder, tmp_path):
    write_lines(tmp_path / "a.en", ["one", "two"])
    write_lines(tmp_path / "a.de", ["eins", "zwei"])
    words = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.de", "--tokenized")
    before = (folder / "run" / "report.json").read_text()
    ran = cli("evaluate", "run", *words)
    assert "of 2 lines" in ran.stdout and "BLEU" not in ran.stdout
    write_lines(tmp_path / "a.de", ["eins zwei drei vier", "zwei"])
    output = "--output", tmp_path / "out.de", "--reference", tmp_path / "a.de"
    several = cli("evaluate", "run", *words, *output).stdout
    assert "tok:none" in several and "nrefs:2" in several and "length ratio" in several
    ran = cli("evaluate", "run", *words, "--baseline", tmp_path / "out.de")
    assert ": +0.00, p = 1.000 (nrefs:1|bs:1000" in ran.stdout
    ran = cli("evaluate", "run", *words, "--baseline", folder / "small.tsv")
    assert ran.exit_code == 2
    assert "`--baseline` must hold a translation for each of the 2 lines" in ran.stderr
    assert (folder / "run" / "report.json").read_text() == before, "no score of the recipe's test"


def test_source_that_a_test_file_of_both_sides_repeats_is_one_line(own_run, tmp_path):
    """Its targets are references; in two files, the lines stay as they are."""
    pairs = [("one", "eins"), ("six", "sechs"), ("one", "ein")]
    write_lines(tmp_path / "small.tsv", map("\t".join, pairs))
    words = ("evaluate", own_run, "--beam-size", 1, "--data", tmp_path)
    ran = succeed(*words, "--output", tmp_path / "out")
    assert "1 of 3 lines repeat an earlier source" in ran.stderr and "of 2 lines" in ran.stdout
    assert len((tmp_path / "out").read_text("utf-8").splitlines()) == 2
    report = json.loads((own_run / "report.json").read_text())
    assert "nrefs:var" in report["chrF2"]["signature"]
    for name, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        write_lines(tmp_path / name, lines)
    recipe = (own_run / "config.yaml").read_text()
    (own_run / "config.yaml").write_text(recipe.replace("test:\n  - small.tsv", "test: [en, de]"))
    ran = cli(*words)
    assert ran.exit_code == 0 and "of 3 lines" in ran.stdout
    assert "repeat an earlier source" not in ran.stderr


@pytest.mark.parametrize("blocked", ["output", "report"])
def test_scores_are_printed_even_if_they_cannot_be_written(own_run, tmp_path, blocked):
    (tmp_path / "out.txt").write_text("before")
    # A folder in place of the temporary file: even root cannot write it.
    name = "out.txt" if blocked == "output" else "run/report.json"
    process = "" if blocked == "output" else f"{os.getpid()}."
    (tmp_path / name).with_name(f".partial.{process}{pathlib.Path(name).name}").mkdir()
    before = (own_run / "report.json").read_text()
    ran = cli("evaluate", own_run, "--output", tmp_path / "out.txt", "--beam-size", 1)
    assert ran.exit_code == 2 and "could not be written" in ran.stderr
    assert "Free space" not in ran.stderr
    assert "chrF2" in ran.stdout and "exact match" in ran.stdout and "reference " in ran.stdout
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert lines == ["before"] if blocked == "output" else len(lines) == 20
    assert (own_run / "report.json").read_text() == before


@pytest.mark.parametrize(
    "ratio, extra, most",
    [
        (0.5, 1, None),
        pytest.param(1.0, 50, 4, marks=pytest.mark.long),
        pytest.param(9.0, 90, None, marks=pytest.mark.long),
    ],
)
def test_evaluate_counts_what_the_maximum_length_cuts_off(folder, ratio, extra, most):
    from keras_transformer import load_run

    translator = load_run("run", beam_size=1)
    sources, references = small(folder)
    options = {"length_ratio": ratio, "extra_length": extra, "max_length": most, "n_best": 1}
    found = translator(sources, **options)
    cut = sum(best.tokens[-1] != "</s>" for (best,) in found)
    words = ["--length-ratio", ratio, "--extra-length", extra]
    words += ["--max-length", most] if most else []
    report = (folder / "run" / "report.json").read_text()
    ran = succeed("evaluate", "run", "--beam-size", 1, "--samples", 0, *words)
    (folder / "run" / "report.json").write_text(report)
    assert 0 < cut <= 20
    note = f"{cut} of 20 translations are unfinished: they reached the maximum length"
    assert note in " ".join(ran.stderr.split())
    times = sum(len(best.text) for (best,) in found) / sum(map(len, references))
    assert ("`no_repeat_ngram_size(3)` forbids" in ran.stderr) == (times > 1.3)
    lines = "".join(f"{line}\n" for line in sources).encode()
    ran = cli("translate", "run", "--beam-size", 1, *words, stdin=lines)
    assert note in " ".join(ran.stderr.split())
    with pytest.warns(UserWarning, match=note):
        translator(sources, **options | {"n_best": None})


@pytest.mark.parametrize(("text", "is_long"), [("a b", False), ("a b " * 9, True), ("", False)])
def test_translations_that_are_much_too_long_name_too_little_training(text, is_long):
    knows_all = SimpleNamespace(unknown=None)
    translator = SimpleNamespace(source_tokenizer=knows_all, target_tokenizer=knows_all)
    best = SimpleNamespace(text=text, unfinished=is_long, dropped_tokens=0, too_long=False)
    said = list(notes(translator, [[best]] * 2, ["x"] * 2, [["a b c", "b"], [None, "a b"]]))
    words = ["--extra-length", "more epochs.*`no_repeat_ngram_size"] if is_long else []
    assert all(re.search(*each) for each in zip(words, said, strict=True)), said


def test_report_has_the_scores_of_the_last_call_alone(tmp_path):
    """An `accuracy@4` of another search would stand beside the search of the last call."""
    run, settings = RunFolder(tmp_path), dict.fromkeys(ONE_BEST)
    run.add_to_report(updates=3)
    direction = Direction(sources=["a"], references=[["b"]], languages={"target_language": "de"})
    options = {"direction": direction, "answers": [[SimpleNamespace(unfinished=False)]]}
    options["scores"] = {"chrf": Score("chrF2", 1.0, "signature")}
    several, one = (
        Evaluation(**options, matches=matches)
        for matches in ({"exact_match": 0.0, "accuracy@4": 0.5}, {"exact_match": 1.0})
    )
    for results, names in (
        ([several], {"exact_match", "accuracy@4", "chrF2"}),
        ([several, one], {"directions"}),
        ([one], {"exact_match", "chrF2"}),
    ):
        record(run, settings, results)
        assert run.report().keys() == {"updates", "search", *names}


@pytest.mark.long
@pytest.mark.filterwarnings("always")
def test_evaluate_obeys_the_options_for_long_lines(own_run):
    words = ("evaluate", own_run, "--beam-size", 1, "--max-source-tokens", 4, "--on-too-long")
    refused = cli(*words, "error")
    assert refused.exit_code == 2 and "--on-too-long truncate" in refused.stderr
    ran = cli(*words, "truncate")
    assert ran.exit_code == 0 and ran.stderr.count("tokens are left out") == 5
    assert "more lines are too long." in ran.stderr
    said = json.loads((own_run / "report.json").read_text())["search"]
    assert (said["max_source_tokens"], said["on_too_long"]) == (4, "truncate")


@pytest.mark.long
def test_plot_draws_what_it_names(folder):
    ran = succeed("plot", "run", "--text", "sixty-six")
    names = {pathlib.Path(line).name for line in ran.stdout.splitlines()}
    assert {"attention.png", "curves.png", "positions.png"} <= names
    for name in names:
        assert (folder / "run" / name).read_bytes().startswith(b"\x89PNG")
    made = json.loads((folder / "run" / "run.json").read_text())["files"]
    assert names <= set(made), "what `--no-resume` may delete"
