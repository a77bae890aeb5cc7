"""Pieces for texts in one language, against SentencePiece and the tokenizer without them."""

import pickle

import numpy as np
import pytest
import sentencepiece
import tokenizer_agreement

import keras_transformer as kt
from keras_transformer.data.added_pieces import learn_pieces
from keras_transformer.data.pieces import SENTENCEPIECE, SentencePieces, load_pieces
from keras_transformer.data.vocabulary import Vocabulary

ENGLISH, GERMAN = (list(side) for side in zip(*kt.number_names("train", 600), strict=True))
NEW = [
    line.replace("hundert", "чүс").replace("ei", "ӧү").replace("und", " биле ") for line in GERMAN
]
NUMBER = 60


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizers(request):
    """One with an old language, and the same with pieces for a new one."""
    options = {"character_coverage": 1.0, "model_type": request.param}
    model = tokenizer_agreement.train_sentencepiece([*ENGLISH, *GERMAN], 120, **options)
    pieces = SentencePieces(model, SENTENCEPIECE, sorts_ties=request.param == "unigram")
    tokens, languages = [*pieces.names(), "<pad>", "eng_Latn"], {"eng_Latn": 121}
    special = {"start_token_id": 1, "end_token_id": 2, "unk_token_id": 0}
    vocabulary = Vocabulary(tokens, pad_token_id=120, language_ids=languages, **special)
    old = kt.Tokenizer(pieces, vocabulary)
    added = learn_pieces(old.pieces, NEW, NUMBER, old.vocabulary)
    return old, old.with_language("tyv_Cyrl", "tyv_Cyrl", added)


def test_other_text_is_split_as_before(tokenizers):
    old, new = tokenizers
    text = [*tokenizer_agreement.awkward_strings(1000, NEW), *ENGLISH, *NEW]
    expected = old.encode(text)
    assert new.encode(text) == expected
    assert new.for_language(new.language_ids["eng_Latn"]) is new
    assert new.decode(expected) == old.decode(expected)
    assert new.vocabulary[: old.vocabulary_size] == old.vocabulary


def test_text_in_the_language_is_split_as_sentencepiece_does_with_all_pieces(tokenizers):
    old, new = tokenizers
    added = new.vocabulary[old.vocabulary_size + 1 :]
    assert 40 < len(added) <= NUMBER and {"ч", "ү", "с", "ӧ"} <= {*added}
    of_language = new.for_language(new.language_ids["tyv_Cyrl"])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=new.model_bytes)
    ids = {token: token_id for token_id, token in enumerate(new.vocabulary)}
    rows = of_language.encode(NEW)
    if not old.pieces.sorts_ties:
        pieces = theirs.encode(NEW, out_type=str)
        assert rows == [[ids[piece] for piece in row] for row in pieces]
    used = {token_id for row in rows for token_id in row}
    assert len(used & {ids[piece] for piece in added}) > len(added) / 2
    assert sum(map(len, rows)) < 0.7 * sum(map(len, old.encode(NEW)))
    assert of_language.decode(rows) == new.decode(rows) == [" ".join(line.split()) for line in NEW]
    for piece in added:
        if piece.startswith("▁"):
            assert of_language.encode(piece[1:]) == [ids[piece]]
    assert len(learn_pieces(old.pieces, NEW, 5, old.vocabulary)) == 5


def test_pieces_of_a_second_language_are_refused(tokenizers):
    _, new = tokenizers
    with pytest.raises(ValueError, match="one language.*'kir_Cyrl', .* for 'tyv_Cyrl'"):
        new.with_language("kir_Cyrl", "kir_Cyrl", ["zzz"])
    other = new.with_language("kir_Cyrl", "kir_Cyrl")
    for code in ("tyv_Cyrl", "kir_Cyrl"):
        expected = new.for_language(new.language_ids.get(code)).encode(NEW[:9])
        assert other.for_language(other.language_ids[code]).encode(NEW[:9]) == expected


def test_file_pickle_and_graph_hold_both_ways(tokenizers, tmp_path):
    old, new = tokenizers
    token_id = new.language_ids["tyv_Cyrl"]
    expected = new.encode(NEW[:50]), new.for_language(token_id).encode(NEW[:50])
    new.save(tmp_path / "tokenizer.json")
    for copied in (kt.Tokenizer.load(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(new))):
        assert copied.fingerprint() == new.fingerprint() != old.fingerprint()
        ways = copied, copied.for_language(token_id)
        assert tuple(way.encode(NEW[:50]) for way in ways) == expected
    pieces = load_pieces(tmp_path / "tokenizer.json").for_language("tyv_Cyrl")
    rows = [[new.vocabulary[i] for i in row] for row in expected[1]]
    assert pieces.encode(NEW[:50]) == rows and pieces.decode(rows) == new.decode(expected[1])
    pytest.importorskip("tensorflow_text")
    for way, ids in zip((new, new.for_language(token_id)), expected, strict=True):
        assert way.graph.tokenize(NEW[:50]).to_list() == ids
        texts = way.graph.detokenize(expected[1]).numpy()
        assert [text.decode() for text in texts] == new.decode(expected[1])


def test_batches_split_each_text_by_its_language(tokenizers, tmp_path):
    _, new = tokenizers
    pairs = list(zip(ENGLISH, NEW, strict=True))[:40]
    (there, back), languages = (tmp_path / "there.tsv", tmp_path / "back.tsv"), new.language_ids
    there.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    back.write_text("".join(f"{b}\t{a}\n" for a, b in pairs), "utf-8")
    theirs = {"languages": ("tyv_Cyrl", "en")}  # a code that people type
    corpora = kt.data.Corpora(
        [
            kt.data.Corpus("there", kt.read_parallel(there)),
            kt.data.Corpus("back", kt.read_parallel(back), weight=2, **theirs),
        ]
    )
    codes = {"source_language": "eng_Latn", "target_language": "tyv_Cyrl"}
    for store in (None, tmp_path / "store", tmp_path / "store"):
        dataset, report = kt.make_dataset(corpora, new, batch_sentences=9, store=store, **codes)
        assert all(change.unknown_tokens == 0 for change in report.changes)
        found, stream = {}, dataset.stream
        for rows in stream.batches(0):
            inputs, labels, _ = stream.arrays(rows)
            for number, *sides in zip(rows, inputs["encoder_token_ids"], labels, strict=True):
                found[int(number)] = [[i for i in side.tolist() if i != 120] for side in sides]
        for number, row in found.items():
            english, text = pairs[number % 40]
            ids = [
                [languages[code], *new.for_language(languages[code]).encode(line), 2]
                for code, line in (("eng_Latn", english), ("tyv_Cyrl", text))
            ]
            assert row == (ids if number < 40 else ids[::-1])
        passes = np.bincount(np.concatenate(stream.batches(0)))
        assert passes.tolist() == [1] * 40 + [2] * 40
    one = kt.make_dataset(corpora, new, batch_sentences=9, **codes)[0].stream.fingerprint
    codes["target_language"] = "eng_Latn"
    other = kt.make_dataset(corpora, new, batch_sentences=9, store=tmp_path / "store", **codes)
    assert other[0].stream.fingerprint != one
    assert len([*(tmp_path / "store").glob("*/store.json")]) == 2
