"""The tokenizer restores text by its rule: eagerly, in graphs, and after saving and loading."""

import inspect
import os
import pathlib
import random
import sys
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import CorpusError, read_lines
from keras_transformer.data.tokenizer import Tokenizer
from tests.data.sentencepiece_models import train_sentencepiece
from tests.examples import examples

pytestmark = pytest.mark.tensorflow_only
WORDS = "the a cat dog sat ran on under mat tree . , ! Größe naïve 3,5 it's".split()
SPECIAL_TEXTS = ["<s>", "</s>", "<pad>", "<unk>", "<0x41>", "<s><s>", "a<pad>b"]
# White space of all kinds, controls, joiners, marks, noncharacters, edges of the planes.
AWKWARD = [
    *range(0x21),
    *(0x7F, 0x85, 0xA0, 0xAD, 0x1680, 0x2028, 0x2029, 0x202F, 0x200B, 0x200D, 0x3000, 0xFEFF),
    *(0x301, 0x308, 0x323, 0x1100, 0x1161, 0x11A8, 0xAC00, 0xFB01, 0xFDFA, 0x1D15E, 0x2F800),
    *(0x2047, 0x2581, 0x2585, 0xD7FF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF, 0x1F600, 0x1F3FD, 0x10FFFF),
]


def text_lines(num_lines):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(3, 12))) for _ in range(num_lines)]


def random_unicode(num_lines):
    """Random lines: characters of all planes that Python's Unicode assigns, and `AWKWARD` ones."""
    rng = random.Random(0)

    def character():
        kind = rng.random()
        if kind < 0.3:
            return chr(rng.choice(AWKWARD))
        if kind < 0.5:
            return rng.choice(" etaoin.<>")
        if kind < 0.6:
            return chr(rng.randrange(0x300, 0x370))
        return chr(rng.randrange(rng.choice([0x250, 0x3000, 0x20000, 0x110000])))

    # A later version of Unicode may compose what this one leaves unassigned in planes 0 to 2.
    def is_known(char):
        category = unicodedata.category(char)
        return category != "Cs" and (category != "Cn" or ord(char) >= 0x30000)

    return [
        "".join(filter(is_known, (character() for _ in range(rng.randrange(25)))))
        for _ in range(num_lines)
    ]


def normalized(text, normalization):
    """The rules of `Tokenizer`, restated with Python's Unicode."""
    if normalization == "identity":
        return text.replace("\u2581", " ")
    form = normalization.upper()
    return " ".join(unicodedata.normalize(form, text).replace("\u2581", " ").split())


def strings(tensor):
    return [value.decode() for value in tensor.numpy()]


@pytest.fixture(
    scope="module",
    params=[("bpe", "nfc"), ("unigram", "nfkc"), ("bpe", "nfkc"), ("bpe", "identity")],
    ids="-".join,
)
def tokenizer(request, tmp_path_factory):
    model_type, normalization = request.param
    path = tmp_path_factory.mktemp("tokenizer") / "vocabulary.model"
    lines = text_lines(500) + SPECIAL_TEXTS * 20
    return Tokenizer.train_on_lines(
        lines, 295, path, model_type=model_type, normalization=normalization
    )


def test_detokenize_gives_back_the_normalized_text_of_10000_unicode_lines(tokenizer):
    lines = random_unicode(10_000)
    expected = [normalized(line, tokenizer.normalization) for line in lines]
    token_ids = tokenizer.tokenize(lines)
    assert strings(tokenizer.detokenize(token_ids)) == expected
    assert tokenizer.unk_token_id not in token_ids.flat_values.numpy()
    once = tokenizer.normalize(lines)
    assert strings(once) == strings(tokenizer.normalize(once)) == expected
    assert tokenizer.tokenize(once).to_list() == token_ids.to_list()


@examples(short=40, long=200)
@given(line=st.text(alphabet=st.sampled_from(" \t\n\u2581\u3000\u0301\x00aé<s>")))
def test_white_space_is_kept_or_joined_as_the_rule_says(tokenizer, line):
    (result,) = strings(tokenizer.detokenize(tokenizer.tokenize([line])))
    assert result == normalized(line, tokenizer.normalization)


def test_invalid_utf8_reads_as_the_replacement_character(tokenizer):
    assert strings(tokenizer.normalize([b"a\xffb"])) == ["a\ufffdb"]


def test_texts_of_special_tokens_stay_text(tokenizer):
    token_ids = tokenizer.tokenize(SPECIAL_TEXTS)
    names = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id"
    assert [getattr(tokenizer, name) for name in names] == [0, 1, 2, 3]
    assert token_ids.flat_values.numpy().min() > 3
    assert strings(tokenizer.detokenize(token_ids)) == SPECIAL_TEXTS


def test_a_word_has_the_same_tokens_at_the_start_of_a_line_and_within(tokenizer):
    first, both = tokenizer.tokenize(["cat", "cat cat"]).to_list()
    assert both == [*first, *first]


def assert_same(eager, graph):
    assert type(eager) is type(graph)
    assert eager.dtype == graph.dtype
    if isinstance(eager, tf.RaggedTensor):
        assert eager.row_splits.dtype == graph.row_splits.dtype
        assert eager.to_list() == graph.to_list()
    else:
        np.testing.assert_array_equal(eager, graph)


@pytest.mark.parametrize("tokenizer", [("bpe", "nfc"), ("bpe", "identity")], indirect=True)
@pytest.mark.parametrize("text", [["the cat", "", "Größe"], "the cat", []], ids=repr)
def test_eager_and_graph_give_the_same_values_and_types(tokenizer, text):
    text = tf.constant(text, tf.string)
    bare = tokenizer.tokenize(text)
    rows = bare.to_list() if text.shape.rank else [bare.numpy().tolist()]
    for start, end in [([], []), ([1], []), ([], [2]), ([1], [2])]:

        def tokenize(text, start=start, end=end):
            return tokenizer.tokenize(text, add_start=bool(start), add_end=bool(end))

        token_ids = tokenize(text)
        assert isinstance(token_ids, tf.RaggedTensor) == (text.shape.rank == 1)
        assert token_ids.dtype == tf.int32
        found = token_ids.to_list() if text.shape.rank else [token_ids.numpy().tolist()]
        assert found == [[*start, *row, *end] for row in rows]
    assert_same(token_ids, tf.function(tokenize)(text))
    for method in (tokenizer.detokenize, tokenizer.tokens):
        assert_same(method(token_ids), tf.function(method)(token_ids))
    assert_same(tokenizer.normalize(text), tf.function(tokenizer.normalize)(text))


def test_detokenize_leaves_out_special_tokens_ragged_or_padded(tokenizer):
    text = ["the cat", "", "a dog ran"]
    ragged = tokenizer.tokenize(text, add_start=True, add_end=True)
    for token_ids in (ragged, ragged.to_tensor(), ragged.to_list(), tf.cast(ragged, tf.int64)):
        assert strings(tokenizer.detokenize(token_ids)) == text
    assert tokenizer.detokenize(ragged[2]).numpy() == b"a dog ran"


def test_tokens_spell_the_text(tokenizer):
    token_ids = tokenizer.tokenize("the cat", add_start=True, add_end=True)
    start, *pieces, end = strings(tokenizer.tokens(token_ids))
    assert (start, "".join(pieces), end) == ("<s>", "▁the▁cat", "</s>")
    assert tokenizer.tokens([[0, 3], [2]]).to_list() == [[b"<pad>", b"<unk>"], [b"</s>"]]


def test_model_survives_file_and_bytes(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new" / "copy.model")
    assert os.listdir(tmp_path / "new") == ["copy.model"]
    lines = random_unicode(100)
    for copy in (Tokenizer(tmp_path / "new" / "copy.model"), Tokenizer(tokenizer.model_bytes)):
        assert copy.tokenize(lines).to_list() == tokenizer.tokenize(lines).to_list()
        assert copy.normalization == tokenizer.normalization
        assert copy.vocabulary_size == tokenizer.vocabulary_size


@pytest.mark.parametrize("rule", ["nfc", "nfkc", "identity"])
def test_training_is_deterministic_and_prints_nothing(tmp_path, capfd, rule):
    options = {"max_lines": 200, "normalization": rule}
    models = [
        Tokenizer.train_on_lines(text_lines(300), 300, tmp_path / "m", **options).model_bytes
        for _ in range(2)
    ]
    assert models[0] == models[1]
    assert capfd.readouterr() == ("", "")


def test_training_reads_files_globs_and_lines_alike(tmp_path):
    lines = text_lines(200)
    for name, part in {"a.txt": lines[:120], "b.txt": lines[120:]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in part))
    files = [str(tmp_path / "*.txt"), [tmp_path / "a.txt", tmp_path / "b.txt"]]
    texts = [lines, iter([*lines, "", " \t "]), read_lines(files[0])]
    models = {Tokenizer.train(each, 290, tmp_path / "m").model_bytes for each in files}
    models |= {Tokenizer.train_on_lines(each, 290, tmp_path / "m").model_bytes for each in texts}
    assert len(models) == 1


def test_defaults_are_the_same_in_python_in_recipes_and_on_the_command_line():
    from keras_transformer.cli.data import vocabulary
    from keras_transformer.runs.recipe import VocabularySettings

    for argument, value in (("model_type", "bpe"), ("normalization", "nfc")):
        for function in (Tokenizer.train_on_lines, vocabulary, VocabularySettings):
            assert inspect.signature(function).parameters[argument].default == value


# Texts that NFKC changes: {text: what NFKC makes of it}.
COMPATIBLE = {
    "为什么，好？": "为什么,好?",
    "½ Liter": "1⁄2 Liter",
    "und dann…": "und dann...",
    "b r ʲ a tʰ": "b r j a th",
    "H₂O, m², 1º": "H2O, m2, 1o",
    "ﬁ ﾊﾝｶｸ ①": "fi ハンカク 1",
}


def test_default_keeps_what_a_reader_sees(tmp_path):
    composed, decomposed = "Größe", unicodedata.normalize("NFD", "Größe")
    for options, expected in (
        ({}, list(COMPATIBLE)),
        ({"normalization": "nfkc"}, list(COMPATIBLE.values())),
    ):
        tokenizer = Tokenizer.train_on_lines([*COMPATIBLE], 310, tmp_path / "m", **options)
        assert strings(tokenizer.detokenize(tokenizer.tokenize(list(COMPATIBLE)))) == expected
        both = tokenizer.tokenize([composed, decomposed]).to_list()
        assert both[0] == both[1]


def test_lines_with_tabs_are_learned_from(tmp_path):
    lines = ["ab\tcd", "cd\tab"] * 50
    tokenizer = Tokenizer.train_on_lines(lines, 268, tmp_path / "m")
    assert tokenizer.tokenize("ab cd").shape[0] < len("ab cd")


def test_vocabulary_is_smaller_with_a_warning_if_the_text_yields_fewer_tokens(tmp_path):
    with pytest.warns(UserWarning, match="vocabulary_size=8000"):
        tokenizer = Tokenizer.train_on_lines(["some text"], 8000, tmp_path / "m")
    assert 260 < tokenizer.vocabulary_size < 8000
    assert Tokenizer(tmp_path / "m").vocabulary_size == tokenizer.vocabulary_size


def broken_corpus():
    yield "good"
    raise CorpusError("file, line 2: wrong")


def train_on(*lines, size=300, **options):
    return lambda path: Tokenizer.train_on_lines(*lines, size, path, **options)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (train_on(["abc"], size=262), ValueError, "`vocabulary_size` must be at least"),
        (train_on(["", " "]), ValueError, "must be a line of text"),
        (train_on([("a", "b")]), TypeError, "`lines` must be strings.*'b'"),
        (train_on("a.txt"), TypeError, r"`lines`.*Tokenizer.train\(files.*'a.txt'"),
        (train_on(pathlib.Path("a.txt")), TypeError, r"Tokenizer.train\(files"),
        (train_on(broken_corpus()), CorpusError, "file, line 2: wrong$"),
        (train_on(["abc"], model_type="word"), ValueError, "`model_type`.*'word'"),
        (train_on(["abc"], normalization="nfd"), ValueError, "`normalization`.*'nfd'"),
        *(
            (
                lambda path, files=files: Tokenizer.train(files, 300, path),
                FileNotFoundError,
                r"(missing|one line).*train_on_lines\(lines",
            )
            for files in ("missing.txt", ["one line", "another"], iter(["one line"]))
        ),
        (lambda path: Tokenizer.train(os.devnull, 300, path), ValueError, "line of text.*null"),
        (lambda path: Tokenizer(b""), ValueError, "`model` must be a whole SentencePiece model"),
        (lambda path: Tokenizer(b"text"), ValueError, "`model` must be a whole SentencePiece mod"),
        (
            lambda path: Tokenizer(train_sentencepiece(text_lines(50), 40)),
            ValueError,
            "`model` must be a file that `Tokenizer.train`",
        ),
        (Tokenizer, FileNotFoundError, "`model` must be an existing file.*/m$"),
    ],
)
def test_bad_input_is_named_and_leaves_no_file(tmp_path, make, error, named):
    with pytest.raises(error, match=named):
        make(tmp_path / "m")
    assert not os.listdir(tmp_path)


def test_text_of_the_wrong_shape_raises(tokenizer):
    with pytest.raises(ValueError, match=r"`text` must be a string or a list.*\(1, 2\)"):
        tokenizer.tokenize([["a", "b"]])


def test_missing_tensorflow_text_raises_on_use_only(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match="needs tensorflow-text"):
        Tokenizer(tokenizer.model_bytes)


def test_tokenizer_outlives_a_new_random_seed(tmp_path):
    """Seeding clears TensorFlow's kernel cache, which holds the models of tensorflow-text."""
    tokenizer = Tokenizer.train_on_lines(["one two three"], 268, tmp_path / "one.model")
    compiled = tf.function(tokenizer.tokenize)

    def both():
        return tokenizer.tokenize(["two"]).to_list(), compiled(tf.constant(["two"])).to_list()

    before = both()
    keras.utils.set_random_seed(1)
    assert both() == before
    # Two models have two named resources.
    other = Tokenizer.train_on_lines(["zwei drei vier"], 268, tmp_path / "other.model")
    assert other.detokenize(other.tokenize(["vier"])).numpy().tolist() == [b"vier"]
    assert both() == before
