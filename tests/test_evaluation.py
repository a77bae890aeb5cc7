"""Scores against restatements of error rates, and two published scores."""

import itertools
import pathlib
import random
import re

import pytest

from keras_transformer.data.corpus import read_lines
from keras_transformer.evaluation import (
    METRICS,
    accuracy_at_n,
    bleu,
    chrf,
    exact_match,
    mbr_order,
    merge_references,
    paired_bootstrap,
    score,
)
from tests.shared_data import DATA, missing

ROOT = pathlib.Path(__file__).resolve().parents[1]

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


@pytest.mark.parametrize(("system", "published"), [("system_a", 38.594), ("system_b", 39.480)])
def test_tokenized_bleu_of_known_systems(system, published):
    if not (DATA / "bleu_calibration").is_dir():
        pytest.skip(missing("calibration files"))
    hypotheses = read_lines(DATA / "bleu_calibration" / f"{system}.de.gz")
    references = read_lines(DATA / "multi30k" / "test_2016_flickr.lc.norm.tok.de.gz")
    assert bleu(hypotheses, references, tokenized=True).value == pytest.approx(published, abs=5e-4)


def test_scores_have_signatures():
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "tok:none" in bleu(HYPOTHESES, REFERENCES, tokenized=True).signature
    assert "case:lc" in bleu(HYPOTHESES, REFERENCES, lowercase=True).signature
    assert "nc:6" in chrf(HYPOTHESES, REFERENCES).signature
    assert str(chrf(REFERENCES, REFERENCES)).startswith("chrF2 100.00 (nrefs:1|")


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


def test_equal_tokens_are_an_exact_match():
    streams = [["k æ t ", "a  b", "ab", " "], [None, "", None, "x"]]
    assert exact_match(["k æ t", "a b", "a b", ""], streams) == 0.5
    assert accuracy_at_n([["x", "k æ t"], ["a b"], ["a b"], [" ", "x "]], streams) == 0.75


def test_accuracy_at_n_counts_lines_with_one_right_translation():
    n_best, streams = [["a", "b"], ["a"], ["c", "d"]], [["b", "b", "c"], [None, "a", "e"]]
    assert [accuracy_at_n(n_best, each) for each in (streams[0], streams)] == [2 / 3, 1]
    for wrong in (["ab", "a", "c"], [["a"], [], ["c"]]):
        with pytest.raises(ValueError, match="`n_best` must hold a list"):
            accuracy_at_n(wrong, streams)


SPLITS = {
    "wer": lambda line: [tuple(line.split())],
    "per": str.split,
    "cer": lambda line: list(line.strip()),
}


def edits_restated(one, other):
    """Levenshtein distance by its recurrence, a row at a time."""
    row = list(range(len(other) + 1))
    for number, symbol in enumerate(one, start=1):
        above, row = row, [number]
        for place, expected in enumerate(other):
            replaced = above[place] + (symbol != expected)
            row.append(min(replaced, above[place + 1] + 1, row[-1] + 1))
    return row[-1]


def error_rate_restated(split, hypotheses, streams):
    edits = symbols = 0
    for hypothesis, *row in zip(hypotheses, *streams, strict=True):
        given = [reference for reference in row if reference is not None]
        counts = [
            (edits_restated(split(hypothesis), split(reference)), -len(split(reference)))
            for reference in [text for text in given if not text.isspace() and text] or given
        ]
        edits, symbols = edits + min(counts)[0], symbols - min(counts)[1]
    return 100 * edits / max(symbols, 1)


def noisy_lines(seed, empty=("",)):
    """Short lines of few symbols, so that distances tie; some are empty."""
    drawn = random.Random(seed)
    lines = (
        " ".join(drawn.choices("aa b ŋː é 𝒳 e\u0301".split(), k=5)[: i % 6]) for i in range(60)
    )
    return [line or drawn.choice(empty) for line in drawn.sample(list(lines), 60)]


RATED = {
    "one reference": (noisy_lines(1), [noisy_lines(2)]),
    "three, in part missing": (
        noisy_lines(3),
        [noisy_lines(4), noisy_lines(5, ("", None)), noisy_lines(6)],
    ),
    "over 100%": (["a b c d e f", "g h"], [["a x", "g h"]]),
    "an empty line is right": (["", "a"], [["", "a"], [" ", ""]]),
    "a blank reference beside another is none": (["", "a b"], [["", "a b"], ["a b", None]]),
    "white space is no reference": (["", ""], [["a b", "\u3000"], [" \t", "c"]]),
    "a space at the end of a reference": (["k æ t", "a"], [["k æ t ", " b"]]),
    "the longest of the nearest": (["a b c"], [["a b"], ["a b c d"]]),
    "no symbol in the references": (["", "a b"], [["", ""]]),
    "white space alone": ([" ", "a  b"], [["", "a b"]]),
}


@pytest.mark.parametrize("case", RATED)
@pytest.mark.parametrize("metric", SPLITS)
def test_error_rates_equal_a_restatement(metric, case):
    hypotheses, streams = RATED[case]
    found = score(metric, hypotheses, streams)
    assert found.name == metric.upper() and "symbol:" in found.signature
    assert found.value == pytest.approx(error_rate_restated(SPLITS[metric], hypotheses, streams))
    if metric == "wer":
        assert found.value == pytest.approx(100 - 100 * exact_match(hypotheses, streams))
    for order in itertools.permutations(streams):
        assert score(metric, hypotheses, list(order)).value == found.value


def test_error_rates_by_hand():
    """Each case shows one rule, so that the restatement cannot share a mistake."""
    found = {case: score("per", *RATED[case]).value for case in RATED}
    assert found["over 100%"] == pytest.approx(100 * 5 / 4)
    assert found["an empty line is right"] == 0
    assert found["a blank reference beside another is none"] == pytest.approx(100 * 2 / 4)
    assert found["white space is no reference"] == 100
    assert found["a space at the end of a reference"] == pytest.approx(100 / 4)
    assert found["the longest of the nearest"] == pytest.approx(100 / 4)
    assert found["no symbol in the references"] == 200
    assert score("cer", ["ABC"], ["abd"], lowercase=True).value == pytest.approx(100 / 3)
    assert score("wer", ["a ", "a", "k æ t"], ["a", "b", "k  æ t "]).value == pytest.approx(100 / 3)
    assert score("cer", ["k æ t", "a b"], ["k æ t ", "a  b"]).value == pytest.approx(100 / 9)


@pytest.mark.parametrize("blank", ["", " ", "\u2003\t", None])
def test_blank_reference_beside_another_changes_no_score_in_any_order(blank):
    for metric in ("bleu", "chrf", *SPLITS):
        one, *others = (
            score(metric, HYPOTHESES, each)
            for each in ([REFERENCES], [REFERENCES, [blank] * 4], [[blank] * 4, REFERENCES])
        )
        assert others == [one, one]


def test_pairs_of_one_source_are_one_line_with_several_references():
    pairs = [("lead", "l iː d"), ("a", "eɪ"), ("lead", "l ɛ d"), ("a", "eɪ"), ("lead", "x")]
    sources, references = merge_references(pairs)
    assert sources == ["lead", "a"]
    assert references == [["l iː d", "eɪ"], ["l ɛ d", None], ["x", None]]
    assert score("per", ["l ɛ d", "ə"], references).value == pytest.approx(100 / 4)
    assert merge_references([]) == ([], [])


@pytest.mark.parametrize("metric", ["bleu", "chrf", *SPLITS])
def test_bootstrap_compares_each_score(metric):
    references, worse = REFERENCES * 25, HYPOTHESES * 25
    found = paired_bootstrap(references, worse, references, metric=metric)
    row = METRICS[metric]
    assert found.score == pytest.approx(100 if row.more_is_better else 0)
    assert found.baseline == pytest.approx(score(metric, worse, references).value)
    assert found.p_value < 0.01 and "bs:1000" in found.signature
    assert ("(less is better)" in str(found)) != row.more_is_better
    # Each is wrong on one half of the lines.
    halves = ["a b c d"] * 50 + ["e"] * 50
    by_chance = paired_bootstrap(halves, halves[::-1], ["a b c d"] * 100, metric=metric)
    assert by_chance.p_value == 1.0
    alone = paired_bootstrap(["a b c d"], ["a b c e"], ["a b c d"], metric=metric)
    assert alone.score != alone.baseline and alone.p_value == 1.0


TWO = ["a", "b"]
# A function, its arguments, the error.
WRONG = [
    (paired_bootstrap, (TWO, ["a"], TWO), "`baseline` and `references` must .*: 1 baseline, 2 ref"),
    (paired_bootstrap, (TWO, "ab", TWO), "`baseline` must be a list of lines"),
    (paired_bootstrap, (TWO, ["a", None], TWO), "`baseline` must be strings. .*: line 2 is None"),
    (score, ("bleu", TWO, [None, "b"]), "`references` must be strings. Received: line 1 is None"),
    (accuracy_at_n, ([["a"], ["b", None]], TWO), "`n_best` must .*strings.*: line 2 is .*None"),
    (accuracy_at_n, ([["a"]], TWO), "`n_best` and `references` must .*: 1 n_best, 2 ref"),
    (accuracy_at_n, ([], []), "`n_best` must hold at least one line"),
    (score, ("exact_match", ["a"], ["a"]), "one of bleu, chrf, wer, per, cer. .*'exact_match'"),
    (score, ("per", TWO, [["a", None], ["b", None]]), "must have a reference. .*: none for line 2"),
]
for function in (bleu, chrf, exact_match):
    WRONG += [
        (function, (TWO, ["a"]), "2 hypotheses, 1 references"),
        (function, (TWO, [TWO, ["a"]]), "2 hypotheses, 1 references"),
        (function, ([], []), "at least one line"),
        (function, ("a man", ["a man"]), "`hypotheses` must be a list of lines.*'a man'"),
        (function, (["a man"], "a man"), "`references` must be a list of lines.*'a man'"),
    ]


@pytest.mark.parametrize(("function", "arguments", "message"), WRONG)
def test_error_names_what_is_wrong(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_page_has_the_table_of_metrics():
    page = (ROOT / "docs" / "pages" / "api" / "evaluation.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w@]+)` \|.*\| (.+) \| (\w+) \|$", page, re.MULTILINE)
    expected = [(n, m.unit, "more" if m.more_is_better else "less") for n, m in METRICS.items()]
    assert rows == expected


WORDS = ["a", "dog", "dogs", "run", "rün", "犬", "."]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_mbr_equals_a_restatement_in_any_order(utility):
    """Of all pairs, by sacreBLEU; most lines are shorter than an n-gram, and some are empty."""
    from sacrebleu.metrics import BLEU, CHRF

    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(20):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(0, 6))) for _ in range(8)]
        lines += draw.choices(lines, k=3)  # a sample may be drawn several times
        means = {a: sum(metric.sentence_score(a, [b]).score for b in lines) for a in lines}
        draw.shuffle(lines)
        order = mbr_order(lines, utility)
        assert sorted(order) == list(range(len(lines)))
        ranked = [lines[index] for index in order]
        assert [means[a] for a in ranked] == pytest.approx(sorted(means[a] for a in lines)[::-1])
        assert "" not in ranked[: sum(map(bool, lines))], "empty ones are last"
        shuffled = draw.sample(lines, len(lines))
        again = [shuffled[index] for index in mbr_order(shuffled, utility)]
        assert [means[a] for a in again] == pytest.approx([means[a] for a in ranked])
        distinct = [a for a in ranked if sum(abs(means[a] - m) < 1e-9 for m in means.values()) == 1]
        assert [a for a in again if a in distinct] == distinct, "only ties depend on the order"
    assert mbr_order(["b", "a"], utility) == [0, 1] and mbr_order([], utility) == []
    assert mbr_order(["", " ", "", "x"], utility)[0] == 3
    with pytest.raises(ValueError, match="`utility` must be one of chrf, bleu. Received: "):
        mbr_order(["a"], "comet")
