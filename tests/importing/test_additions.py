"""Languages that are added at import, against the model without them."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.cli.small_run import cli
from tests.importing import multilingual_models, opus_models

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only]

# The new language, the similar one, and those of the lines.
CODES = {
    "nllb": ("tyv_Cyrl", "kir_Cyrl", "eng_Latn", "deu_Latn"),
    "m2m": ("tyv", "kk", "en", "de"),
}


@pytest.fixture(scope="module", params=CODES)
def imported(request, tmp_path_factory):
    """Kind, our translator without the language, and the run with it."""
    kind, folder = request.param, tmp_path_factory.mktemp("models")
    multilingual_models.make_model(folder / kind, kind)
    new, like, *languages = CODES[kind]
    options = ["--add-language", new, "--like", like]
    cli("import", "hub", folder / kind, folder / "run", *options)
    old = kt.import_model(folder / kind, print_fn=str, **settings_of(languages))
    return kind, old, folder / "run"


def settings_of(languages):
    source, target = languages
    return {"source_language": source, "target_language": target, "max_length": 20}


def sentences(count):
    return [source for source, _ in kt.number_names("held_out", count)]


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 4])
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
            assert abs(after.score - before.score) <= 1e-6
    assert len(kinds_of_rows) > 10, "the model is no test"


def test_the_language_is_the_last_token_and_a_copy(imported):
    kind, old, run = imported
    code, like, source, target = CODES[kind]
    new = kt.load_run(run, **settings_of((source, target)))
    tokenizer, size = new.source_tokenizer, old.model.config.vocabulary_size
    assert tokenizer.language_ids == old.source_tokenizer.language_ids | {code: size}
    assert tokenizer.vocabulary[:-1] == old.source_tokenizer.vocabulary
    assert tokenizer.vocabulary[-1] == {"nllb": "tyv_Cyrl", "m2m": "__tyv__"}[kind]
    config = new.model.config
    assert (config.vocabulary_size, config.added_tokens) == (size + 1, 1)
    weights = {weight.path: np.array(weight) for weight in new.model.weights}
    bias = weights.pop("logits/bias")
    assert bias[-1] == np.float32(-1e9) and not bias[:-1].any()
    for weight in old.model.weights:
        before, after = np.array(weight), weights[weight.path]
        np.testing.assert_array_equal(after[: len(before)], before)
    table, row = weights["encoder/embedding/embeddings"], tokenizer.language_ids[like]
    np.testing.assert_array_equal(table[-1], table[row])
    lines = sentences(9)
    for side in ("source_language", "target_language"):  # equal until it is trained
        of_code, of_like = (
            [best for (best,) in new(lines, n_best=1, **{side: asked})] for asked in (code, like)
        )
        assert [best.tokens for best in of_code] == [best.tokens for best in of_like]
        np.testing.assert_allclose(
            [best.score for best in of_code], [best.score for best in of_like], atol=1e-6
        )
    assert new(lines[:1], target_language="tyv") == new(lines[:1], target_language=code)
    ids = tokenizer.encode([code, f"__{code}__"])
    assert size not in {token_id for row in ids for token_id in row}, "a text gives no language"
    assert tokenizer.decode([[7, size, 9]]) == tokenizer.decode([[7, 9]])


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["m2m"], indirect=True)
def test_exports_know_the_language(imported, tmp_path):
    kind, _, run = imported
    code, _, *languages = CODES[kind]
    rules = {"length_penalty": "mean", "stopping": "first_beams", "suppressed_tokens": ()}
    new = kt.load_run(run, **settings_of(languages), **rules)
    lines = sentences(20)
    for export, most in ((kt.export_ctranslate2, 1e-4), (kt.export_saved_model, 1e-6)):
        engine = kt.load_translator(export(new, tmp_path / export.__name__))
        assert code in engine.languages
        for options in ({}, {"target_language": code}, {"source_language": code}):
            expected, found = (each(lines, n_best=1, **options) for each in (new, engine))
            pairs = list(zip(expected, found, strict=True))
            assert sum(ours.text != theirs.text for (ours,), (theirs,) in pairs) <= (most > 1e-6)
            scores = [
                (ours.score, theirs.score)
                for (ours,), (theirs,) in pairs
                if ours.text == theirs.text
            ]
            np.testing.assert_allclose(*zip(*scores, strict=True), atol=most)
        pairs = lines[:5], lines[5:10]
        expected, found = (each.score(*pairs, target_language=code) for each in (new, engine))
        np.testing.assert_allclose(
            [each.score for each in found], [each.score for each in expected], atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["nllb"], indirect=True)
def test_run_is_trained_from_it(imported, tmp_path):
    _, _, run = imported
    recipe = kt.runs.RunFolder(run).recipe()
    assert recipe.model["added_tokens"] == 1
    code, _, source, _ = CODES["nllb"]
    changed = recipe.to_dict()
    changed["search"] |= {"source_language": source, "target_language": "tyv", "beam_size": 1}
    data = {"number_names": "train", "size": 40}
    changed["data"] |= {"train": [data], "validation": data | {"number_names": "held_out"}}
    changed["training"] |= {"epochs": 1, "batch_tokens": 512}
    kt.runs.Trainer(kt.runs.Recipe.from_dict(changed), ".", tmp_path, print_fn=str).train()
    before, after = (
        kt.load_run(folder, **settings_of((source, code))).source_tokenizer
        for folder in (run, tmp_path)
    )
    assert after.fingerprint() == before.fingerprint()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"add_language": "tyv_Cyrl"}, "`add_language` and `like` .* must be given together"),
        ({"like": "kir_Cyrl"}, "must be given together.*Received: add_language=None"),
        ({"add_language": "tyv", "like": "kir_Cyrl"}, "spelled as the model's codes, three let"),
        ({"add_language": "deu_Latn", "like": "eng_Latn"}, "lacks. Received: .*has as 'deu_Latn'"),
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
