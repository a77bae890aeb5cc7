"""Languages that are added at import, against the model without them."""

import numpy as np
import pytest
import tokenizer_agreement

import keras_transformer as kt
from tests.cli.small_run import cli
from tests.importing import multilingual_models, opus_models
from tests.importing.opus_models import sentences

tensorflow = pytest.importorskip("tensorflow")
pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only]

# The new language, the similar one, and those of the lines.
CODES = {
    "nllb": ("tyv_Cyrl", "kir_Cyrl", "eng_Latn", "deu_Latn"),
    "m2m": ("tyv", "kk", "en", "de"),
}


@pytest.fixture(scope="module", params=CODES)
def imported(request, tmp_path_factory):
    """Kind, our translator without the language, and the run with it; that of NLLB has pieces."""
    kind, folder = request.param, tmp_path_factory.mktemp("models")
    new, like, *languages = CODES[kind]
    options = ["--add-language", new, "--like", like]
    content = None
    if kind == "nllb":
        train = tokenizer_agreement.train_sentencepiece
        lines = multilingual_models.lines()
        content = train(lines, 200, character_coverage=1.0, model_type="bpe")
        (folder / "text").write_text("\n".join(in_new_language(600)) + "\n", "utf-8")
        options += ["--add-pieces", folder / "text", "--num-pieces", 50]
    multilingual_models.make_model(folder / kind, kind, content=content)
    cli("import", "hub", folder / kind, folder / "run", *options)
    old = kt.import_model(folder / kind, print_fn=str, **settings_of(languages))
    return kind, old, folder / "run"


def in_new_language(count):
    texts = (german for _, german in kt.number_names("train", count))
    return [text.replace("hundert", "чүс").replace("ei", "ӧү") for text in texts]


def settings_of(languages):
    source, target = languages
    return {"source_language": source, "target_language": target, "max_length": 20}


@pytest.mark.slow
@pytest.mark.parametrize(
    "imported", ["nllb", pytest.param("m2m", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.long), 4])
def test_old_translations_stay(imported, beam_size):
    """Of a model whose embeddings are almost equal in pairs: near ties."""
    kind, old, run = imported
    _, like, *languages = CODES[kind]
    new, kinds_of_rows = kt.load_run(run, **settings_of(languages)), set()
    options = {"n_best": 1, "beam_size": beam_size, "length_penalty": None, "extra_length": 20}
    for target in (languages[1], like):
        expected, found = (
            each(sentences(60), target_language=target, **options) for each in (old, new)
        )
        for (before,), (after,) in zip(expected, found, strict=True):
            kinds_of_rows.add(tuple(before.tokens))
            assert after.tokens == before.tokens and after.text == before.text
            assert after.score == pytest.approx(before.score, rel=1e-6, abs=1e-6)
    assert len(kinds_of_rows) > 10, "the model is no test"


def test_the_language_is_a_copy_and_a_piece_the_mean_of_what_it_was(imported):
    kind, old, run = imported
    code, like, source, target = CODES[kind]
    new = kt.load_run(run, **settings_of((source, target)))
    tokenizer, size = new.source_tokenizer, old.model.config.vocabulary_size
    assert tokenizer.language_ids == old.source_tokenizer.language_ids | {code: size}
    assert tokenizer.vocabulary[:size] == old.source_tokenizer.vocabulary
    token, *pieces = tokenizer.vocabulary[size:]
    assert token == {"nllb": "tyv_Cyrl", "m2m": "__tyv__"}[kind]
    assert (len(pieces) > 30) == (kind == "nllb")
    config, added = new.model.config, 1 + len(pieces)
    assert (config.vocabulary_size, config.added_tokens) == (size + added, added)
    assert kt.runs.RunFolder(run).recipe().model["added_tokens"] == added
    weights = {weight.path: np.array(weight) for weight in new.model.weights}
    bias = weights.pop("logits/bias")
    assert (bias[size:] == np.float32(-1e9)).all() and not bias[:size].any()
    for weight in old.model.weights:
        before, after = np.array(weight), weights[weight.path]
        np.testing.assert_array_equal(after[: len(before)], before)
    table = weights["encoder/embedding/embeddings"]
    np.testing.assert_array_equal(table[size], table[tokenizer.language_ids[like]])
    for row, piece in zip(table[size + 1 :], pieces, strict=True):
        if piece.startswith("▁"):  # else its text would be a word
            ids = old.source_tokenizer.encode(piece[1:])
            np.testing.assert_allclose(row, table[ids].mean(axis=0), atol=1e-6)
    lines = sentences(9)
    for side in ("source_language", "target_language"):  # equal until it is trained
        of_code, of_like = (
            [best for (best,) in new(lines, n_best=1, **{side: asked})] for asked in (code, like)
        )
        if side == "target_language" or not pieces:
            assert [best.tokens for best in of_code] == [best.tokens for best in of_like]
            scores = [[best.score for best in answers] for answers in (of_code, of_like)]
            np.testing.assert_allclose(*scores, atol=1e-6)
    assert new(lines[:1], target_language="tyv") == new(lines[:1], target_language=code)
    ids = tokenizer.for_language(size).encode([code, f"__{code}__"])
    assert size not in {token_id for row in ids for token_id in row}, "a text gives no language"
    assert tokenizer.decode([[7, size, 9]]) == tokenizer.decode([[7, 9]])


@pytest.mark.long
@pytest.mark.parametrize("imported", ["nllb"], indirect=True)
def test_exports_know_the_language_and_its_pieces(imported, tmp_path):
    kind, _, run = imported
    code, _, *languages = CODES[kind]
    rules = {"length_penalty": "mean", "stopping": "first_beams", "suppressed_tokens": ()}
    new = kt.load_run(run, **settings_of(languages), **rules)
    lines = [*sentences(10), *in_new_language(10)]
    of_lines = {"source_language": [languages[0]] * 10 + [code] * 10}
    size = len(lines)
    options = ({}, {"target_language": code}, of_lines | {"target_prefix": "vier"})
    expected = [new(lines, n_best=1, **asked) for asked in options]
    assert any("чүс" in token for token in expected[2][-1][0].source_tokens), "a piece"
    for export, most in ((kt.export_ctranslate2, 1e-4), (kt.export_saved_model, 1e-6)):
        engine = kt.load_translator(export(new, tmp_path / export.__name__))
        assert code in engine.languages
        for asked, answers in zip(options, expected, strict=True):
            pairs = list(zip(answers, engine(lines, n_best=1, **asked), strict=True))
            same = [(a.score, b.score) for (a,), (b,) in pairs if a.tokens == b.tokens]
            assert len(same) >= size - (most > 1e-6), "a near tie"
            np.testing.assert_allclose(*zip(*same, strict=True), atol=most)
        pairs = lines[:10], lines[10:]
        scores = [[h.score for h in by.score(*pairs, target_language=code)] for by in (new, engine)]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-4)
    served = tensorflow.saved_model.load(str(tmp_path / "export_saved_model"))
    asked = {name: tensorflow.constant(value) for name, value in of_lines.items()}
    found = served.translate_n_best(tensorflow.constant(lines), **asked)["translations"]
    texts = [text.decode() for text in found.numpy()[:, 0]]
    assert texts == new(lines, split="lines", **of_lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"add_language": "tyv_Cyrl"}, "`add_language` and `like` .* must be given together"),
        ({"like": "kir_Cyrl"}, "must be given together.*Received: add_language=None"),
        ({"add_language": "tyv", "like": "kir_Cyrl"}, "spelled as the model's codes, three let"),
        ({"add_language": "deu_Latn", "like": "eng_Latn"}, "lacks. Received: .*has as 'deu_Latn'"),
        ({"add_pieces": "text"}, "`add_pieces` .* must be given with `add_language`"),
        ({"num_pieces": 9}, "`num_pieces` .* must be at least 1, and given with `add_pieces`"),
        ({"add_language": "tyv_Cyrl", "like": "kyr"}, "`like` must be a language of the model"),
    ],
)
@pytest.mark.parametrize("imported", ["nllb"], indirect=True)
def test_what_cannot_be_added_is_one_error(imported, options, said):
    _, _, run = imported
    with pytest.raises(ValueError, match=said):
        kt.import_model(run.parent / "nllb", **options)


def test_model_without_tokens_of_languages_is_refused(tmp_path):
    opus_models.write_form(tmp_path, [60])
    with pytest.raises(ValueError, match="needs a model with tokens of languages"):
        kt.import_model(tmp_path, add_language="tyv", like="kk")
