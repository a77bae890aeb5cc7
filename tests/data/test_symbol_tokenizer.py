"""Tokenizers of symbols, on all of Unicode. The reference is plain Python."""

import pickle

import pytest

from keras_transformer.data import Tokenizer, TokenizerLike
from keras_transformer.data.pieces import UNICODE
from keras_transformer.data.report import UnknownSymbols
from keras_transformer.data.symbol_parts import symbol_parts

UNICODE_TEXT = "".join(chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000)
# All of Unicode for the rule that takes apart and composes; each 97th character for every rule.
RULES = [("identity", 97), ("nfc", 97), ("nfd", 97), pytest.param("nfd", 1, marks=pytest.mark.long)]
# White space of all kinds, special tokens as text, letters with accents, Hangul, flags.
TEXTS = [
    "",
    " a  b ",
    "\tV;PST </s> <unk>",
    "e\u0301\u0327 각 Å",
    "\U0001f1e9\U0001f1ea\r\n\0",
    "x",
]


def words(text, rule):
    return " ".join(in_form(text, rule).split())


def in_form(text, rule):
    return text if rule == "identity" else UNICODE.normalize("NFC", text)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "vocabulary.json"


@pytest.mark.parametrize(("rule", "step"), RULES)
@pytest.mark.parametrize(
    ("learn", "expected"), [(Tokenizer.characters, in_form), (Tokenizer.words, words)]
)
def test_all_of_unicode_is_restored(learn, expected, rule, step, path):
    text = (" " if expected is words else "").join(UNICODE_TEXT[::step])
    made = learn([text, *TEXTS], path, normalization=rule)
    restored = made.decode(made.encode([text, *TEXTS]))
    assert restored[1:] == [expected(each, rule) for each in TEXTS]
    assert hash(restored[0]) == hash(expected(text, rule))  # pytest would look for differences
    assert list(map(made.normalize, TEXTS)) == [expected(t, rule) for t in TEXTS]
    assert len(set(made.vocabulary)) == made.vocabulary_size
    # Reading a million symbols takes long, and shows no more.
    if step == 1:
        return
    for copy in (Tokenizer.load(path), pickle.loads(pickle.dumps(made))):
        assert copy.kind == made.kind and copy.encode(TEXTS) == made.encode(TEXTS)
        assert (copy.vocabulary, copy.fingerprint()) == (made.vocabulary, made.fingerprint())
    if rule == "nfd":
        assert made.vocabulary[made.encode("\xc5")[-1]] == "\u030a" or expected is words


def test_tokens_are_the_longest_symbols(path):
    symbols = ["V;PST", "V;PST;3", "<en>"]
    made = Tokenizer.characters(["<en>ab V;PST", "V;PST;3"], path, symbols=symbols)
    row = made.encode("V;PST;3V;PSTa<en>")
    assert [made.vocabulary[i] for i in row] == ["V;PST;3", "V;PST", "a", "<en>"]
    clusters = ["e\u0301\u0327", "\U0001f1e9\U0001f1ea", "\u0928\u093f", "\r\n", "a"]
    made = Tokenizer.characters(["".join(clusters)], path, graphemes=True)
    assert sorted(made.vocabulary[4:]) == sorted(clusters)
    assert len(made.encode("".join(clusters))) == 5


def test_special_tokens_are_never_read_from_text_and_unknown_symbols_are_kept(path):
    made = Tokenizer.words(["a </s> a", "b"], path)
    assert made.vocabulary == ["<pad>", "<s>", "</s>", "<unk>", "a", "</s> ", "b"]
    assert made.encode("<pad> <s> </s> x a") == [3, 3, 5, 3, 4]
    assert made.decode([[1, 4, 3, 5, 2, 0]]) == ["a <unk> </s>"]
    found = UnknownSymbols(made, ["x a", "<pad> x"])
    assert found.counts == {"x": 2, "<pad>": 1}
    assert (
        UnknownSymbols(type("KnowsAll", (TokenizerLike,), {})(), ["x"]).note("the source") is None
    )
    assert found.note("the source").startswith("3 symbols of the source are not in the vocabulary")
    named = "2 different ones: 'x' 2 times (line 1), '<pad>' 1 times (line 2)"
    assert found.note("").endswith(named), "no other form of Unicode helps"
    assert made.encode("") == [] and made.decode([]) == []


@pytest.mark.parametrize(
    ("known", "line", "named", "is_cured"),
    [
        ("", "cafe\u0301 cafe\u0301 x", "U+0301 2 times (line 8)", False),
        ("\u00e9", "cafe\u0301", "U+0301 1 times (line 8)", True),
        ("\u0301", "caf\u00e9", "'\u00e9' 1 times (line 8)", True),
        ("", "caf\u00e9", "'\u00e9' 1 times (line 8)", False),
        ("", "\u0e31a", "U+0E31 1 times (line 8)", False),
    ],
)
def test_unknown_accent_is_named_with_its_line_and_the_cure(path, known, line, named, is_cured):
    made = Tokenizer.characters(["cafe x", known + "a"], path)
    found = UnknownSymbols(made)
    found.add(["cafe", line], first=7)
    note = found.note("the source")
    assert named in note and "\u0301" not in note and "\u0e31" not in note
    assert ("`normalization: nfc`" in note) == is_cured


def test_rare_symbols_are_left_out_with_a_warning(path):
    with pytest.warns(UserWarning, match=r"2 of 4 symbols .* 2 times .*'c', 'd'"):
        made = Tokenizer.characters(["aaa", "bb", "dc"], path, vocabulary_size=6)
    assert made.vocabulary[4:] == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokenizer.words([" "]), "a line of text"),
        (lambda: Tokenizer.words("a b"), "iterable of strings"),
        (lambda: Tokenizer.words(["a b"], vocabulary_size=4), "at least 5.*Received: .*=4"),
        (lambda: Tokenizer.characters(["a"], normalization="nfkc"), "'nfc', 'nfd', 'id.*'nfkc'"),
        (lambda: symbol_parts("characters", ["a", "a"], "nfc"), "different.*'a'"),
        (lambda: symbol_parts("characters", ["\xe9"], "nfd"), "form of `normalization`"),
        (lambda: symbol_parts("characters", ["</s> "], "nfd"), "a space behind it.*'</s> '"),
        (lambda: symbol_parts("words", ["a b"], "nfc"), "without white space"),
        (lambda: symbol_parts("words", [""], "nfc"), "not empty"),
    ],
)
def test_wrong_input_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_file_may_be_written_by_hand(path):
    path.parent.mkdir()
    path.write_text(
        '\ufeff {"kind": "words", "normalization": "nfc", "symbols": ["b", "a"]}', "utf-8"
    )
    assert Tokenizer.load(path).vocabulary[4:] == ["b", "a"]


DAMAGED = {
    "{": "damaged|Expecting",
    '{"kind": "letters"}': "letters",
    '{"kind": "words", "x": 1}': "symbols",
    '{"format": 1, "kind": "letters", "rules": {}}': "letters",
    '{"format": 2}': "of a later version",
}


@pytest.mark.parametrize(("text", "named"), DAMAGED.items())
def test_damaged_file_is_named(text, named, path):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"vocabulary\.json must be the file of a token.*{named}"):
        Tokenizer.load(path)
