"""Tokenizers of other origin: SentencePiece models with their own ids, KerasHub's, and one's own.

The references are SentencePiece's own processor and KerasHub's own layers.
"""

import functools
import json
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import KerasHubTokenizer, MarianTokenizer, SentencePieceTokenizer
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.runs.doctor import check_tokenizer
from tests.builders import randomize
from tests.data.sentencepiece_models import train_sentencepiece
from tests.importing import opus_models

pytestmark = pytest.mark.tensorflow_only

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
    return [(model, SentencePieceTokenizer(model, start_token_id=len(pieces)), pieces)]


def mbart():
    """The ids of fairseq: other special tokens first, other tokens after the pieces."""
    model = train(SOURCES + TARGETS)  # <unk>, <s>, </s>
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)[3:], "de_DE", "<mask>"]
    return [(model, SentencePieceTokenizer(model, vocabulary=pieces), pieces)]


def marian():
    """A model for each language, one file of ids for both, `<pad>` last, and no `<s>`."""
    models = train(SOURCES), train(TARGETS, model_type="bpe")
    pieces = ["</s>", "<unk>"]
    pieces += sorted({*pieces_of(models[0])[3:], *pieces_of(models[1])[3:]}) + ["<pad>"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    options = {"vocabulary": ids, "start_token_id": len(ids)}
    return [(model, SentencePieceTokenizer(model, **options), pieces) for model in models]


def word_piece():
    special = ["[END]", "[UNK]", "[PAD]", "[START]"]
    letters = sorted({letter for line in SOURCES + TARGETS for letter in line.strip()})
    vocabulary = [*special, *letters, *(f"##{each}" for each in letters), "one", "##ty", "##und"]
    tokenizer = keras_hub.tokenizers.WordPieceTokenizer(vocabulary, lowercase=True)
    special = {"pad_token": "[PAD]", "start_token": "[START]", "end_token": "[END]"}
    return tokenizer, KerasHubTokenizer(tokenizer, **special)


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
    return tokenizer, KerasHubTokenizer(tokenizer, **special)


def hub_sentencepiece():
    model = train(SOURCES + TARGETS, pad_id=3)
    tokenizer = keras_hub.tokenizers.SentencePieceTokenizer(model)
    special = {"pad_token": "<pad>", "start_token": "<s>", "end_token": "</s>"}
    return tokenizer, KerasHubTokenizer(tokenizer, **special)


def both():
    """KerasHub's for the source, SentencePiece for the target, with the same special ids."""
    model = train(TARGETS)
    pieces = ["</s>", "<unk>", "<pad>", "<s>", *pieces_of(model)[3:]]
    return [
        (None, word_piece()[1], None),
        (model, SentencePieceTokenizer(model, vocabulary=pieces), pieces),
    ]


HUB = [word_piece, pytest.param(byte_pair, marks=pytest.mark.long), hub_sentencepiece]
SENTENCEPIECE = [t5, mbart, marian]


def strings(tensor):
    return [value.decode() for value in tensor.numpy().ravel()]


@pytest.mark.parametrize("make", SENTENCEPIECE)
def test_ids_and_texts_are_those_of_sentencepiece(make):
    for model, tokenizer, vocabulary in make():
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        known = set(pieces_of(model)) & set(vocabulary)
        pieces = [processor.encode(text, out_type=str) for text in TEXTS]
        pieces = [[p if p in known else "<unk>" for p in row] for row in pieces]
        expected = [[vocabulary.index(piece) for piece in row] for row in pieces]
        token_ids = tokenizer.tokenize(TEXTS)
        assert token_ids.dtype == tf.int32 and token_ids.to_list() == expected
        assert tf.function(tokenizer.tokenize)(tf.constant(TEXTS)).to_list() == expected
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
        assert strings(tokenizer.detokenize(rows)) == texts
        assert strings(tokenizer.tokens(range(len(vocabulary)))) == vocabulary


@pytest.mark.slow
@pytest.mark.parametrize("make", HUB)
def test_ids_and_texts_are_those_of_keras_hub_in_a_pipeline(make):
    layer, tokenizer = make()
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS)
    expected = [row.numpy().tolist() for row in dataset.map(layer)]
    keras.utils.set_random_seed(1)  # breaks KerasHub's own, but not this one
    token_ids = tokenizer.tokenize(TEXTS)
    assert token_ids.dtype == tf.int32 and token_ids.to_list() == expected
    in_graph = tf.function(tokenizer.tokenize)(tf.constant(TEXTS))
    assert type(in_graph) is type(token_ids) and in_graph.to_list() == expected
    texts = [layer.detokenize(row) if row else "" for row in expected]
    assert strings(tokenizer.detokenize(token_ids)) == texts
    framed = [[tokenizer.start_token_id, *row, tokenizer.end_token_id] for row in expected]
    padded = tf.ragged.constant(framed).to_tensor(tokenizer.pad_token_id)
    assert strings(tokenizer.detokenize(padded)) == texts
    assert tokenizer.tokenize([]).shape.as_list() == [0, None]
    # The tokens spell the text; where a word begins there is a space.
    spelled = ["".join(strings(tokenizer.tokens(row))) for row in token_ids]
    for line, text in zip(spelled, texts, strict=True):
        if "<0x" not in line and "<unk>" not in line:
            assert line.replace("\u2581", " ").strip() == text.strip()


def test_byte_pair_text_that_ends_inside_a_character_is_valid():
    _, tokenizer = byte_pair()
    token_ids = tokenizer.tokenize(["aé"])
    assert strings(tokenizer.tokens(token_ids)) == ["a", "<0xC3>", "<0xA9>"]
    assert strings(tokenizer.detokenize(token_ids[:, :2])) == ["a\ufffd"]


SERVE = """
import json, sys
for name in ("keras_transformer", "keras_hub", "sentencepiece"):
    sys.modules[name] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
lines = json.loads(sys.stdin.read())
found = served(text=tf.constant(lines))["translation"]
print(json.dumps([line.decode() for line in found.numpy()]))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    "make",
    [
        both,
        *(pytest.param(m, marks=pytest.mark.long) for m in (t5, marian, byte_pair)),
        pytest.param(hub_sentencepiece, marks=pytest.mark.long),
    ],
)
def test_text_becomes_batches_a_model_translations_and_a_saved_model(make, tmp_path):
    made = make()
    tokenizers = [made[1]] if isinstance(made, tuple) else [each for _, each, _ in made]
    source, target = tokenizers[0], tokenizers[-1]
    names = "pad_token_id", "start_token_id", "end_token_id"
    special = {name: getattr(target, name) for name in names}
    used = {*special.values()}
    special["unk_token_id"] = min(set(range(9)) - used)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2}
    if source.vocabulary_size != target.vocabulary_size:
        sizes |= {"source_vocabulary_size": source.vocabulary_size, "tie_embeddings": "decoder"}
    config = kt.TransformerConfig.tiny(target.vocabulary_size, **sizes, **special)
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    dataset, report = kt.make_dataset(PAIRS, *tokenizers, **options)
    assert report.pairs_kept == len(PAIRS)
    inputs, labels, weights = next(dataset.as_numpy_iterator())
    assert (weights == (labels != target.pad_token_id)).all()
    assert (inputs["decoder_token_ids"][:, 0] == target.start_token_id).all()
    for row, weight in zip(labels, weights, strict=True):
        assert row[weight > 0][-1] == target.end_token_id
    lines = strings(target.detokenize(labels))
    assert set(lines) <= set(strings(target.detokenize(target.tokenize(TARGETS))))
    model = randomize(kt.Transformer(config))
    model.compile(kt.paper_optimizer(config, learning_rate=1e-3), kt.SmoothedCrossEntropy())
    history = model.fit(dataset, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()

    options = {"extra_length": 3, "beam_size": 1, "max_source_tokens": 20}
    options["processors"] = [suppress_tokens(used)]  # otherwise translations have no text
    translator = kt.Translator(model, *tokenizers, **options)
    texts = ["one", "", "twenty-one thousand", "one. " * 30, "\N{CAT FACE}"]
    with pytest.warns(UserWarning, match="line 4 in"):
        expected = translator(texts)
    assert any(expected)
    path = kt.export_saved_model(translator, tmp_path / "served")
    command = [sys.executable, "-P", "-c", SERVE, str(path)]
    ran = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == expected


class Characters:
    """A tokenizer that a user writes: one token for each ASCII character."""

    vocabulary_size, pad_token_id, start_token_id, end_token_id = 128, 0, 1, 2

    def tokenize(self, text):
        return tf.strings.unicode_decode(text, "UTF-8")

    def detokenize(self, token_ids):
        kept = tf.ragged.boolean_mask(token_ids, token_ids > 2)
        return tf.strings.unicode_encode(kept, "UTF-8")

    def tokens(self, token_ids):
        letters = tf.strings.unicode_encode(tf.reshape(token_ids, [-1, 1]), "UTF-8")
        return tf.reshape(tf.strings.regex_replace(letters, " ", "\u2581"), tf.shape(token_ids))


class EagerCharacters(Characters):
    def tokens(self, token_ids):
        return super().tokens(tf.constant(token_ids.numpy()))  # not possible in a graph


def test_any_object_with_the_members_will_do_but_exports_only_as_a_module(tmp_path):
    pairs = [(source, source) for source in SOURCES]
    dataset, _ = kt.make_dataset(pairs, Characters(), batch_sentences=200)
    (batch,) = dataset.as_numpy_iterator()
    lines = {bytes(row[(row > 2)].tolist()).decode() for row in batch[1]}
    assert lines == set(SOURCES)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2}
    model = randomize(kt.Transformer(kt.TransformerConfig.tiny(128, **sizes)))
    translator = kt.Translator(model, EagerCharacters(), beam_size=1)
    (hypothesis,) = translator("a b", n_best=1)
    assert hypothesis.source_tokens == ["a", "\u2581", "b", "\x02"]
    with pytest.raises(TypeError, match=r"must be a `tf.Module`.*Received: EagerCharacters"):
        kt.export_saved_model(translator, tmp_path / "served")


class ExportedCharacters(Characters, tf.Module):
    """The members of the protocol and no other, in a `tf.Module`."""


def own(folder):
    lines = SOURCES + TARGETS
    return kt.Tokenizer.train_on_lines(lines, 330, folder / "m"), SOURCES, TARGETS


def opus(folder):
    model = opus_models.sentencepiece_models()[0]
    return MarianTokenizer(model, opus_models.vocabulary()), SOURCES, SOURCES


WALKED = {
    "Tokenizer": own,
    "SentencePieceTokenizer": lambda folder: (t5()[0][1], SOURCES, TARGETS),
    "MarianTokenizer": opus,
    "KerasHubTokenizer": lambda folder: (word_piece()[1], SOURCES, TARGETS),
    "a class of your own": lambda folder: (ExportedCharacters(), SOURCES, SOURCES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKED)
@pytest.mark.parametrize(
    "is_served", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "served"]
)
def test_every_tokenizer_takes_the_way_of_all_commands(name, is_served, tmp_path):
    """The calls of `doctor`, `train`, `translate`, `score` and both kinds of `export`."""
    tokenizer, sources, targets = WALKED[name](tmp_path)
    special = {n: getattr(tokenizer, n) for n in ("pad_token_id", "start_token_id", "end_token_id")}
    special["unk_token_id"] = min(set(range(9)) - {*special.values()})
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2}
    config = kt.TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes, **special)
    pairs = zip(sources, targets, strict=True)
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    _, report = kt.make_dataset(pairs, tokenizer, **options)
    assert report.pairs_kept == len(sources) and [c.lines for c in report.changes] == [200, 200]
    passed, detail = check_tokenizer(tokenizer, sources, report.changes[0])
    assert passed, detail

    model = randomize(kt.Transformer(config))
    processors = [suppress_tokens({*special.values()})]  # otherwise translations have no text
    settings = {"beam_size": 2, "extra_length": 2, "processors": processors}
    translator = kt.Translator(model, tokenizer, **settings)
    lines = ["one", "twenty-one"]
    for found in translator(lines, n_best=2):
        assert len(found) == 2 and found[0].text
    (best, *_) = translator("one", return_attention=True)
    assert best.attention.encoder_decoder.shape[-1] == len(best.source_tokens)
    scored = translator.score(lines, targets[:2])
    assert all(np.isfinite(each.score) for each in scored)
    folder = kt.export_ctranslate2(kt.Translator(model, tokenizer), tmp_path / "ct2")
    assert (folder / "model.bin").is_file()
    if not is_served:  # it takes half a minute
        return
    expected = translator(lines)
    served = tf.saved_model.load(kt.export_saved_model(translator, tmp_path / "served"))
    assert strings(served.serve(tf.constant(lines))["translation"]) == expected


@pytest.mark.parametrize("make", [word_piece, hub_sentencepiece])
def test_one_string_has_one_row_as_with_every_tokenizer(make):
    _, tokenizer = make()
    for call in (tokenizer.tokenize, tf.function(tokenizer.tokenize)):
        token_ids = call(tf.constant("one two"))
        assert token_ids.numpy().tolist() == tokenizer.tokenize(["one two"]).to_list()[0]
    text = tokenizer.detokenize(token_ids)
    assert text.shape == () and text == tokenizer.detokenize(token_ids[None])[0]
    assert tokenizer.tokenize("").shape == (0,)


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [
        ("t5.model", "str without the integer `vocabulary_size`.*`tokenize\\(\\)`, `detokenize"),
        (keras_hub.tokenizers.WordPieceTokenizer(["[UNK]"]), "WordPiece.*size`.*`KerasHubTokeniz"),
        (type("NoEnd", (Characters,), {"end_token_id": None})(), "without the integer `end_token_"),
        (type("NoTokens", (Characters,), {"tokens": None})(), "NoTokens without `tokens\\(\\)`\\."),
    ],
)
def test_objects_that_are_no_tokenizers_are_told_what_they_lack(tokenizer, named):
    with pytest.raises(TypeError, match=f"^`tokenizer` must be .*Received: .*{named}"):
        kt.make_dataset(PAIRS, tokenizer, batch_sentences=9)
    with pytest.raises(TypeError, match=f"^`target_tokenizer` must be .*Received: .*{named}"):
        kt.Translator(None, Characters(), tokenizer)


def test_tokens_of_another_type_are_refused():
    class Wide(Characters):
        def tokenize(self, text):
            return tf.cast(super().tokenize(text), tf.int64)

    with pytest.raises(TypeError, match=r"`Wide.tokenize` must return an int32 `RaggedTensor`"):
        kt.make_dataset(PAIRS, Wide(), batch_sentences=9)


@pytest.fixture(scope="module")
def model():
    return t5()[0][0]


def test_ids_without_a_piece_have_no_text(model):
    tokenizer = SentencePieceTokenizer(model, start_token_id=200, vocabulary_size=300)
    assert tokenizer.vocabulary_size == 300
    assert strings(tokenizer.tokens([1, 200, 299])) == ["</s>", "<s>", ""]
    assert strings(tokenizer.detokenize([[200, 299, 1]])) == [""]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "`start_token_id` must be given.*no '<s>'"),
        ({"start_token_id": 0}, "`start_token_id` must differ from `pad_token_id`.*Received: 0"),
        ({"start_token_id": 7}, "`start_token_id` must be the id of a control piece.*Received: 7"),
        ({"start_token_id": 500, "vocabulary_size": 300}, "must be at least 501.*=300"),
        ({"start_token_id": 9, "vocabulary": ["a"]}, "`pad_token_id` must be given.*no '<pad>'"),
    ],
)
def test_special_tokens_without_an_id_of_their_own_are_refused(model, options, named):
    with pytest.raises(ValueError, match=named):
        SentencePieceTokenizer(model, **options)


@pytest.mark.parametrize(
    ("make", "options", "error", "named"),
    [
        (keras_hub.tokenizers.ByteTokenizer, {}, TypeError, "must be a WordPiece, byte-pair"),
        (
            lambda: keras_hub.tokenizers.WordPieceTokenizer(["[UNK]"], sequence_length=9),
            {},
            ValueError,
            "without padding.*sequence_length=9",
        ),
        (lambda: word_piece()[0], {"end_token": "</s>"}, ValueError, "`end_token`.*'</s>'"),
        (
            lambda: keras_hub.tokenizers.BytePairTokenizer(
                {"[PAD]": 0, "[END]": 1, "a": 2, "b": 3, "ab": 4}, ["a b"]
            ),
            {"start_token": "a"},
            ValueError,
            "each of the 256 bytes.*253 others",
        ),
    ],
)
def test_tokenizers_of_keras_hub_that_do_not_fit_are_refused(make, options, error, named):
    special = {"pad_token": "[PAD]", "start_token": "[START]", "end_token": "[END]"}
    with pytest.raises(error, match=named):
        KerasHubTokenizer(make(), **special | options)


def test_run_folders_and_recipes_take_no_foreign_model(model, tmp_path):
    (tmp_path / "t5.model").write_bytes(model)
    with pytest.raises(
        ValueError, match=r"recipes and run folders take no.*SentencePieceToken.*t5\.mod"
    ):
        kt.Tokenizer(tmp_path / "t5.model")
