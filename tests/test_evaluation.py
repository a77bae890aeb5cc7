"""Scores against a restatement of BLEU and two published scores."""

import collections
import math
import os
import pathlib

import pytest

from keras_transformer.data.corpus import read_lines
from keras_transformer.evaluation import bleu, chrf, exact_match, paired_bootstrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", ROOT.parent / "shared" / "data"))

HYPOTHESES = [
    "the cat sat on a mat near the door",
    "two dogs run in the the snow",
    "a man .",
    "the children are playing in the park",
]
REFERENCES = [
    "the cat sat on the mat near the door",
    "two dogs run through the deep white snow",
    "a man sleeps .",
    "the children play in the park today",
]


def bleu_restated(hypotheses, references):
    """BLEU of whitespace tokens (Papineni et al., 2002), for counts that need no smoothing."""
    log_precisions = []
    for n in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            counts = [
                collections.Counter(zip(*(words[i:] for i in range(n)), strict=False))
                for words in (hypothesis.split(), reference.split())
            ]
            matches += (counts[0] & counts[1]).total()
            total += counts[0].total()
        log_precisions.append(math.log(matches / total))
    lengths = [sum(len(line.split()) for line in side) for side in (hypotheses, references)]
    brevity = min(0.0, 1 - lengths[1] / lengths[0])
    return 100 * math.exp(brevity + sum(log_precisions) / 4)


def test_tokenized_bleu_equals_the_formula():
    score = bleu(HYPOTHESES, REFERENCES, tokenized=True)
    assert score.value == pytest.approx(bleu_restated(HYPOTHESES, REFERENCES))


def test_brevity_penalty_applies_to_short_hypotheses():
    long, short = "a b c d e f g h", "a b c d e f"
    assert bleu([short], [long], tokenized=True).value == pytest.approx(100 * math.exp(1 - 8 / 6))


@pytest.mark.parametrize(("system", "published"), [("system_a", 38.594), ("system_b", 39.480)])
def test_tokenized_bleu_of_known_systems(system, published):
    if not (DATA / "bleu_calibration").is_dir():
        pytest.skip(f"no calibration files in {DATA}; set KERAS_TRANSFORMER_DATA")
    hypotheses = read_lines(DATA / "bleu_calibration" / f"{system}.de.gz")
    references = read_lines(DATA / "multi30k" / "test_2016_flickr.lc.norm.tok.de.gz")
    assert bleu(hypotheses, references, tokenized=True).value == pytest.approx(published, abs=5e-4)


def test_plain_bleu_splits_punctuation_and_tokenized_bleu_does_not():
    hypotheses, references = ["A man sleeps on a bench."], ["A man sleeps on a bench ."]
    assert bleu(hypotheses, references).value == pytest.approx(100)
    assert bleu(hypotheses, references, tokenized=True).value < 100


def test_lowercase_ignores_case():
    lines = [line.upper() for line in REFERENCES]
    assert bleu(lines, REFERENCES, lowercase=True).value == pytest.approx(100)
    assert bleu(lines, REFERENCES).value < 50


def test_scores_have_signatures():
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "tok:none" in bleu(HYPOTHESES, REFERENCES, tokenized=True).signature
    assert "case:lc" in bleu(HYPOTHESES, REFERENCES, lowercase=True).signature
    assert "nc:6" in chrf(HYPOTHESES, REFERENCES).signature
    assert str(chrf(REFERENCES, REFERENCES)).startswith("chrF2 100.00 (nrefs:1|")


def test_recall_has_weight_4_in_chrf():
    # One order of n-grams only: precision 1, recall 1 / 2, so (1 + 4) P R / (4 P + R).
    assert chrf(["a"], ["ab"]).value == pytest.approx(100 * 5 * 0.5 / 4.5)


def test_length_ratio_is_of_the_words():
    words = [sum(len(line.split()) for line in side) for side in (HYPOTHESES, REFERENCES)]
    score = bleu(HYPOTHESES, REFERENCES, tokenized=True)
    assert score.length_ratio == pytest.approx(words[0] / words[1])
    assert str(score).endswith(f", length ratio {words[0] / words[1]:.3f}")
    assert chrf(HYPOTHESES, REFERENCES).length_ratio is None


def test_each_translation_may_have_several_references():
    mixed = [*HYPOTHESES[:2], *REFERENCES[2:]]
    streams = [REFERENCES, HYPOTHESES]
    assert bleu(mixed, streams, tokenized=True).value == pytest.approx(100)
    assert "nrefs:2" in chrf(mixed, streams).signature
    assert exact_match(mixed, streams) == 1.0
    assert exact_match(mixed, [REFERENCES]) == exact_match(mixed, REFERENCES) == 0.5


def test_paired_bootstrap_tells_a_difference_from_chance():
    references, worse = REFERENCES * 25, HYPOTHESES * 25
    found = paired_bootstrap(references, worse, references, tokenized=True)
    assert found.score == pytest.approx(100)
    assert found.baseline == pytest.approx(bleu(worse, references, tokenized=True).value)
    assert found.p_value < 0.01 and "bs:1000" in found.signature
    assert paired_bootstrap(worse, worse, references).p_value == 1.0
    # Each is better on one half of the lines.
    halves = ["a b c d"] * 50, ["e"] * 50
    by_chance = paired_bootstrap(
        [*halves[0], *halves[1]], [*halves[1], *halves[0]], ["a b c d"] * 100
    )
    assert by_chance.score == by_chance.baseline and by_chance.p_value == 1.0


def test_exact_match_is_the_fraction_of_equal_lines():
    assert exact_match(HYPOTHESES, [*HYPOTHESES[:3], "other"]) == 0.75


@pytest.mark.parametrize("metric", [bleu, chrf, exact_match])
def test_unequal_or_empty_lists_raise(metric):
    for references in (["a"], [["a", "b"], ["a"]]):
        with pytest.raises(ValueError, match="2 hypotheses, 1 references"):
            metric(["a", "b"], references)
    with pytest.raises(ValueError, match="at least one line"):
        metric([], [])


@pytest.mark.parametrize("metric", [bleu, chrf, exact_match])
def test_line_that_is_not_in_a_list_raises(metric):
    with pytest.raises(ValueError, match="`hypotheses` must be a list of lines.*'a man'"):
        metric("a man", ["a man"])
    with pytest.raises(ValueError, match="`references` must be a list of lines.*'a man'"):
        metric(["a man"], "a man")
