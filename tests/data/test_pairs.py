"""Sentence pairs: one error, with number, side and value, wherever pairs or lines enter.

A new case is a new row of a table.
"""

import collections
import math
import pathlib
import re
import types

import numpy as np
import pytest

from keras_transformer import TransformerConfig, TranslationEvaluator, evaluation
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.pipeline import BatchStream, make_dataset
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.engine import Engine
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.translator import Translator
from keras_transformer.export.model_card import example_lines
from tests.builders import tokenizer_fixture

pytestmark = pytest.mark.tensorflow_only

GOOD = [("one", "eins"), ("two", "zwei")]
SETTINGS = SearchSettings()
Row = collections.namedtuple("Row", "source target")


class Indexed:
    """A row that can be indexed by column names, and has no order."""

    def __getitem__(self, name):
        return "a"


# Third item of the pairs, and what the error says after "Received: pair 3 ".
NO_PAIRS = [
    ({"en": "a", "de": "b"}, r"is .*choose.*\(\(row\['en'\], row\['de'\]\) for"),
    ({"a": 1, "b": 2, "c": 3}, r"is .*row\['a'\], row\['b'\]\)"),
    ({}, r"is {}; .*row\['source'\], row\['target'\]\)"),
    (
        {"translation": {"en": "a", "de": "b"}},  # as on the Hub
        r"is .*\(\(row\['translation'\]\['en'\], row\['translation'\]\['de'\]\) for row in rows\)",
    ),
    (types.MappingProxyType({"en": "a", "de": "b"}), r"is .*row\['en'\]"),
    *((item, r"is .*; each pair is a tuple") for item in ("ab", "", b"ab", None, math.nan)),
    *((item, r"is .*; each pair") for item in ({"a", "b"}, iter("ab"), Indexed(), np.array("ab"))),
    ((), r"is \(\); the number of its columns is 0"),
    (("a",), r"is \('a',\); the number of its columns is 1"),
    (np.array(["a", "b", "c"]), r"is array.*; the number of its columns is 3"),
    ((math.nan, "b"), r"has source=nan; leave the pair out"),
    (np.array(["a", np.nan], object), r"has target=nan"),
    ((None, "b"), r"has source=None; leave"),
    (["a", None], r"has target=None; leave"),
    ((1, 2), r"has source=1; leave"),
    (("a", True), r"has target=True; leave"),
    ((b"a", "b"), r"has source=b'a'; decode it"),
    ((["a"], ["b"]), r"has source=\['a'\]; leave"),
    (np.array([1, 2]), r"has source=1; leave"),
    (("a\ud800", "b"), r"has source='a\\ud800'; half of a surrogate"),
    (("a", "\udfff"), r"has target='\\udfff'; half of a surrogate"),
]
# What is no iterable of pairs as a whole.
NO_ITERABLES = [
    ({"en": ["a"], "de": ["b"]}, r"Received: dict {.*zip\(sources, targets\)"),
    ("train.tsv", r"Received: str 'train.tsv'; .*`read_parallel`"),
    (b"ab", "Received: bytes b'ab'"),
    (None, "Received: NoneType None"),
    ([], "Received: (0 pairs|no pair)"),
]
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


def beside_others(pairs, others):
    """Pairs that are compared with those of another split."""
    return Corpora([Corpus("pairs", pairs)], held_out={"others": Corpora([Corpus("o", others)])})


tokenizer = tokenizer_fixture(GOOD, 270)


@pytest.fixture
def entrances(tokenizer):
    """Every function that takes pairs."""
    return (
        lambda pairs: make_dataset(pairs, tokenizer, batch_sentences=2),
        lambda pairs: BatchStream(pairs, tokenizer, batch_sentences=2),
        lambda pairs: TranslationEvaluator(lambda lines: lines, pairs),
        lambda pairs: make_dataset(beside_others(pairs, GOOD), tokenizer, batch_sentences=2),
    )


@pytest.mark.parametrize(("pair", "message"), NO_PAIRS)
def test_item_that_is_no_pair_is_named_by_number_side_and_value(entrances, pair, message):
    for enter in entrances:
        with pytest.raises(ValueError, match=rf"`pairs` must be .*Received: pair 3 {message}"):
            enter([*GOOD, pair, *GOOD])


@pytest.mark.parametrize(("pairs", "message"), NO_ITERABLES)
def test_what_holds_no_pairs_is_named(entrances, pairs, message):
    for enter in entrances:
        with pytest.raises(ValueError, match=f"`pairs` must (be|hold) .*{message}"):
            enter(pairs)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_other_types_are_the_same_pairs(tokenizer, name):
    expected = BatchStream(GOOD, tokenizer, batch_sentences=2).fingerprint
    assert BatchStream(PAIRS[name], tokenizer, batch_sentences=2).fingerprint == expected


@pytest.mark.parametrize("name", ["lists", "array"])
def test_pairs_of_other_types_are_found_in_other_splits(name):
    corpora = beside_others(PAIRS[name], PAIRS[name])
    assert list(corpora) == GOOD
    assert corpora.overlaps == {"others": {"sources": 2, "pairs": 2}}


def test_number_of_a_pair_counts_all_chunks(tokenizer):
    pairs = [*GOOD * 5000, ("a", None)]
    with pytest.raises(ValueError, match="pair 10001 has target=None"):
        make_dataset(pairs, tokenizer, batch_sentences=2)


@pytest.mark.parametrize("line", [None, math.nan, 3, b"a", ("a", "b"), "\ud800"], ids=repr)
def test_line_that_is_no_text_is_named(takers, tmp_path, line):
    message = re.escape(f"line 3, {line!r}" if isinstance(line, str) else f"line 3 is {line!r}")
    for argument, take in (
        ("lines", takers["lines"][0]),
        ("lines", lambda lines: Tokenizer.train_on_lines(iter(lines), 270, tmp_path / "m")),
        ("texts", *takers["texts"]),
    ):
        with pytest.raises((TypeError, ValueError), match=f"`{argument}` must be .*{message}"):
            take(["one", "two", line])


# What is no iterable of texts as a whole, and what the error says of it.
NO_TEXTS = {
    "a mapping": ({"one": "eins"}, r"dict {'one': 'eins'}. Choose the texts, such as `list\("),
    "a table": (types.SimpleNamespace(columns=["one"]), r"SimpleNamespace .*Choose the texts"),
    "bytes": (b"one", r"bytes b'one'. Decode bytes with `.decode\(\)`"),
    "bytes of NumPy": (np.bytes_(b"one"), r"bytes_ .*b'one'.*Decode bytes"),
    "a path": (pathlib.Path("one.txt"), r"PosixPath .*one.txt"),
    "an array without axes": (np.array("one"), r"ndarray array\('one'"),
    "a number": (7, r"int 7\b"),
    "nothing": (None, r"NoneType None\b"),
}


@pytest.fixture(scope="module")
def takers(tokenizer):
    """Every function that takes texts, and the name of its argument."""
    engine = Engine()
    engine.tokenizers, engine.config = (tokenizer, tokenizer), TransformerConfig.tiny(270)
    translator = Translator(engine)
    learn = Tokenizer.characters
    return {
        "lines": [translator, lambda lines: learn(lines, "letters.json")],
        "sources": [lambda lines: translator.score(lines, ["one"])],
        "targets": [lambda lines: translator.score(["one"], lines)],
        "target_prefix": [lambda lines: translator(["one"], target_prefix=lines)],
        "texts": [tokenizer.encode],
        "tags": [lambda lines: Tokenizer.train_on_lines(["one"], 265, "one.model", tags=lines)],
        "symbols": [lambda lines: learn(["one"], "letters.json", symbols=lines)],
        "examples": [lambda lines: example_lines(None, lines)],
    }


@pytest.mark.parametrize("name", NO_TEXTS)
def test_what_holds_no_texts_is_named(takers, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, message = NO_TEXTS[name]
    optional = {"target_prefix", "examples"} if texts is None else set()
    for argument in takers.keys() - optional:
        for take in takers[argument]:
            with pytest.raises(TypeError, match=rf"`{argument}` must be .*{message}") as e:
                take(texts)
            assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())


def test_texts_of_other_types_are_the_same_texts(tokenizer):
    expected = tokenizer.encode(["one", "two"])
    strings = np.array(["one", "two"])
    for texts in (strings, strings.astype(object), iter(strings), ("one", np.str_("two"))):
        assert tokenizer.encode(texts) == expected
    assert tokenizer.encode(strings[0]) == expected[0]


@pytest.mark.parametrize("name", NO_TEXTS)
def test_metrics_refuse_what_holds_no_texts(name):
    for texts in (NO_TEXTS[name][0], "one"):
        for lines in ((texts, ["one"]), (["one"], texts), (texts, texts)):
            with pytest.raises((ValueError, TypeError)):
                evaluation.exact_match(*lines)


@pytest.mark.parametrize("value", [None, math.nan, 3, b"b"], ids=repr)
@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_metrics_name_the_line_that_is_no_text(metric, value):
    good, odd = ["a", "b"], ["a", value]
    for name, lines in (("hypotheses", (odd, good)), ("references", (good, odd))):
        with pytest.raises(ValueError, match=f"`{name}` must be strings. Received: line 2 is"):
            getattr(evaluation, metric)(*lines)
