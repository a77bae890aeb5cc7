"""The tokenizer in the folder of an export is that of the model."""

import sys
from unittest import mock

import pytest
from tokenizer_agreement import train_sentencepiece

from keras_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translator,
    export_ctranslate2,
)
from keras_transformer.data import SentencePieceTokenizer
from keras_transformer.data.marian_tokenizer import MarianTokenizer
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.piece_tokenizer import FolderTokenizer

pytest.importorskip("ctranslate2")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# White space of all kinds, control characters, marks and emoji, special tokens, tags.
SPACES = "\t\n\x0b\x0c\r\x1c\x1f\x85\xa0\u1680\u2028\u2029\u202f\u3000\u2581"
TEXTS = [
    *("", " ", "\t", "\n", "\u2028", "\u2581", " \u2581 ", "seven hundred", "  two   words "),
    *(f"two{space}words" for space in SPACES),
    *("two\r\nwords", "two\u200bwords", "\u2581two", "\u2581\u2581two", "two\u2581", "a\x00b"),
    *("\x7f", "\ufeffone", "\ufffd", "Ωμέγα 😀", "👩🏽\u200d🚀", "e\u0301te\u0301", "\xe9t\xe9"),
    *("가각", "ㅎㅏㄴ", "ｆｕｌｌ", "½ ʲ … ， ？", "⁇", "ﬁne", "\u212b A\u030a", "\U0010ffff", "ﷺ"),
    *("</s>", "<unk>", "<pad>", "<s> one", "<0x41>", ">>fra<< one", ">>fra<<", ">>xx<< one"),
    *(">> one", " >>fra<< one", ">>a\nb<< one", "two\n>>fra<<", ">>fra<<\tone"),
]


def own(folder, normalization, lines):
    path = folder / "own.model"
    return [Tokenizer.train_on_lines(lines, 340, path, normalization=normalization)]


def marian(folder, lines):
    """Two models, one vocabulary: most pieces of one are not in the other."""
    models = [train_sentencepiece(lines[side::2], 100, model_type="unigram") for side in (0, 1)]
    pieces = {"</s>": 0, "<unk>": 1}
    for model in models:
        tokenizer = SentencePieceTokenizer(model, pad_token_id=500)
        for token in filter(None, tokenizer.vocabulary[3:500]):
            pieces.setdefault(token, len(pieces))
    pieces |= {">>fra<<": len(pieces)}
    pieces |= {"<pad>": len(pieces)}
    return [MarianTokenizer(model, pieces) for model in models]


def foreign(folder, lines):
    model = train_sentencepiece(lines, 100, pad_id=3)
    return [SentencePieceTokenizer(model)]


MAKERS = {
    "nfc": lambda *given: own(given[0], "nfc", given[1]),
    "nfkc": lambda *given: own(given[0], "nfkc", given[1]),
    "identity": lambda *given: own(given[0], "identity", given[1]),
    "SentencePiece": foreign,
    "Marian": marian,
}


QUICK = "nfkc", "Marian"
PARAMS = [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in MAKERS]


@pytest.fixture(scope="module", params=PARAMS)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    lines = [line for pair in number_names("train", 500) for line in pair]
    tokenizers = MAKERS[request.param](folder, lines)
    one = tokenizers[0]
    names = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id"
    special = {name: getattr(one, name) for name in names if hasattr(one, name)}
    sizes = {"num_layers": 1, "hidden_dim": 16, "num_heads": 2}
    model = Transformer(TransformerConfig.tiny(one.vocabulary_size, **sizes, **special))
    translator = Translator(model, *tokenizers)
    path = export_ctranslate2(translator, folder / "ct2")
    with mock.patch.dict(sys.modules, {"tensorflow": None, "keras": None}):
        shipped = [FolderTokenizer(path, side) for side in ("source", "target")]
    return list(zip(translator.tokenizers, shipped, strict=True))


def test_pieces_and_texts_are_those_of_our_tokenizer(exported):
    for ours, shipped in exported:
        rows = ours.graph.tokenize(TEXTS).to_list()
        expected = [[ours.vocabulary[i] for i in row] for row in rows]
        assert with_unknown(shipped.encode(TEXTS), ours) == expected
        assert shipped.encode(TEXTS[7]) == shipped.encode(TEXTS)[7]
        texts = [text.decode() for text in ours.graph.detokenize(rows).numpy()]
        assert shipped.decode(expected) == texts
        assert shipped.decode(expected[7]) == texts[7]


def with_unknown(pieces, tokenizer):
    known, unknown = frozenset(tokenizer.vocabulary), tokenizer.vocabulary[tokenizer.unk_token_id]
    return [[piece if piece in known else unknown for piece in row] for row in pieces]


def test_pieces_of_the_other_side_become_the_text_of_our_tokenizer(exported):
    """A model may give any piece of its vocabulary, in any order."""
    for ours, shipped in exported:
        special = {ours.pad_token_id, ours.start_token_id, ours.end_token_id}
        ids = [i for i in range(ours.vocabulary_size) if i not in special]
        rows = [ids[start : start + 7] for start in range(0, len(ids), 5)]
        expected = [text.decode() for text in ours.graph.detokenize(rows).numpy()]
        assert shipped.decode([[ours.vocabulary[i] for i in row] for row in rows]) == expected
