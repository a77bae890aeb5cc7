"""Symbols for protected text: the pairs that get them, and the tokenizers that hold them."""

import re

import numpy as np
import pytest

from keras_transformer import number_names
from keras_transformer.data import add_placeholders
from keras_transformer.data.bpe_dropout import BpeDropout
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.noise import Noise
from keras_transformer.data.placeholders import SYMBOL, count_symbols, symbols
from tests.builders import tokenizer_fixture

PAIRS = number_names("train", 5000)
TEXTS = ["\u27e61\u27e7: twenty-one \u27e62\u27e7", "\u27e62\u27e7one\u27e63\u27e7.", "two"]


tokenizer = tokenizer_fixture(PAIRS[:500], 340, protected_symbols=3)


def test_a_fraction_of_the_pairs_has_the_same_symbols_on_both_sides():
    found = list(add_placeholders(PAIRS, 4, 0.1, seed=3))
    assert found == list(add_placeholders(iter(PAIRS), 4, 0.1, seed=3))
    assert found != list(add_placeholders(PAIRS, 4, 0.1, seed=4))
    changed = [pair for pair, old in zip(found, PAIRS, strict=True) if pair != old]
    assert len(changed) == pytest.approx(500, abs=80)
    words = {side: {pair[side] for pair in PAIRS} for side in (0, 1)}
    counts = set()
    for pair in changed:
        names = SYMBOL.findall(pair[0])
        counts.add(len(names))
        assert names == SYMBOL.findall(pair[1]) == symbols(len(names))
        parts = [[part.strip(" :.") for part in SYMBOL.split(text)] for text in pair]
        for source, target in zip(*parts, strict=True):
            assert (source in words[0] and target in words[1]) or source == target == ""
    assert counts == {1, 2, 3, 4}
    for between in (" ", "", ": "):
        for beside in (rf"\w{between}\u27e6", rf"\u27e7{between}\w"):
            both = [all(re.search(beside, text) for text in pair) for pair in changed]
            assert sum(both) > 20, beside
    assert not any(text[0] in " :." or text[-1] == " " for pair in changed for text in pair)


@pytest.mark.parametrize(
    "pair, expected",
    [
        (("in 1999 .", "Jahr 1999 ."), ("in \u27e61\u27e7 .", "Jahr \u27e61\u27e7 .")),
        (("see www.a.b/c", "www.a.b/c da"), ("see \u27e61\u27e7", "\u27e61\u27e7 da")),
        (("Anna, Bob", "Bob ."), ("Anna, \u27e61\u27e7", "\u27e61\u27e7 .")),
        (("hello there", ""), ("hello there", "")),
        ((" ", "in 1999"), (" ", "in 1999")),
    ],
)
def test_a_word_of_both_sides_becomes_a_symbol(pair, expected):
    assert list(add_placeholders([pair], 2, rate=1.0)) == [expected]


def test_tokenizers_hold_each_symbol_as_one_token(tokenizer):
    assert count_symbols(tokenizer.vocabulary, tokenizer.vocabulary) == 3
    rows = tokenizer.encode(TEXTS)
    tokens = [[tokenizer.vocabulary[i] for i in row] for row in rows]
    assert [[t for t in row if t in symbols(3)] for row in tokens] == list(
        map(SYMBOL.findall, TEXTS)
    )
    assert tokenizer.decode(rows) == TEXTS


def test_noise_leaves_symbols_whole(tokenizer):
    rng = np.random.default_rng(0)
    rows = tokenizer.encode(TEXTS)
    assert BpeDropout(tokenizer, 0.0).split(TEXTS, rng) == rows
    assert tokenizer.decode(BpeDropout(tokenizer, 1.0).split(TEXTS, rng)) == TEXTS
    token_ids = np.array([rows[0] * 50])
    Noise((tokenizer, tokenizer), None, 0.9).drop_words(0, token_ids, rng)
    kept = [tokenizer.vocabulary[i] for i in token_ids[0]]
    assert [kept.count(name) for name in symbols(2)] == [50, 50]


def test_corpora_with_placeholders_are_another_corpus():
    corpora = Corpora([Corpus("numbers", PAIRS[:100])])
    before = corpora.fingerprint()
    corpora.placeholders = 2, 0.2, 1
    assert list(corpora) == list(add_placeholders(PAIRS[:100], 2, 0.2, 1))
    assert corpora.counts["pairs"] == [100] and corpora.fingerprint() != before


def test_pairs_are_joined_within_a_corpus_and_not_with_a_blank_side():
    corpora = Corpora([Corpus(name, [(name, name), (name, ""), (name, name)]) for name in "abcdef"])
    corpora.placeholders = 3, 1.0, 0
    found = list(corpora)
    assert any(source.count(name) > 1 for name in "abcdef" for source, _ in found)
    letters = [{*filter(str.isalpha, source)} for source, _ in found]
    assert letters == [{name} for name in "abcdef" for _ in range(3)]
    assert [source == target for source, target in found] == [True, False, True] * 6
