"""Models of symbols translate alike as a `Translator` and a folder of CTranslate2."""

import json
import subprocess
import sys

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import load_translator
from keras_transformer.data import pieces
from keras_transformer.export.folder_tokenizers import CODE, write_tokenizers
from tests.builders import randomize

pytest.importorskip("ctranslate2")
pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`max_source_tokens` is"),
]

LETTERS = [*"abc e\u0301\u1100\u1161\n\0\t<>/s", "V;PST", "</s>", "<unk>"]
PHONES = ["aː", "</s>", "<s>", "b", "t͡ɕ", "k\u0303", "<0x41>", "▁"]
# Spaces at the ends and in pairs, unknown symbols, a blank line, Hangul, a symbol like a token.
LINES = ["ab", "  a  b ", "", "V;PSTcab</s>", "\xe9가a\xdf", " ", "a\0b\tc", "c" * 30, "<unk>x"]
PROGRAM = """
import sys, json
sys.path.insert(0, sys.argv[1])
from folder_tokenizer import load_pieces
source = load_pieces(sys.argv[1] + "/source.json")
rows = source.encode(json.loads(sys.argv[2]))
print(json.dumps([rows, source.decode(rows)]))
"""


def translator_of(source, target, **settings):
    config = kt.TransformerConfig.tiny(
        target.vocabulary_size,
        source_vocabulary_size=source.vocabulary_size,
        tie_embeddings="decoder",
        **{"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2},
    )
    model = kt.Transformer(config)
    randomize(model)
    rules = {"length_penalty": "mean", "stopping": "first_beams", "beam_size": 3}
    rules |= {"extra_length": 4, "length_ratio": 1.0}
    return kt.Translator(model, source, target, **rules | settings)


@pytest.fixture(scope="module", params=["nfd", pytest.param("identity", marks=pytest.mark.long)])
def translator(request):
    letters = [each for each in LETTERS if each != "\xe9"]
    rules = {"normalization": request.param, "symbols": [each for each in letters if each[1:]]}
    source = kt.Tokenizer.characters(letters, **rules)
    return translator_of(source, kt.Tokenizer.words(PHONES), max_source_tokens=12)


@pytest.mark.parametrize(
    ("target", "joiner"),
    [
        (kt.Tokenizer.characters([*"xyz"]), ""),
        pytest.param(kt.Tokenizer.words(PHONES), " ", marks=pytest.mark.long),
    ],
)
def test_parts_of_a_long_line_are_joined_as_symbols_are(target, joiner, tmp_path):
    rules = {"max_source_tokens": 4, "suppressed_tokens": [0, 1, 2]}  # so that no text is empty
    translator = translator_of(kt.Tokenizer.characters([*"abc"]), target, **rules)
    expected = [joiner.join(translator(["abc", "cab", "b"])), *translator(["ba"])]
    assert all(expected)
    lines = ["abccabb", "ba"]
    assert translator(lines) == expected
    assert [best.text for best, *_ in translator(lines, n_best=2)] == expected
    engine = load_translator(kt.export_ctranslate2(translator, tmp_path / "ct2"), workers=1)
    parts = engine(["abc", "cab", "b"])
    assert engine(lines) == [joiner.join(filter(None, parts)), *engine(["ba"])]


def test_ctranslate2_gives_the_same_texts(translator, tmp_path):
    folder = kt.export_ctranslate2(translator, tmp_path / "ct2")
    engine = load_translator(folder, workers=1)
    assert engine(LINES) == translator(LINES)
    assert [one.tokens for (one,) in engine(LINES, n_best=1)] == [
        one.tokens for (one,) in translator(LINES, n_best=1)
    ]
    targets = ["aː </s>", "x", "", "▁ <unk>", "b", "", "b  aː", "b", "b"]
    found, expected = (each.score(LINES, targets) for each in (engine, translator))
    np.testing.assert_allclose([x.score for x in found], [x.score for x in expected], rtol=1e-4)
    # Without this package.
    lines = [line for line in LINES if "\0" not in line]
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(lines)]
    rows, texts = json.loads(subprocess.check_output(command, cwd=tmp_path))
    source = translator.source_tokenizer
    assert rows == [[source.vocabulary[i] for i in row] for row in source.encode(lines)]
    assert texts == source.decode(source.encode(lines))


def test_code_of_a_read_only_package_is_written_like_every_file(tmp_path, monkeypatch):
    """A file that its owner may not write could not be flushed to the disk."""
    code, folder = tmp_path / "code.py", tmp_path / "folder"
    code.write_text("the code", "utf-8")
    code.chmod(0o444)
    monkeypatch.setattr(pieces, "__file__", str(code))
    folder.mkdir()
    tokenizer = kt.Tokenizer.characters([*"abc"])
    write_tokenizers(folder, (tokenizer, tokenizer))
    modes = {file.name: file.stat().st_mode for file in folder.iterdir()}
    assert modes[CODE] == modes["tokenizer.json"]
    assert (folder / CODE).read_text("utf-8") == "the code"
