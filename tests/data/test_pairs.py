"""Sentence pairs: one error, with number, side and value, wherever pairs or lines enter.

A new case is a new row of a table.
"""

import collections
import math
import types

import numpy as np
import pytest

from keras_transformer import TranslationEvaluator, evaluation
from keras_transformer.data.pipeline import BatchStream, make_dataset
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.texts import checked_lines

pytestmark = pytest.mark.tensorflow_only

GOOD = [("one", "eins"), ("two", "zwei")]
Row = collections.namedtuple("Row", "source target")


class Indexed:
    """A row that can be indexed by column names, and has no order."""

    def __getitem__(self, name):
        return "a"


# {name: (third item of the pairs, what the error says after "Received: pair 3 ")}.
NO_PAIRS = {
    "dictionary": ({"en": "a", "de": "b"}, r"is .*choose.*\(\(row\['en'\], row\['de'\]\) for"),
    "dictionary of columns": ({"a": 1, "b": 2, "c": 3}, r"is .*row\['a'\], row\['b'\]\)"),
    "empty dictionary": ({}, r"is {}; .*row\['source'\], row\['target'\]\)"),
    "row of the Hub": (
        {"translation": {"en": "a", "de": "b"}},
        r"is .*\(\(row\['translation'\]\['en'\], row\['translation'\]\['de'\]\) for row in rows\)",
    ),
    "other mapping": (types.MappingProxyType({"en": "a", "de": "b"}), r"is .*row\['en'\]"),
    "counter": (collections.Counter("ab"), r"is Counter.*row\['a'\]"),
    "string of two letters": ("ab", r"is 'ab'; each pair is a tuple"),
    "string": ("a b", r"is 'a b'; each pair"),
    "empty string": ("", r"is ''; each pair"),
    "bytes": (b"ab", r"is b'ab'; each pair"),
    "None": (None, r"is None; each pair"),
    "number": (7, r"is 7; each pair"),
    "NaN": (math.nan, r"is nan; each pair"),
    "set": ({"a", "b"}, r"is {'a', 'b'}; each pair"),
    "generator": ((each for each in "ab"), r"is <generator.*; each pair"),
    "object": (Indexed(), r"is <tests.*; each pair"),
    "no column": ((), r"is \(\); the number of its columns is 0"),
    "one column": (("a",), r"is \('a',\); the number of its columns is 1"),
    "three columns": (("a", "b", "c"), r"is \('a', 'b', 'c'\); the number of its columns is 3"),
    "array of three": (np.array(["a", "b", "c"]), r"is array.*; the number of its columns is 3"),
    "array without axes": (np.array("ab"), r"is array.*; each pair"),
    "NaN source": ((math.nan, "b"), r"has source=nan; leave the pair out"),
    "NaN target": (("a", math.nan), r"has target=nan; leave the pair out"),
    "NumPy's NaN": (np.array(["a", np.nan], object), r"has target=nan"),
    "None source": ((None, "b"), r"has source=None; leave"),
    "None target": (["a", None], r"has target=None; leave"),
    "numbers": ((1, 2), r"has source=1; leave"),
    "number target": (("a", 2.5), r"has target=2.5; leave"),
    "boolean": (("a", True), r"has target=True; leave"),
    "bytes source": ((b"a", "b"), r"has source=b'a'; decode it"),
    "bytes target": (("a", b"b"), r"has target=b'b'; decode it"),
    "list of tokens": ((["a"], ["b"]), r"has source=\['a'\]; leave"),
    "array of numbers": (np.array([1, 2]), r"has source=1; leave"),
    "surrogate source": (("a\ud800", "b"), r"has source='a\\ud800'; half of a surrogate"),
    "surrogate target": (("a", "\udfff"), r"has target='\\udfff'; half of a surrogate"),
}
# What is no iterable of pairs as a whole.
NO_ITERABLES = {
    "columns": ({"en": ["a"], "de": ["b"]}, r"Received: dict {.*zip\(sources, targets\)"),
    "path": ("train.tsv", r"Received: str 'train.tsv'; .*`read_parallel`"),
    "bytes": (b"ab", "Received: bytes b'ab'"),
    "None": (None, "Received: NoneType None"),
    "number": (3, "Received: int 3"),
}
PAIRS = {
    "tuples": GOOD,
    "lists": [list(pair) for pair in GOOD],
    "named": [Row(*pair) for pair in GOOD],
    "array": np.array(GOOD),
    "array of objects": np.array(GOOD, object),
    "generator": (pair for pair in GOOD),
    "zip": zip(*zip(*GOOD, strict=True), strict=True),
    "texts of NumPy": [tuple(map(np.str_, pair)) for pair in GOOD],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    lines = [line for pair in GOOD for line in pair]
    return Tokenizer.train_on_lines(lines, 270, tmp_path_factory.mktemp("pairs") / "m")


@pytest.fixture
def entrances(tokenizer):
    """Every function that takes pairs."""
    return (
        lambda pairs: make_dataset(pairs, tokenizer, batch_sentences=2),
        lambda pairs: BatchStream(pairs, tokenizer, batch_sentences=2),
        lambda pairs: TranslationEvaluator(lambda lines: lines, pairs),
    )


@pytest.mark.parametrize("name", NO_PAIRS)
def test_item_that_is_no_pair_is_named_by_number_side_and_value(entrances, name):
    pair, message = NO_PAIRS[name]
    for enter in entrances:
        with pytest.raises(ValueError, match=rf"`pairs` must be .*Received: pair 3 {message}"):
            enter([*GOOD, pair, *GOOD])


@pytest.mark.parametrize("name", NO_ITERABLES)
def test_what_holds_no_pairs_is_named(entrances, name):
    pairs, message = NO_ITERABLES[name]
    for enter in entrances:
        with pytest.raises(ValueError, match=f"`pairs` must be .*{message}"):
            enter(pairs)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_other_types_are_the_same_pairs(tokenizer, name):
    expected = BatchStream(GOOD, tokenizer, batch_sentences=2).fingerprint
    assert BatchStream(PAIRS[name], tokenizer, batch_sentences=2).fingerprint == expected


def test_no_pair_at_all_is_named(entrances):
    for enter in entrances:
        with pytest.raises(ValueError, match="`pairs` must hold .*Received: (0 pairs|no pair)"):
            enter([])


def test_number_of_a_pair_counts_all_chunks(tokenizer):
    pairs = [*GOOD * 5000, ("a", None)]
    with pytest.raises(ValueError, match="pair 10001 has target=None"):
        make_dataset(pairs, tokenizer, batch_sentences=2)


# {name: (third line, what the error says)}
NO_LINES = {
    "None": (None, "line 3 is None"),
    "NaN": (math.nan, "line 3 is nan"),
    "number": (3, "line 3 is 3"),
    "bytes": (b"a", "line 3 is b'a'"),
    "pair": (("a", "b"), r"line 3 is \('a', 'b'\)"),
    "surrogate": ("\ud800", r"in line 3, '\\ud800'"),
}


@pytest.mark.parametrize("name", NO_LINES)
def test_line_that_is_no_text_is_named(tmp_path, name):
    line, message = NO_LINES[name]
    lines = ["one", "two", line]
    with pytest.raises((TypeError, ValueError), match=f"`lines` must be .*{message}"):
        Tokenizer.train_on_lines(iter(lines), 270, tmp_path / "m")
    with pytest.raises((TypeError, ValueError), match=f"`lines` must be .*{message}"):
        checked_lines(lines, "lines")


@pytest.mark.parametrize("lines", [None, 3, {"en": ["a"]}], ids=repr)
def test_lines_that_are_no_iterable_of_strings_are_named(tmp_path, lines):
    with pytest.raises(TypeError, match="`lines` must be an iterable of strings"):
        Tokenizer.train_on_lines(lines, 270, tmp_path / "m")


@pytest.mark.parametrize("value", [None, math.nan, 3, b"b"], ids=repr)
@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_metrics_name_the_line_that_is_no_text(metric, value):
    good, odd = ["a", "b"], ["a", value]
    for name, lines in (("hypotheses", (odd, good)), ("references", (good, odd))):
        with pytest.raises(ValueError, match=f"`{name}` must be strings. Received: line 2 is"):
            getattr(evaluation, metric)(*lines)
