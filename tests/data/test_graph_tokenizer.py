"""The tokenizer of a graph gives the ids and texts of the plain one: eagerly and in graphs."""

import copy
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
import tokenizer_agreement
from tokenizer_agreement import train_sentencepiece

from keras_transformer.data.pieces import UNICODE
from keras_transformer.data.sentencepiece_proto import ModelProto
from keras_transformer.data.tokenizer import Tokenizer
from tests.builders import learned_tokenizer
from tests.data.test_tokenizer import text_lines
from tests.importing import opus_models

pytestmark = pytest.mark.tensorflow_only


def strings(tensor):
    return [value.decode() for value in tensor.numpy().ravel()]


@pytest.fixture(scope="module", params=["nfc", "identity"])
def tokenizer(request):
    return learned_tokenizer([text_lines(500)], 295, normalization=request.param)


MAKERS = tokenizer_agreement.makers(text_lines(500), 295)
MAKERS["Marian"] = lambda: Tokenizer.from_marian(
    opus_models.sentencepiece_models()[0], opus_models.vocabulary()
)


def with_another_token():
    """Of bytes, some are white space; the text is stripped, since the model lacks a token."""
    options = tokenizer_agreement.FOREIGN["as LLaMA"]
    model = train_sentencepiece(text_lines(500), 295, pad_id=3, **options)
    pieces = Tokenizer.from_sentencepiece(model).vocabulary
    return Tokenizer.from_sentencepiece(model, vocabulary=[*pieces, "<more>"])


MAKERS["as LLaMA, another token"] = with_another_token
CHARACTERS = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
QUICK = (
    "nfc bpe",
    "nfkc unigram",
    "identity bpe",
    "as LLaMA",
    "as LLaMA, another token",
    "Marian",
    "characters nfd",
    "words nfc",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in MAKERS],
)
def test_ids_and_texts_are_those_of_the_plain_tokenizer(name, pytestconfig):
    """`benchmarks/tokenizer_agreement.py` compares published models too."""
    count = 20_000 if pytestconfig.getoption("long") else 1000
    strings = tokenizer_agreement.awkward_strings(count, text_lines(100))
    strings += ["".join(CHARACTERS[::97]), "a".join(CHARACTERS[::991])]
    *different, _ = tokenizer_agreement.compare(MAKERS[name](), strings)
    assert different == [[], [], []]


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_unicode_is_that_of_tensorflow_text_on_every_python(form):
    """Each character in its own line, and before marks, so that composition and order count."""
    assert UNICODE.unidata_version == "16.0.0"
    parts = [f"{character}\ne{character}\u0301\u0323" for character in CHARACTERS]
    texts = ["\n".join(parts[start : start + 1000]) for start in range(0, len(parts), 1000)]
    found = tensorflow_text.normalize_utf8(texts, form).numpy()
    for text, normalized in zip(texts, found, strict=True):
        assert normalized.decode() == UNICODE.normalize(form, text)


def test_neighbours_that_repeat_a_text_are_in_the_order_of_their_lengths():
    """Both orders of `..` and `...` have the same score; versions of SentencePiece differ."""
    proto = ModelProto.FromString(train_sentencepiece(text_lines(50), 60, pad_id=3))
    for piece, score in {"..": -3.3, "...": -4.7}.items():
        proto.pieces.add(piece=piece, score=score)
    tokenizer = Tokenizer.from_sentencepiece(proto.SerializeToString())
    texts = [f"the {'.' * count} cat" for count in range(40)]
    rows = tokenizer.encode(texts)
    assert tokenizer.graph.tokenize(texts).to_list() == rows
    assert tokenizer.decode(rows) == [text.replace("  ", " ") for text in texts]
    dots = [
        [len(tokenizer.vocabulary[i]) for i in row if i >= len(proto.pieces) - 2] for row in rows
    ]
    assert any(len(set(each)) > 1 for each in dots)
    assert dots == [sorted(each) for each in dots]


def assert_same(eager, graph):
    assert type(eager) is type(graph)
    assert eager.dtype == graph.dtype
    if isinstance(eager, tf.RaggedTensor):
        assert eager.row_splits.dtype == graph.row_splits.dtype
        assert eager.to_list() == graph.to_list()
    else:
        np.testing.assert_array_equal(eager, graph)


@pytest.mark.parametrize("text", [["the cat", "", "Größe"], []], ids=repr)
def test_eager_and_graph_give_the_same_values_and_types(tokenizer, text):
    graph, expected = tokenizer.graph, tokenizer.encode(text)
    text = tf.constant(text, tf.string)
    token_ids = graph.tokenize(text)
    assert token_ids.dtype == tf.int32 and token_ids.to_list() == expected
    assert_same(token_ids, tf.function(graph.tokenize)(text))
    for method in (graph.detokenize, graph.tokens):
        assert_same(method(token_ids), tf.function(method)(token_ids))


def test_detokenize_leaves_out_special_tokens_ragged_or_padded(tokenizer):
    text = ["the cat", "", "a dog ran"]
    ragged = tf.ragged.constant(tokenizer.encode(text, add_start=True, add_end=True), tf.int32)
    graph = tokenizer.graph
    for token_ids in (ragged, ragged.to_tensor(), ragged.to_list(), tf.cast(ragged, tf.int64)):
        assert strings(graph.detokenize(token_ids)) == text
    assert graph.tokens([[0, 3], [2]]).to_list() == [[b"<pad>", b"<unk>"], [b"</s>"]]


def test_invalid_utf8_reads_as_the_replacement_character(tokenizer):
    graph = tokenizer.graph
    assert strings(graph.detokenize(graph.tokenize([b"a\xffb"]))) == ["a\ufffdb"]


def test_missing_tensorflow_text_raises_on_use_of_the_graph_only(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    made = copy.copy(tokenizer)
    assert made.decode(made.encode("a cat")) == "a cat"
    with pytest.raises(ImportError, match="pip install tensorflow-text"):
        _ = made.graph


def test_graph_outlives_a_new_random_seed():
    """Seeding clears TensorFlow's kernel cache, which holds the models of tensorflow-text."""
    graph = learned_tokenizer([["one two three"]], 268).graph
    compiled = tf.function(graph.tokenize)

    def both():
        return graph.tokenize(["two"]).to_list(), compiled(tf.constant(["two"])).to_list()

    before = both()
    keras.utils.set_random_seed(1)
    assert both() == before
    # Two models have two named resources.
    other = learned_tokenizer([["zwei drei vier"]], 268).graph
    assert other.detokenize(other.tokenize(["vier"])).numpy().tolist() == [b"vier"]
    assert both() == before
