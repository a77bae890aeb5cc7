"""Tokenizers that `Tokenizer` did not train: SentencePiece models with other ids, a user's class.

The reference is SentencePiece's own processor. Those of KerasHub are in another file.
"""

import functools
import json

import numpy as np
import pytest
import sentencepiece
from tokenizer_agreement import train_sentencepiece

import keras_transformer as kt
from keras_transformer.data import SentencePieces, Tokenizer, TokenizerLike
from keras_transformer.data.pieces import load_pieces
from keras_transformer.data.tokenizer_file import write_tokenizer
from tests.importing import opus_models

PAIRS = kt.number_names(size=200)
SOURCES, TARGETS = (list(side) for side in zip(*PAIRS, strict=True))
# Characters and words that the models do not know, white space, no text.
TEXTS = ["twenty-one", "  ein  Haus, Größe", "Ωμέγα \N{CAT FACE} one", "", "ein und zwei!"]


train = functools.partial(train_sentencepiece, vocabulary_size=100)


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def t5():
    """Pad 0, end 1, unknown 2 and no start token: it gets an id after the pieces."""
    model = train(SOURCES + TARGETS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    pieces = pieces_of(model)
    return [(model, Tokenizer.from_sentencepiece(model, start_token_id=len(pieces)), pieces)]


def mbart():
    """The ids of fairseq: other special tokens first, other tokens after the pieces."""
    model = train(SOURCES + TARGETS)  # <unk>, <s>, </s>
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)[3:], "de_DE", "<mask>"]
    return [(model, Tokenizer.from_sentencepiece(model, vocabulary=pieces), pieces)]


def marian():
    """A model for each language, one file of ids for both, `<pad>` last, and no `<s>`."""
    models = train(SOURCES), train(TARGETS, model_type="bpe")
    pieces = ["</s>", "<unk>"]
    pieces += sorted({*pieces_of(models[0])[3:], *pieces_of(models[1])[3:]}) + ["<pad>"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    options = {"vocabulary": ids, "start_token_id": len(ids)}
    return [(model, Tokenizer.from_sentencepiece(model, **options), pieces) for model in models]


@pytest.mark.parametrize("make", [t5, mbart, marian])
def test_ids_and_texts_are_those_of_sentencepiece(make):
    for model, tokenizer, vocabulary in make():
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        known = set(pieces_of(model)) & set(vocabulary)
        pieces = [processor.encode(text, out_type=str) for text in TEXTS]
        pieces = [[p if p in known else "<unk>" for p in row] for row in pieces]
        expected = [[vocabulary.index(piece) for piece in row] for row in pieces]
        assert tokenizer.encode(TEXTS) == expected
        # Also of pieces that only the other language has, as Marian's own tokenizer writes them.
        rng = np.random.default_rng(0)
        rows = rng.integers(0, len(vocabulary), (50, 9)).astype("int32")
        special = {tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id}
        texts = [
            processor.decode_pieces([vocabulary[i] for i in row if i not in special])
            for row in rows
        ]
        if set(vocabulary) - set(pieces_of(model)):
            texts = [text.replace("\u2581", " ").strip() for text in texts]
        assert tokenizer.decode(rows) == texts
        assert tokenizer.vocabulary[: len(vocabulary)] == vocabulary


class Characters(TokenizerLike):
    """A tokenizer that a user writes: one token for each ASCII character."""

    vocabulary_size, pad_token_id, start_token_id, end_token_id = 128, 0, 1, 2
    vocabulary = tuple(map(chr, range(32))) + ("\u2581", *map(chr, range(33, 128)))

    def encode(self, texts):
        return [tuple(map(ord, text)) for text in texts]

    def decode(self, rows):
        return ["".join(chr(i) for i in row if i > 2) for row in rows]


def opus():
    return Tokenizer.from_marian(opus_models.sentencepiece_models()[0], opus_models.vocabulary())


@pytest.mark.parametrize(
    ("make", "tag", "texts"),
    [
        (opus, ">>deu<<", ["", "twenty-one", ">>fra<< one"]),
        (lambda: Tokenizer.words(["a b"]), "b", ["", "a", "b x"]),
    ],
)
def test_pieces_of_a_saved_tokenizer_begin_with_its_tag(make, tag, texts, tmp_path):
    tokenizer = make().with_tag(tag)
    tokenizer.save(tmp_path / "t.json")
    rows = [[tokenizer.vocabulary[i] for i in row] for row in tokenizer.encode(texts)]
    assert [row[:1] for row in rows] == [[], [tag], [tag]]
    assert load_pieces(tmp_path / "t.json").encode(texts) == rows


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [
        (
            "t5.model",
            "str without the integer `vocabulary_size`.*`vocabulary`, `decode.*`TokenizerLike`",
        ),
        (type("NoEnd", (Characters,), {"end_token_id": None})(), "without the integer `end_token_"),
        (
            type("OfBefore", (), {"tokenize": print})(),
            "`vocabulary`, `encode\\(\\)`, `decode\\(\\)`, the base class `TokenizerLike`\\.",
        ),
    ],
)
def test_objects_that_are_no_tokenizers_are_told_what_they_lack(tokenizer, named):
    with pytest.raises(TypeError, match=f"^`tokenizer` must be .*Received: .*{named}"):
        kt.make_dataset(PAIRS, tokenizer, batch_sentences=9)
    with pytest.raises(TypeError, match=f"^`target_tokenizer` must be .*Received: .*{named}"):
        kt.Translator(None, Characters(), tokenizer)


@pytest.mark.parametrize(
    ("rows", "error", "named"),
    [
        ([[1.5], [3]], TypeError, "must return a list of ints for each text.*1.5.*'a'"),
        ([[[3]], [3]], TypeError, "must return a list of ints for each text.*'a'"),
        ([[3]], ValueError, "must return a row for each text. Received: 1 rows for 2 texts"),
        ([[], [3, 128]], ValueError, "must return ids from 0 to 127.*Received: 128"),
        ([[-1], []], ValueError, "must return ids from 0 to 127.*Received: -1"),
    ],
)
def test_ids_that_are_none_of_the_vocabulary_are_refused(rows, error, named):
    tokenizer = type("Wrong", (Characters,), {"encode": lambda self, texts: rows})()
    with pytest.raises(error, match=f"^`Wrong.encode` {named}"):
        kt.make_dataset([("a", "b")] * 2, tokenizer, batch_sentences=9)


def test_ids_of_numpy_are_written_as_numbers(tmp_path):
    """As in the folder of a SavedModel, which has a file of the vocabulary."""
    members = {"end_token_id": np.int64(2), "language_ids": {"eng_Latn": np.int32(5)}}
    members |= {"joiner": "", "tag_ids": (np.int64(7),)}
    write_tokenizer(tmp_path / "t.json", type("Numbered", (Characters,), members)())
    entries = json.loads((tmp_path / "t.json").read_text("utf-8"))
    found = [entries[name] for name in ("pad_token_id", "end_token_id", "unk_token_id")]
    assert found == [0, 2, None] and entries["language_ids"] == {"eng_Latn": 5}
    assert (entries["joiner"], entries["tag_ids"]) == ("", [7])


@pytest.fixture(scope="module")
def model():
    return t5()[0][0]


def test_ids_without_a_piece_have_no_text(model):
    tokenizer = Tokenizer.from_sentencepiece(model, start_token_id=200, vocabulary_size=300)
    assert tokenizer.vocabulary_size == 300
    assert [tokenizer.vocabulary[i] for i in (1, 200, 299)] == ["</s>", "<s>", ""]
    assert tokenizer.decode([[200, 299, 1]]) == [""]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "`start_token_id` must be given.*no '<s>'"),
        ({"start_token_id": 0}, "`start_token_id` must differ from `pad_token_id`.*Received: 0"),
        ({"start_token_id": 7}, "`start_token_id` must be the id of a control piece.*Received: 7"),
        ({"start_token_id": 500, "vocabulary_size": 300}, "must be at least 501.*=300"),
        ({"start_token_id": 200, "vocabulary_size": 0}, "must be at least 201.*=0"),
        ({"vocabulary": {"a": 0, "b": -1}}, "`vocabulary` must have ids from 0.*{'b': -1}"),
        ({"start_token_id": 9, "vocabulary": ["a"]}, "`pad_token_id` must be given.*no '<pad>'"),
    ],
)
def test_special_tokens_without_an_id_of_their_own_are_refused(model, options, named):
    with pytest.raises(ValueError, match=named):
        Tokenizer.from_sentencepiece(model, **options)


def test_dropped_pieces_may_be_an_iterator():
    model = train(SOURCES)
    pieces = pieces_of(model)[3:5]
    read = SentencePieces(model, "sentencepiece", dropped_pieces=iter(pieces))
    assert read.rules["dropped_pieces"] == pieces and read.decode([pieces]) == [""]
