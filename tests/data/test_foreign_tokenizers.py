"""Tokenizers of other origin: SentencePiece models with their own ids, KerasHub's, and one's own.

The references are SentencePiece's own processor and KerasHub's own layers.
"""

import functools
import json
import sys
import types

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
from tests.processes import run

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
    letters = sorted({letter for line in SOURCES + TARGETS for letter in line if letter != " "})
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


class Characters:
    """A tokenizer that a user writes: one token for each ASCII character."""

    vocabulary_size, pad_token_id, start_token_id, end_token_id = 128, 0, 1, 2
    vocabulary = tuple(map(chr, range(32))) + ("\u2581", *map(chr, range(33, 128)))

    def encode(self, texts):
        return [tuple(map(ord, text)) for text in texts]

    def decode(self, rows):
        return ["".join(chr(i) for i in row if i > 2) for row in rows]

    @property
    def graph(self):
        return GraphCharacters()


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


class UnsavedCharacters(Characters):
    @property
    def graph(self):
        return types.SimpleNamespace(
            tokenize=super().graph.tokenize, detokenize=super().graph.detokenize
        )


def own(folder, rule="nfc"):
    return kt.Tokenizer.train_on_lines(SOURCES + TARGETS, 330, folder / "m", normalization=rule)


def opus(folder):
    return MarianTokenizer(opus_models.sentencepiece_models()[0], opus_models.vocabulary())


def of_both_sides(folder):
    """KerasHub's for the source, SentencePiece for the target, with the same special ids."""
    model = train(TARGETS)
    pieces = ["</s>", "<unk>", "<pad>", "<s>", *pieces_of(model)[3:]]
    return word_piece()[1], SentencePieceTokenizer(model, vocabulary=pieces)


# Functions that return the tokenizer of both sides, or one for each; one of each class is walked.
WALKED = {
    "KerasHub's and SentencePiece": of_both_sides,
    "a class of your own": lambda folder: Characters(),
    "Tokenizer": own,
    "MarianTokenizer": opus,
    "byte-pair": lambda folder: byte_pair()[1],
    "SentencePieceTokenizer": lambda folder: t5()[0][1],
    "SentencePiece of KerasHub": lambda folder: hub_sentencepiece()[1],
}
BOTH = list(WALKED)[0]
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    "name", [BOTH, *(pytest.param(name, marks=pytest.mark.long) for name in list(WALKED)[1:5])]
)
def test_every_tokenizer_takes_the_way_of_all_commands(name, tmp_path):
    """The calls of `doctor`, `train`, `translate`, `score` and `export --format ctranslate2`."""
    made = WALKED[name](tmp_path)
    source, target = made if isinstance(made, tuple) else (made, made)
    config = config_of(source, target)
    targets = SOURCES if isinstance(target, Characters | MarianTokenizer) else TARGETS
    pairs = list(zip(SOURCES, targets, strict=True))
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    dataset, report = kt.make_dataset(pairs, source, target, **options)
    assert report.pairs_kept == len(pairs) and [c.lines for c in report.changes] == [200, 200]
    passed, detail = check_tokenizer(source, SOURCES, report.changes[0])
    assert passed, detail
    inputs, labels, weights = next(dataset.as_numpy_iterator())
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
        folder = kt.export_ctranslate2(kt.Translator(model, source), tmp_path / "ct2")
        assert (folder / "model.bin").is_file()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_model_of_foreign_tokenizers_is_trained_and_served(tmp_path):
    source, target = WALKED[BOTH](tmp_path)
    config = config_of(source, target)
    options = {"batch_sentences": 100, "max_length_ratio": None, "config": config}
    dataset, _ = kt.make_dataset(PAIRS, source, target, **options)
    model = randomize(kt.Transformer(config))
    model.compile(kt.paper_optimizer(config, learning_rate=1e-3), kt.SmoothedCrossEntropy())
    assert np.isfinite(model.fit(dataset, epochs=1, verbose=0).history["loss"]).all()
    options = {"beam_size": 1, "extra_length": 2, "max_source_tokens": 20}
    translator = kt.Translator(model, source, target, processors=[text_only(config)], **options)
    texts = ["one", "", "twenty-one thousand", "one. " * 30, "\N{CAT FACE}"]
    with pytest.warns(UserWarning, match="line 4 in"):
        expected = translator(texts)
    (found,) = serve([kt.export_saved_model(translator, tmp_path / "served")], texts)
    assert found["translation"] == expected


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


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.long)])
def test_saved_model_holds_the_whole_tokenizer(is_slow, tmp_path):
    tokenizers = [own(tmp_path, rule) for rule in ("nfkc", "identity")]
    for name in WALKED:
        if (name == "byte-pair") == is_slow:
            made = WALKED[name](tmp_path)
            tokenizers += made if isinstance(made, tuple) else [made]
    lines, folders, expected = ["twenty-one", "", "  a b "], [], []
    for number, tokenizer in enumerate(tokenizers):
        module = Outputs(tokenizer)
        folders.append(tmp_path / str(number))
        tf.saved_model.save(module, str(folders[-1]), signatures=module.__call__)
        eager = module.__call__.python_function(tf.constant(lines))
        expected.append({name: strings(value) for name, value in eager.items()})
    assert serve(folders, lines) == expected


def test_a_tokenizer_that_is_no_module_translates_but_exports_nothing(tmp_path):
    model = randomize(kt.Transformer(kt.TransformerConfig.tiny(128, **SIZES)))
    translator = kt.Translator(model, UnsavedCharacters(), beam_size=1)
    (hypothesis,) = translator("a b", n_best=1)
    assert hypothesis.source_tokens == ["a", "\u2581", "b", "\x02"]
    with pytest.raises(TypeError, match=r"must be a `tf.Module`.*Received: UnsavedCharacters"):
        kt.export_saved_model(translator, tmp_path / "served")


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [
        (
            "t5.model",
            "str without the integer `vocabulary_size`.*`vocabulary`, `decode",
        ),
        (keras_hub.tokenizers.WordPieceTokenizer(["[UNK]"]), "WordPiece.*size`.*`KerasHubTokeniz"),
        (type("NoEnd", (Characters,), {"end_token_id": None})(), "without the integer `end_token_"),
        (
            GraphCharacters(),
            "GraphCharacters without .*`vocabulary`, `encode\\(\\)`, `decode\\(\\)`\\.",
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


@pytest.fixture(scope="module")
def model():
    return t5()[0][0]


def test_ids_without_a_piece_have_no_text(model):
    tokenizer = SentencePieceTokenizer(model, start_token_id=200, vocabulary_size=300)
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
        ({"start_token_id": 9, "vocabulary": ["a"]}, "`pad_token_id` must be given.*no '<pad>'"),
    ],
)
def test_special_tokens_without_an_id_of_their_own_are_refused(model, options, named):
    with pytest.raises(ValueError, match=named):
        SentencePieceTokenizer(model, **options)


layers = keras_hub.tokenizers
SHORT = {"[PAD]": 0, "[END]": 1, "a": 2, "b": 3, "ab": 4}


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (layers.ByteTokenizer, TypeError, "must be a WordPiece, byte-pair"),
        (
            lambda: layers.WordPieceTokenizer(["[UNK]"], sequence_length=9),
            ValueError,
            "sequence_length=9",
        ),
        (
            lambda: layers.WordPieceTokenizer(["[UNK]", "[PAD]", "a"]),
            ValueError,
            "`end_token`.*='\\[END\\]'",
        ),
        (lambda: layers.BytePairTokenizer(SHORT, ["a b"]), ValueError, "256 bytes.*253 others"),
    ],
)
def test_tokenizers_of_keras_hub_that_do_not_fit_are_refused(make, error, named):
    with pytest.raises(error, match=named):
        KerasHubTokenizer(make(), pad_token="[PAD]", start_token="a", end_token="[END]")
