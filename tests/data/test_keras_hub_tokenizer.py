"""The tokenizers of KerasHub, and what a SavedModel holds of every tokenizer.

The references are KerasHub's own layers, and the tokenizer itself.
"""

import functools
import json
import sys

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import Tokenizer
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.runs.doctor import check_tokenizer
from tests.builders import randomize
from tests.data.test_foreign_tokenizers import (
    PAIRS,
    SOURCES,
    TARGETS,
    TEXTS,
    Characters,
    opus,
    pieces_of,
    t5,
    train,
)
from tests.processes import run

pytestmark = pytest.mark.tensorflow_only


def word_piece():
    special = ["[END]", "[UNK]", "[PAD]", "[START]"]
    letters = sorted({letter for line in SOURCES + TARGETS for letter in line if letter != " "})
    vocabulary = [*special, *letters, *(f"##{each}" for each in letters), "one", "##ty", "##und"]
    tokenizer = keras_hub.tokenizers.WordPieceTokenizer(vocabulary, lowercase=True)
    special = {"pad_token": "[PAD]", "start_token": "[START]", "end_token": "[END]"}
    return tokenizer, Tokenizer.from_keras_hub(tokenizer, **special)


@functools.cache  # it takes seconds to trace
def byte_pair():
    """The 256 bytes, some merges, and special tokens at the end: the pad token is not 0."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    merges = ["t w", "e n", "tw en", "t y", "e i", "ei n", "\u0120 ein", "h u", "n d"]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<pad>", "<s>", "</s>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = keras_hub.tokenizers.BytePairTokenizer(vocabulary, merges)
    special = {"pad_token": "<pad>", "start_token": "<s>", "end_token": "</s>"}
    return tokenizer, Tokenizer.from_keras_hub(tokenizer, **special)


def hub_sentencepiece():
    model = train(SOURCES + TARGETS, pad_id=3)
    tokenizer = keras_hub.tokenizers.SentencePieceTokenizer(model)
    special = {"pad_token": "<pad>", "start_token": "<s>", "end_token": "</s>"}
    return tokenizer, Tokenizer.from_keras_hub(tokenizer, **special)


HUB = [word_piece, pytest.param(byte_pair, marks=pytest.mark.long), hub_sentencepiece]


def strings(tensor):
    return [value.decode() for value in tensor.numpy().ravel()]


@pytest.mark.slow
@pytest.mark.parametrize("make", HUB)
def test_ids_and_texts_are_those_of_keras_hub_in_a_pipeline(make):
    layer, tokenizer = make()
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS)
    expected = [row.numpy().tolist() for row in dataset.map(layer)]
    keras.utils.set_random_seed(1)  # breaks KerasHub's own, but not this one
    assert tokenizer.encode(TEXTS) == expected
    assert tf.function(tokenizer.graph.tokenize)(tf.constant(TEXTS)).to_list() == expected
    texts = [layer.detokenize(row) if row else "" for row in expected]
    assert tokenizer.decode(expected) == texts
    framed = [[tokenizer.start_token_id, *row, tokenizer.end_token_id] for row in expected]
    padded = tf.ragged.constant(framed).to_tensor(tokenizer.pad_token_id)
    assert tokenizer.decode(padded.numpy()) == strings(tokenizer.graph.detokenize(padded)) == texts
    assert tokenizer.encode([]) == tokenizer.decode([]) == []
    assert tokenizer.encode(TEXTS[0]) == expected[0]  # one string has one row
    assert tokenizer.decode(expected[0]) == texts[0]
    # The tokens spell the text; where a word begins there is a space.
    spelled = ["".join(tokenizer.vocabulary[i] for i in row) for row in expected]
    for line, text in zip(spelled, texts, strict=True):
        if "<0x" not in line and "<unk>" not in line:
            assert line.replace("\u2581", " ").strip() == text.strip()


@pytest.mark.long
def test_byte_pair_text_that_ends_inside_a_character_is_valid():
    _, tokenizer = byte_pair()
    token_ids = tokenizer.encode("aé")
    assert [tokenizer.vocabulary[i] for i in token_ids] == ["a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode([token_ids[:2]]) == ["a\ufffd"]


class GraphCharacters(tf.Module):
    """The members that an export needs, and no other."""

    def tokenize(self, text):
        return tf.strings.unicode_decode(text, "UTF-8")

    def detokenize(self, token_ids):
        kept = tf.ragged.boolean_mask(token_ids, token_ids > 2)
        return tf.strings.unicode_encode(kept, "UTF-8")

    def tokens(self, token_ids):
        letters = tf.strings.unicode_encode(tf.reshape(token_ids, [-1, 1]), "UTF-8")
        return tf.reshape(tf.strings.regex_replace(letters, " ", "\u2581"), tf.shape(token_ids))


class ExportedCharacters(Characters):
    graph = GraphCharacters()


def of_both_sides():
    """KerasHub's for the source, SentencePiece for the target, with the same special ids."""
    model = train(TARGETS)
    pieces = ["</s>", "<unk>", "<pad>", "<s>", *pieces_of(model)[3:]]
    return word_piece()[1], Tokenizer.from_sentencepiece(model, vocabulary=pieces)


# Functions that return the tokenizer of both sides, or one for each. `Tokenizer` has other tests.
WALKED = {
    "KerasHub's and SentencePiece": of_both_sides,
    "a class of your own": ExportedCharacters,
    "Marian's": opus,
    "byte-pair": lambda: byte_pair()[1],
    "SentencePiece": lambda: t5()[0][1],
    "symbols": lambda: kt.Tokenizer.characters(SOURCES, normalization="nfd", symbols=["one"]),
}
BOTH = list(WALKED)[0]


SERVE = """
import json, sys
for name in ("keras_transformer", "keras_hub", "sentencepiece"):
    sys.modules[name] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
outputs = []
folders, lines = json.load(sys.stdin)
for folder in folders:
    served = tf.saved_model.load(folder).signatures["serving_default"](text=tf.constant(lines))
    texts = {name: value.numpy().flat for name, value in served.items() if value.dtype == tf.string}
    outputs.append({name: [text.decode() for text in texts[name]] for name in texts})
print(json.dumps(outputs))
"""


def serve(folders, lines):
    """What SavedModels return in a process that can import no package of ours."""
    request = json.dumps([list(map(str, folders)), lines])
    options = {"input": request, "capture_output": True, "text": True, "check": True}
    return json.loads(run([sys.executable, "-c", SERVE], **options).stdout)


SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2}


def config_of(source, target):
    special = {n: getattr(target, n) for n in ("pad_token_id", "start_token_id", "end_token_id")}
    special["unk_token_id"] = min(set(range(9)) - {*special.values()})
    sizes = SIZES
    if source.vocabulary_size != target.vocabulary_size:
        sizes = sizes | {"source_vocabulary_size": source.vocabulary_size}
        sizes["tie_embeddings"] = "decoder"
    return kt.TransformerConfig.tiny(target.vocabulary_size, **sizes, **special)


def text_only(config):
    """A processor without which random models end at once."""
    return suppress_tokens({config.pad_token_id, config.start_token_id, config.end_token_id})


OTHERS = ["a class of your own", "Marian's", "byte-pair"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    "name", [BOTH, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_every_tokenizer_takes_the_way_of_all_commands(name, tmp_path):
    """The calls of `doctor`, `train`, `translate`, `score` and `export --format ctranslate2`."""
    made = WALKED[name]()
    source, target = made if isinstance(made, tuple) else (made, made)
    config = config_of(source, target)
    targets = SOURCES if isinstance(target, Characters) or target.kind == "marian" else TARGETS
    pairs = list(zip(SOURCES, targets, strict=True))
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    dataset, report = kt.make_dataset(pairs, source, target, **options)
    assert report.pairs_kept == len(pairs) and [c.lines for c in report.changes] == [200, 200]
    passed, detail = check_tokenizer(source, report.changes[0])
    assert passed, detail
    inputs, labels, weights = keras.tree.map_structure(np.asarray, next(iter(dataset)))
    assert (weights == (labels != target.pad_token_id)).all()
    assert (inputs["decoder_token_ids"][:, 0] == target.start_token_id).all()
    assert all(
        row[w > 0][-1] == target.end_token_id for row, w in zip(labels, weights, strict=True)
    )
    assert set(target.decode(labels)) <= set(target.decode(target.encode(targets)))

    model = randomize(kt.Transformer(config))
    options = {"beam_size": 2, "extra_length": 2, "processors": [text_only(config)]}
    translator = kt.Translator(model, source, target, **options)
    for found in translator(["one", "twenty-one"], n_best=2):
        assert len(found) == 2 and found[0].text
    (best, *_) = translator("one", return_attention=True)
    assert best.attention.encoder_decoder.shape[-1] == len(best.source_tokens)
    scored = translator.score(SOURCES[:2], targets[:2])
    assert all(np.isfinite(each.score) for each in scored)
    if source is target:
        written = kt.export_ctranslate2(kt.Translator(model, source), tmp_path / "ct2")
        assert (written / "model.bin").is_file()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_model_of_foreign_tokenizers_is_trained_and_served(tmp_path):
    source, target = WALKED[BOTH]()
    source = source.with_tag(source.vocabulary[-1])  # in front of each part of a long line
    source.joiner = ""
    config = config_of(source, target)
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    dataset, _ = kt.make_dataset(PAIRS, source, target, **options)
    model = randomize(kt.Transformer(config))
    model.compile(kt.paper_optimizer(config, learning_rate=1e-3), kt.SmoothedCrossEntropy())
    assert np.isfinite(model.fit(dataset, epochs=1, verbose=0).history["loss"]).all()
    options = {"beam_size": 1, "extra_length": 2, "max_source_tokens": 20}
    translator = kt.Translator(model, source, target, processors=[text_only(config)], **options)
    texts = ["one", "", "twenty-one thousand", "one. " * 30, "\N{CAT FACE}"]
    with pytest.warns(UserWarning, match="Line 4 is too long for one"):
        expected = translator(texts)
    folder = kt.export_saved_model(translator, tmp_path / "served")
    (found,) = serve([folder], texts)
    whole = translator(texts, n_best=1, on_too_long="truncate")
    assert found["translation"] == [best.text for best, *_ in whole]
    # The folder has no plain tokenizer of the source, so the graph reads its text.
    loaded = kt.load_translator(folder)
    with pytest.warns(UserWarning, match="Line 4 is too long for one"):
        assert loaded(texts) == expected
    score = translator.score("one", "eins").score
    assert loaded.score("one", "eins").score == pytest.approx(score, abs=1e-4)
    swapped = kt.Translator(kt.Transformer(config_of(target, source)), target, source, beam_size=1)
    loaded = kt.load_translator(kt.export_saved_model(swapped, tmp_path / "swapped"))
    assert loaded.target_tokenizer.joiner == ""
    with pytest.raises(ValueError, match="Target text .* needs a plain tokenizer"):
        loaded.score("eins", "one")


class Outputs(tf.Module):
    """A tokenizer in a graph, as an exported translator has it."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer, self.pad_token_id = tokenizer.graph, tokenizer.pad_token_id

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text):
        token_ids = self.tokenizer.tokenize(text).to_tensor(self.pad_token_id)
        ids = tf.strings.as_string(token_ids)
        texts, tokens = self.tokenizer.detokenize(token_ids), self.tokenizer.tokens(token_ids)
        return {"ids": ids, "texts": texts, "tokens": tokens}


@pytest.mark.long
def test_saved_model_holds_the_whole_tokenizer(tmp_path):
    tokenizers = []
    for make in WALKED.values():
        made = make()
        tokenizers += made if isinstance(made, tuple) else [made]
    lines, folders, expected = ["twenty-one", "", "  a b "], [], []
    for number, tokenizer in enumerate(tokenizers):
        module = Outputs(tokenizer)
        folders.append(tmp_path / str(number))
        tf.saved_model.save(module, str(folders[-1]), signatures=module.__call__)
        eager = module.__call__.python_function(tf.constant(lines))
        expected.append({name: strings(value) for name, value in eager.items()})
    assert serve(folders, lines) == expected


def test_a_tokenizer_without_a_graph_translates_but_exports_nothing(tmp_path):
    model = randomize(kt.Transformer(kt.TransformerConfig.tiny(128, **SIZES)))
    translator = kt.Translator(model, Characters(), beam_size=1)
    (hypothesis,) = translator("a b", n_best=1)
    assert hypothesis.source_tokens == ["a", "\u2581", "b", "\x02"]
    with pytest.raises(TypeError, match=r"must be a `tf.Module`.*Received: Characters"):
        kt.export_saved_model(translator, tmp_path / "served")


def test_a_layer_of_keras_hub_is_told_what_wraps_it():
    with pytest.raises(TypeError, match="Received: WordPiece.*size`.*`Tokenizer.from_keras_hub`"):
        kt.make_dataset(PAIRS, layers.WordPieceTokenizer(["[UNK]"]), batch_sentences=9)


layers = keras_hub.tokenizers


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (layers.ByteTokenizer, TypeError, "must be a WordPiece, byte-pair"),
        (lambda: layers.WordPieceTokenizer(["[UNK]"], sequence_length=9), ValueError, "length=9"),
        (
            lambda: layers.WordPieceTokenizer(["[UNK]", "[PAD]", "a"]),
            ValueError,
            "`end_token`.*='\\[END\\]'",
        ),
    ],
)
def test_tokenizers_of_keras_hub_that_do_not_fit_are_refused(make, error, named):
    with pytest.raises(error, match=named):
        Tokenizer.from_keras_hub(make(), pad_token="[PAD]", start_token="a", end_token="[END]")
