"""The report of a dataset warns of pairs that are dropped and of text that a tokenizer changes."""

import unicodedata

import pytest

from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.pipeline import make_dataset
from keras_transformer.data.report import Sample, text_changes
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.models.config import TransformerConfig
from tests.builders import tokenizer_fixture

pytestmark = pytest.mark.tensorflow_only
GOOD = number_names("train", 990)


VOCABULARY_SIZE = 340
tokenizer = tokenizer_fixture(GOOD, VOCABULARY_SIZE)


def report_of(pairs, tokenizer, **options):
    options = {"batch_tokens": 2000, "max_length": 80, "max_length_ratio": 9.0} | options
    return make_dataset(pairs, tokenizer, **options)[1]


EMPTY, LONG = ("nothing", ""), (" ".join(["one"] * 60), " ".join(["eins"] * 60))
RATIO = ("one", " ".join(["eins zwei drei vier fünf"] * 3))
LEARNED = TransformerConfig(
    vocabulary_size=VOCABULARY_SIZE, positions="learned", max_sequence_length=80
)
# {name: (pair that is dropped, number of them, options, words of the warning)}
DROPPED = {
    "empty": (EMPTY, 10, {}, ["1.0% of the pairs (10 of 1,000)", "'nothing' | ''", "mend"]),
    "too long": (LONG, 110, {}, ["10.0%", "'one one ", "raise `max_length`", "allow 80 tokens"]),
    "budget": (LONG, 10, {"batch_tokens": 70}, ["too long", "allow 70 tokens"]),
    "positions": (
        LONG,
        10,
        {"max_length": None, "config": LEARNED},
        ["too long", "`max_sequence_length`", "allow 80 tokens"],
    ),
    "ratio": (RATIO, 10, {}, ["length ratio", "'one' | 'eins", "`max_length_ratio` (now 9.0)"]),
}


each_dropped = pytest.mark.parametrize(
    "pair, number, options, words", DROPPED.values(), ids=DROPPED.keys()
)


@each_dropped
def test_dropped_pairs_are_a_warning_from_one_percent_on(tokenizer, pair, number, options, words):
    few = report_of([*GOOD, *[pair] * (number - 1)], tokenizer, **options)
    assert few.warnings == () or number > 10
    report = report_of([*GOOD, *[pair] * number], tokenizer, **options)
    (warning,) = report.warnings
    assert all(word in warning for word in words), warning
    assert f"Warning: {warning}" in str(report).splitlines()


@each_dropped
def test_error_of_a_corpus_that_is_dropped_names_the_limit_and_the_cure(
    tokenizer, pair, number, options, words
):
    with pytest.raises(ValueError, match="Received: 7 pairs .*100.0% of the pairs") as caught:
        report_of([pair] * 7, tokenizer, **options)
    assert all(word in str(caught.value) for word in words if "%" not in word)


def test_examples_of_dropped_pairs_are_three_and_short(tokenizer):
    pairs = [(f"one hundred and {n}", "") for n in range(40)]
    (warning,) = report_of([*GOOD, *pairs], tokenizer).warnings
    assert [f"'one hundred and {n}' | ''" in warning for n in range(4)] == [True] * 3 + [False]
    (warning,) = report_of([*GOOD, *[LONG] * 40], tokenizer).warnings
    assert len(warning) < 450


# {name: (rule, line, what the tokenizer makes of it)}
CHANGED = {
    "fraction": ("nfkc", "a ½ b", "a 1⁄2 b"),
    "two spaces": ("nfc", "a  b", "a b"),
    "trailing space": ("nfc", "a b ", "a b"),
    "space symbol": ("identity", "a▁b", "a b"),
    "decomposed": ("nfc", unicodedata.normalize("NFD", "ü"), "ü"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_text_is_measured_against_the_raw_line(tmp_path, name):
    rule, line, after = CHANGED[name]
    tokenizer = Tokenizer.train_on_lines([*CHANGED, line], 300, tmp_path / "m", normalization=rule)
    lines = ["a b"] * 99 + [line]
    changes = text_changes("target", tokenizer, lines)
    assert (changes.lines, changes.changed) == (100, 1)
    assert changes.examples == (f"{line!r} -> {after!r}",)
    (warning,) = changes.warnings
    assert "1.0% of the target lines (1 of 100)" in warning and changes.examples[0] in warning
    assert not text_changes("target", tokenizer, ["a b", *lines]).warnings, "less than 1%"


def test_report_names_the_side_whose_text_is_changed(tmp_path):
    pairs = [("a b", "½ c"), ("b a", "c")] * 20
    lines = [line for pair in pairs for line in pair]
    tokenizer = Tokenizer.train_on_lines(lines, 270, tmp_path / "m", normalization="nfkc")
    report = report_of(pairs, tokenizer)
    assert [(each.name, each.lines, each.changed) for each in report.changes] == [
        ("source", 40, 0),
        ("target", 40, 20),
    ]
    (warning,) = report.warnings
    assert warning.count("'½ c' -> '1⁄2 c'") == 3 and "50.0% of the target lines" in warning
    assert "`normalization: nfc`" in warning


# {name: (tokenizer, lines, fractions of unknown tokens and of byte tokens)}
LOST = {
    "bytes": (Tokenizer.train_on_lines, ["\u0434"] * 3, (0, 2 / 3)),  # a space and two bytes
    "unknown symbols": (Tokenizer.characters, ["a\u0434b", "a"], (1 / 4, 0)),
    "one of 100": (Tokenizer.words, ["a b"] * 49 + ["a x"], (1 / 100, 0)),
    "two of 100": (Tokenizer.words, ["a b"] * 48 + ["a x"] * 2, (2 / 100, 0)),
    "no line": (Tokenizer.words, [], (0, 0)),
}


@pytest.mark.parametrize("name", LOST)
def test_report_has_the_fractions_of_unknown_and_byte_tokens(tmp_path, name):
    learn, lines, shares = LOST[name]
    size = 265 if name == "bytes" else None
    tokenizer = learn(["a b", "b a ab"], path=tmp_path / "m", vocabulary_size=size)
    changes = text_changes("source", tokenizer, lines)
    assert (changes.unknown_tokens, changes.byte_tokens) == pytest.approx(shares)
    warnings = [each for each in changes.warnings if "train the vocabulary on this text" in each]
    assert len(warnings) == (sum(shares) > 0.01)
    assert not warnings or f"{shares[0]:.2%} of the source tokens are unknown" in warnings[0]
    if lines:
        report = report_of([(line, "a") for line in lines], tokenizer)
        assert report.changes[0].shares in str(report) and report.changes[1].shares not in str(
            report
        )


@pytest.mark.parametrize("chunk", [1, 7, 5000])
@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 12_345])
def test_sample_is_every_nth_item_from_the_first_on(number, chunk):
    sample, items = Sample(), list(range(number))
    for start in range(0, number, chunk):
        sample.extend(items[start : start + chunk])
    every = 1
    while len(items[::every]) > 1000:
        every *= 2
    assert sample.items == items[::every]
    if chunk == 1:
        read = Sample(items)
        assert list(read) == items and read.items == sample.items
