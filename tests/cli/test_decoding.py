"""The commands `translate` and `score`, against the translator in Python."""

import gzip
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer.cli import decoding, translators
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.evaluation import mbr_order
from tests.cli.small_run import CLI, cli, small, succeed, write_lines
from tests.processes import run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def test_translate_gives_a_line_for_a_line(folder):
    stdin = "twenty-one\n\n  \nΩ € \U0001f600\u2028x\ntwo".encode()
    command = [*CLI, "translate", "run"]
    ran = run(command, input=stdin, capture_output=True)
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


def test_mbr_prints_the_order_of_the_n_best(engine):
    """With the beam that `--mbr` needs; by CTranslate2, which compiles no search."""
    from keras_transformer import load_translator

    lines = ["twenty-one", "", "six hundred and two"]
    found = load_translator(engine)(lines, n_best=6, beam_size=6)
    texts = [[best.text for best in ranks] for ranks in found]
    expected = [[each[i] for i in mbr_order(each, "bleu")][:2] for each in texts]
    words = "--mbr", 6, "--mbr-utility", "bleu", "--n-best", 2
    ran = succeed("translate", engine, *words, stdin="\n".join(lines).encode())
    shown = [f"{n}\t{text}" for n, each in enumerate(expected, start=1) for text in each]
    assert ran.stdout.split("\n")[:-1] == shown


@pytest.mark.long
def test_hypotheses_and_scores_printed_are_the_translators(folder):
    """With every option of the search, and none of them at its default."""
    lines = ["twenty-one", "", "six hundred and two", "two"]
    words = "--beam-size 5 --length-penalty mean --alpha 0.9 --length-ratio 2 --extra-length 9"
    words += " --stopping first_beams --max-length 8"
    settings = {"beam_size": 5, "length_penalty": "mean", "alpha": 0.9, "max_length": 8}
    settings |= {"length_ratio": 2.0, "extra_length": 9, "stopping": "first_beams"}
    found = translator(**settings)(lines, n_best=3)
    assert [len(hypotheses) for hypotheses in found] == [3, 1, 3, 3]
    stdin = "\n".join(lines).encode()
    ran = succeed("translate", "run", "--n-best", 3, "--scores", *words.split(), stdin=stdin)
    rows = [line.split("\t") for line in ran.stdout.removesuffix("\n").split("\n")]
    expected = [(str(n), h) for n, best in enumerate(found, start=1) for h in best]
    assert [(number, text) for number, _, text in rows] == [(n, h.text) for n, h in expected]
    printed = [float(score) for _, score, _ in rows]
    np.testing.assert_allclose(printed, [h.score for _, h in expected], atol=1e-4)
    assert rows[3][1:] == ["0.0000", ""], "the empty line"
    unnumbered = cli("translate", "run", "--scores", *words.split(), stdin=stdin)
    best = [f"{best[0].score:.4f}\t{best[0].text}" for best in found]
    assert unnumbered.stdout == "".join(f"{line}\n" for line in best)


@pytest.mark.long
def test_several_runs_translate_as_an_ensemble_of_equal_vocabularies(folder, tmp_path):
    import keras_transformer as kt

    other, foreign = (shutil.copytree("run", tmp_path / name) for name in ("other", "foreign"))
    model = kt.load_model(other / "model.keras")
    model.set_weights([weight[::-1] for weight in model.get_weights()])
    model.save(other / "model.keras")
    report = (folder / "run/report.json").read_bytes()
    lines = small(folder)[0]
    expected = kt.load_run(["run", other], beam_size=2)(lines)
    assert expected != translator(beam_size=2)(lines)
    stdin = "\n".join(lines).encode()
    ran = cli("translate", "run", other, "--beam-size", 2, stdin=stdin)
    assert ran.stdout.splitlines() == expected, ran.stderr
    written = tmp_path / "out.de"
    ran = cli("evaluate", "run", other, "--beam-size", 2, "--output", written)
    assert written.read_text("utf-8").splitlines() == expected, ran.stderr
    assert (folder / "run/report.json").read_bytes() == report, "that of one run"
    kt.Tokenizer.train_on_lines(lines, 330, foreign / "tokenizer.json")
    ran = cli("translate", "run", foreign)
    mine, theirs = (
        kt.Tokenizer.load(f"{path}/tokenizer.json").vocabulary for path in ("run", foreign)
    )
    first = next(i for i in range(330) if mine[i] != theirs[i])
    message = (
        "The runs of an ensemble must have the same vocabularies, token by token. Received: token "
        f"{first} of the source is {theirs[first]!r} in {str(foreign)!r}, and {mine[first]!r} in"
    )
    assert (ran.exit_code, ran.stderr.count("Error:")) == (2, 1)
    assert message in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    "fields, line",
    [
        (["a\tb"], "a\tb"),
        (["\t"], "\t"),
        ([""], ""),
        (["1", "a\tb"], "1\ta b"),
        (["1", "-0.5", "a\tb\t"], "1\t-0.5\ta b "),
    ],
)
def test_tabs_of_a_translation_are_kept_unless_they_separate_columns(fields, line):
    assert list(decoding.rows([fields, iter(fields)])) == [line, line]


def test_score_gives_translations_the_scores_they_were_found_with(folder):
    """Compares the full forward pass with the search, token by token."""
    sources, _ = small(folder)
    hypotheses = [best for line in translator()(sources, n_best=4) for best in line]
    write_lines(folder / "found.en", np.repeat(sources, 4))
    write_lines(folder / "found.de", (hypothesis.text for hypothesis in hypotheses))
    ran = succeed("score", "run", "found.en", "found.de", "--tokens")
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


def test_score_prints_the_perplexity_of_what_is_almost_impossible(tmp_path, monkeypatch):
    """Such as a token that was added and is not trained yet, whose logit has a bias of -1e9."""
    hypothesis = Hypothesis(
        text="zwei",
        score=-9e8,
        source_tokens=["two", "</s>"],
        tokens=["zwei", "</s>"],
        log_probs=[-1e9, -0.5],
    )
    scorer = SimpleNamespace(score=lambda sources, targets, **options: [hypothesis])
    monkeypatch.setattr(translators, "load_runs", lambda *arguments, **options: scorer)
    files = tmp_path / "two.en", tmp_path / "two.de"
    for file, line in zip(files, ("two", "zwei"), strict=True):
        write_lines(file, [line])
    ran = succeed("score", "run", *files)
    assert ran.stdout == "-900000000.0000\t-1000000000.5000\t2\tinf\n"
    assert " ".join(ran.stderr.split()).endswith("-500000000.2500 per token, perplexity inf")


@pytest.mark.long
def test_long_lines_are_reported_on_standard_error(folder):
    stdin = ("one\n" + "seventy-three thousand, two hundred. " * 9 + "\ntwo\n").encode()
    bound = ("translate", "run", "--max-source-tokens", 30)
    ran = succeed(*bound, stdin=stdin)
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
    sentences = ["Eighty is one.", "Seventy is two."]
    ran = cli("translate", "run", "--split", "sentences", stdin="  ".join(sentences).encode())
    assert ran.stdout == "  ".join(translator()(sentences)) + "\n"
    assert ran.stderr == "", "it is not too long"
    succeed("translate", "run", "--protect", "none", stdin=b"one")
    ran = cli("translate", "run", "--protect", "bracse", stdin=b"one")
    assert ran.exit_code == 2 and "`protect` must hold names, printf, " in ran.stderr


def test_invalid_utf8_on_standard_input_names_the_line(folder):
    ran = cli("translate", "run", stdin=b"one\ntwo \xff\n")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "line 2" in ran.stderr and ran.stderr.count("\n") == 1
