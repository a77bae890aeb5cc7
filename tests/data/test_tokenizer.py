"""The tokenizer restores text by its rule, also after saving and loading."""

import inspect
import os
import pathlib
import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_agreement import awkward_strings, train_sentencepiece

from keras_transformer.data.corpus import CorpusError, read_lines
from keras_transformer.data.pieces import UNICODE
from keras_transformer.data.pipeline import make_dataset
from keras_transformer.data.tokenizer import Tokenizer
from tests.builders import learned_tokenizer, run_fresh
from tests.examples import examples

WORDS = "the a cat dog sat ran on under mat tree . , ! Größe naïve 3,5 it's".split()
SPECIAL_TEXTS = ["<s>", "</s>", "<pad>", "<unk>", "<0x41>", "<s><s>", "a<pad>b"]


def text_lines(num_lines):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(3, 12))) for _ in range(num_lines)]


def normalized(text, normalization):
    """The rules of `Tokenizer`, restated."""
    if normalization == "identity":
        return text.replace("\u2581", " ")
    form = normalization.upper()
    return " ".join(UNICODE.normalize(form, text).replace("\u2581", " ").split())


@pytest.fixture(
    scope="module",
    params=[("bpe", "nfc"), ("unigram", "nfkc"), ("bpe", "nfkc"), ("bpe", "identity")],
    ids="-".join,
)
def tokenizer(request):
    options = dict(zip(("model_type", "normalization"), request.param, strict=True))
    return learned_tokenizer([text_lines(500), SPECIAL_TEXTS * 20], 295, **options)


def test_decode_gives_back_the_normalized_text_of_10000_unicode_lines(tokenizer):
    lines = awkward_strings(10_000, text_lines(100))
    expected = [normalized(line, tokenizer.normalization) for line in lines]
    token_ids = tokenizer.encode(lines)
    assert tokenizer.decode(token_ids) == expected
    assert tokenizer.unk_token_id not in set().union(*token_ids)
    assert [tokenizer.normalize(line) for line in lines] == expected
    assert [tokenizer.normalize(line) for line in expected] == expected
    assert tokenizer.encode(expected) == token_ids


@examples(short=40, long=200)
@given(line=st.text(alphabet=st.sampled_from(" \t\n\u2581\u3000\u0301\x00aé<s>")))
def test_white_space_is_kept_or_joined_as_the_rule_says(tokenizer, line):
    (result,) = tokenizer.decode(tokenizer.encode([line]))
    assert result == normalized(line, tokenizer.normalization)


def test_texts_of_special_tokens_stay_text(tokenizer):
    token_ids = tokenizer.encode(SPECIAL_TEXTS)
    names = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id"
    assert [getattr(tokenizer, name) for name in names] == [0, 1, 2, 3]
    assert min(map(min, token_ids)) > 3
    assert tokenizer.decode(token_ids) == SPECIAL_TEXTS


def test_a_word_has_the_same_tokens_at_the_start_of_a_line_and_within(tokenizer):
    first, both = tokenizer.encode(["cat", "cat cat"])
    assert both == [*first, *first]


def test_one_string_has_one_row_and_start_and_end_are_added(tokenizer):
    texts = ["the cat", "", "Größe"]
    rows = tokenizer.encode(texts)
    assert [tokenizer.encode(text) for text in texts] == rows
    assert tokenizer.encode(texts, add_start=True) == [[1, *row] for row in rows]
    assert tokenizer.encode(texts[0], add_start=True, add_end=True) == [1, *rows[0], 2]
    assert tokenizer.encode([]) == tokenizer.decode([]) == []


def test_decode_leaves_out_special_tokens_of_lists_and_arrays(tokenizer):
    texts = ["the cat", "", "a dog ran"]
    rows = tokenizer.encode(texts, add_start=True, add_end=True)
    padded = np.zeros((3, 40), np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    for token_ids in (rows, padded, [np.array(row, np.int32) for row in rows], list(padded)):
        assert tokenizer.decode(token_ids) == texts
    assert tokenizer.decode(rows[2]) == tokenizer.decode(padded[2]) == "a dog ran"
    with pytest.raises(ValueError, match=r"`rows` must hold ids from 0 to \d+, .*Received: -1"):
        tokenizer.decode([[5, -1]])


def test_vocabulary_spells_the_text(tokenizer):
    token_ids = tokenizer.encode("the cat", add_start=True, add_end=True)
    start, *pieces, end = (tokenizer.vocabulary[i] for i in token_ids)
    assert (start, "".join(pieces), end) == ("<s>", "▁the▁cat", "</s>")
    assert tokenizer.vocabulary[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert len(tokenizer.vocabulary) == tokenizer.vocabulary_size


def test_model_survives_file_and_bytes(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new" / "copy.json")
    assert sorted(os.listdir(tmp_path / "new")) == ["copy.json", "copy.spm"]
    (tmp_path / "old.model").write_bytes(tokenizer.model_bytes)  # the file of the version before
    lines = awkward_strings(100, text_lines(100))
    for path in (tmp_path / "new" / "copy.json", tmp_path / "old.model"):
        copy = Tokenizer.load(path)
        assert copy.encode(lines) == tokenizer.encode(lines)
        assert copy.normalization == tokenizer.normalization
        assert copy.vocabulary_size == tokenizer.vocabulary_size


@pytest.mark.parametrize("rule", ["nfc", "nfkc", "identity"])
def test_training_is_deterministic_and_prints_nothing(tmp_path, capfd, rule):
    options = {"max_lines": 200, "normalization": rule}
    models = set()
    for _ in range(2):
        with pytest.warns(UserWarning, match="a random sample of 200 of 300 lines"):
            tokenizer = Tokenizer.train_on_lines(text_lines(300), 300, tmp_path / "m", **options)
        models.add(tokenizer.model_bytes)
    assert len(models) == 1
    assert capfd.readouterr() == ("", "")
    sample = Tokenizer.load(tmp_path / "m").learned_from
    assert sample == "a random sample of 200 of 300 lines, seed 0"
    _, report = make_dataset([("a", "b")], tokenizer, batch_sentences=1)
    assert f"the vocabulary is learned from {sample}" in str(report).splitlines()


def test_vocabulary_is_learned_from_a_uniform_sample(tmp_path):
    """Each line is a character of its own, which the vocabulary then holds."""
    lines = {chr(0x4E00 + n): n for n in range(6000)}
    with pytest.warns(UserWarning):
        tokenizer = Tokenizer.train_on_lines(list(lines), 9000, tmp_path / "m", max_lines=3000)
    drawn = [lines[token] for token in tokenizer.vocabulary if token in lines]
    assert len(drawn) == 3000
    parts, _ = np.histogram(drawn, 6, (0, 6000))
    assert (abs(parts - 500) < 80).all(), "five standard deviations"


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
        assert getattr(VocabularySettings(), argument) == value
        for function in (Tokenizer.train_on_lines, vocabulary):
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
        assert tokenizer.decode(tokenizer.encode(list(COMPATIBLE))) == expected
        both = tokenizer.encode([composed, decomposed])
        assert both[0] == both[1]


def test_lines_with_tabs_are_learned_from(tmp_path):
    lines = ["ab\tcd", "cd\tab"] * 50
    tokenizer = Tokenizer.train_on_lines(lines, 268, tmp_path / "m")
    assert len(tokenizer.encode("ab cd")) < len("ab cd")


def test_vocabulary_is_smaller_with_a_warning_if_the_text_yields_fewer_tokens(tmp_path):
    with pytest.warns(UserWarning, match="vocabulary_size=8000"):
        tokenizer = Tokenizer.train_on_lines(["some text"], 8000, tmp_path / "m")
    assert 260 < tokenizer.vocabulary_size < 8000
    assert Tokenizer.load(tmp_path / "m").vocabulary_size == tokenizer.vocabulary_size


def broken_corpus():
    yield "good"
    raise CorpusError("file, line 2: wrong")


def test_model_of_another_file_is_refused(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "m.json")
    (tmp_path / "m.spm").write_bytes(train_sentencepiece(text_lines(50), 40))
    with pytest.raises(ValueError, match=r"m\.spm must be the model that was saved with m\.json"):
        Tokenizer.load(tmp_path / "m.json")


def test_model_of_another_tokenizer_is_not_replaced(tokenizer, tmp_path):
    other = tokenizer.with_language("new", "__new__", ["zzz"])  # another model
    for name in ("a.en", "a.de"):
        tokenizer.save(tmp_path / name)
    with pytest.raises(FileExistsError, match=r"a\.fr.*a\.spm.*Choose another name"):
        other.save(tmp_path / "a.fr")
    assert not (tmp_path / "a.fr").exists()
    assert Tokenizer.load(tmp_path / "a.en").fingerprint() == tokenizer.fingerprint()
    for each in (tokenizer, other):
        each.save(tmp_path / "b")
    assert Tokenizer.load(tmp_path / "b").fingerprint() == other.fingerprint()


def saved(path):
    Tokenizer.words(["a"]).save(path)


def train_on(*lines, size=300, **options):
    return lambda path: Tokenizer.train_on_lines(*lines, size, path, **options)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (train_on(["abc"], size=262), ValueError, "`vocabulary_size` must be at least"),
        (train_on(["", " "]), ValueError, "must be a line of text"),
        (train_on("a.txt"), TypeError, r"`lines`.*'a.txt'.*Tokenizer.train\(files"),
        (train_on(pathlib.Path("a.txt")), TypeError, r"Tokenizer.train\(files"),
        (train_on(broken_corpus()), CorpusError, "file, line 2: wrong$"),
        (train_on(["abc"], model_type="word"), ValueError, "`model_type`.*'word'"),
        (train_on(["abc"], normalization="nfd"), ValueError, "`normalization`.*'nfd'"),
        (
            train_on(["abc"], character_coverage=0.95),
            ValueError,
            "_coverage` must be from 0.98 to 1",
        ),
        (train_on(["abc"], max_lines=100), ValueError, "`max_lines` must be more than 100"),
        (train_on(["abc"], protected_symbols=1), ValueError, "`protected_symbols` must be 0 or at"),
        *(
            (
                lambda path, files=files: Tokenizer.train(files, 300, path),
                FileNotFoundError,
                "`files` must name existing files.*(missing|one line)",
            )
            for files in ("missing.txt", ["one line", "another"], iter(["one line"]))
        ),
        (lambda path: Tokenizer.train(os.devnull, 300, path), ValueError, "line of text.*null"),
        (Tokenizer, TypeError, "To read a file: Tokenizer.load"),
        (Tokenizer.load, FileNotFoundError, "`path` must be an existing file.*/m'$"),
        (lambda path: saved("a.spm"), ValueError, "`path` must be the path of a JSON file"),
    ],
)
def test_bad_input_is_named_and_leaves_no_file(tmp_path, make, error, named):
    with pytest.raises(error, match=named):
        make(tmp_path / "m")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "`model` must be a whole SentencePiece model"),
        (b"text", "`model` must be a whole SentencePiece model"),
        (train_sentencepiece(text_lines(50), 40), "`model` must be a file that `Tokenizer.train`"),
    ],
)
def test_file_of_another_kind_is_refused(content, named, tmp_path):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ValueError, match=named):
        Tokenizer.load(tmp_path / "m")


THREADS = """
import os
from keras_transformer import Tokenizer

tokenizer = Tokenizer.load({path!r})
lines = ["a cat sat on the mat"] * 20_000
rows = tokenizer.encode(lines)

def most_threads(work):
    \"\"\"The most threads of this process during some work; a forked one counts them.\"\"\"
    (ended, end), (result, answer) = os.pipe(), os.pipe()
    if os.fork():
        work()
        os.close(end)
        return os.read(result, 1)[0]
    os.close(end)
    os.set_blocking(ended, False)
    tasks, most, is_over = f"/proc/{{os.getppid()}}/task", 0, False
    while not is_over:
        most = max(most, len(os.listdir(tasks)))
        try:
            is_over = os.read(ended, 1) == b""
        except BlockingIOError:
            pass
    os.write(answer, bytes([most]))
    os._exit(0)

before = len(os.listdir("/proc/self/task"))
works = [lambda: tokenizer.encode(lines), lambda: tokenizer.decode(rows)]
counts = [most_threads(work) for work in works]
print(max(counts) - before)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="needs Linux")
def test_a_call_has_one_thread(tmp_path):
    """Starting a thread for each of 64 cores takes ten times as long as encoding 32 lines."""
    Tokenizer.train_on_lines(text_lines(300), 295, tmp_path / "m")
    assert int(run_fresh(THREADS.format(path=str(tmp_path / "m")))) <= 1
