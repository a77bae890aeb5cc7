"""One path for a line of a model with tokens of languages, as `test_one_path.py` for one with tags.

The model is a small random M2M-100. NLLB-200 differs by its tokenizer alone; most texts of the
small one are empty, because most of its tokens are languages.
"""

import pytest

import keras_transformer as kt
from keras_transformer.data.language_codes import find_language
from tests.importing import multilingual_models, opus_models
from tests.test_one_path import LINES, SENTENCES, check_translate, long, served, served_texts
from tests.test_one_path import ROWS as ROWS_WITH_TAGS
from tests.test_one_path import RULES as RULES_WITH_TAGS

pytestmark = [opus_models.needs_torch, pytest.mark.long, pytest.mark.tensorflow_only]

RULES = RULES_WITH_TAGS | {"max_length": 12, "split": "lines"}
NEAR_TIE = 1e-4
# What is asked -> lines, options.
ROWS = {
    "a language": (LINES, {"target_language": "fr"}),
    "both languages": (LINES, {"source_language": "de", "target_language": "en-GB"}),
    "languages of lines": (LINES, {"target_language": ["de", "fr", "en", "de", "fr", "en", "zu"]}),
    "sentences": ([SENTENCES, "one"], {"split": "sentences", "target_language": "fr"}),
    **{
        name: ROWS_WITH_TAGS[name]
        for name in (
            *("empty and odd lines", "long lines split", "truncated", "a prefix", "prefixes"),
            *("n-best", "n-best of sentences", "alpha and length", "all that is protected"),
        )
    },
}
LANGUAGES = "source_language", "target_language"


@pytest.fixture(scope="module", params=["m2m", "nllb"])
def folders(request, tmp_path_factory):
    """{engine: its folder}; that of Keras is a run."""
    parent = tmp_path_factory.mktemp("one_path_of_languages")
    multilingual_models.make_model(parent / "hub", request.param)
    kt.import_model(parent / "hub", parent / "run", print_fn=str)
    languages = dict(zip(LANGUAGES, ("en", "de"), strict=True))
    recipe = kt.runs.RunFolder(parent / "run").recipe()
    changed = recipe.to_dict() | {"search": recipe.search | RULES | languages}
    text = kt.runs.Recipe.from_dict(changed).to_yaml()
    (parent / "run" / "config.yaml").write_text(text, "utf-8")
    translator = kt.load_run(parent / "run")
    card = {"name": "small"}
    kt.export_ctranslate2(translator, parent / "ct2", card=card)
    kt.export_saved_model(translator, parent / "served", card=card)
    return {
        "keras": parent / "run",
        "ctranslate2": parent / "ct2",
        "saved_model": parent / "served",
    }


@pytest.fixture(scope="module")
def translators(folders):
    return {engine: kt.load_translator(folder) for engine, folder in folders.items()}


@pytest.fixture(scope="module")
def answers(translators):
    """{engine: {row: its hypotheses}}."""
    return {
        engine: {row: made(lines, **{"n_best": 1} | o) for row, (lines, o) in ROWS.items()}
        for engine, made in translators.items()
    }


def texts_of(answers):
    return [[hypothesis.text for hypothesis in line] for line in answers]


@pytest.mark.parametrize("engine", ["ctranslate2", "saved_model"])
def test_every_engine_gives_the_same_texts_and_scores(translators, answers, engine):
    different = 0
    for row, expected in answers["keras"].items():
        for pair in zip(expected, answers[engine][row], strict=True):
            for ours, theirs in zip(*pair, strict=True):
                assert theirs.score == pytest.approx(ours.score, abs=NEAR_TIE), row
                assert theirs.pieces == ours.pieces, row
                assert theirs.source_tokens == ours.source_tokens, row
                is_equal = theirs.tokens == ours.tokens
                different += not is_equal
                assert not is_equal or theirs.text == ours.text, row
    assert different <= 1, "near ties"
    assert len({str(of_row[0][0].tokens) for of_row in answers["keras"].values()}) > 5
    lists = LINES[:2], ["ein", "zwei"]
    for options in ({}, {"target_language": "fr"}):
        scored = [translators[name].score(*lists, **options) for name in ("keras", engine)]
        for ours, theirs in zip(*scored, strict=True):
            assert theirs.log_probs == pytest.approx(ours.log_probs, abs=NEAR_TIE)


@pytest.mark.parametrize("engine", [long("keras"), "ctranslate2", long("saved_model")])
def test_translate_prints_the_texts_of_the_engine(
    folders, translators, answers, engine, monkeypatch
):
    """All rows but that with languages of lines, which are no options."""
    rows = {row: asked for row, asked in ROWS.items() if row != "languages of lines"}
    expected = {row: texts_of(answers[engine][row]) for row in rows}
    check_translate(folders[engine], translators[engine], rows, expected, monkeypatch)


@pytest.mark.parametrize("engine", ["ctranslate2", long("saved_model")])
def test_the_server_answers_the_texts_of_the_engine(translators, answers, engine):
    for row, (lines, options) in ROWS.items():
        with served(translators[engine], options, LANGUAGES) as (client, asked):
            assert served_texts(client, lines, asked) == texts_of(answers[engine][row]), row
    with served(translators[engine], {}) as (client, _):
        asked = {"q": LINES, "source": "en", "target": "fr"}
        answer = client.post("/translate", json=asked).json()["translatedText"]
        assert answer == [text for (text,) in texts_of(answers[engine]["a language"])]
        response = client.post("/translate", json=asked | {"target": "xx"})
        assert response.status_code == 400 and "of the model" in response.json()["error"]
        # "" stands for the language of the export.
        asked = {"source": LINES[:2], "target": ["ein", "zwei"], "target_language": ["fr", ""]}
        body = {"signature_name": "score", "inputs": asked}
        scored = client.post("/v1/models/small:predict", json=body).json()["outputs"]
    pairs = LINES[:2], ["ein", "zwei"]
    expected = translators["keras"].score(*pairs, target_language=["fr", "de"])
    assert scored["log_prob"] == pytest.approx([one.log_prob for one in expected], abs=1e-3)


def test_the_token_of_a_language_takes_one_of_the_positions(translators):
    """Of the 1,024 of an export, all others are for the text of a line and its end token."""
    engine = translators["ctranslate2"]
    with pytest.raises(ValueError, match="at most the model's 1023 positions"):
        engine("one", max_source_tokens=1024)
    (best,) = engine("one " * 1100, max_source_tokens=1023, max_length=2, n_best=1)
    assert best.pieces > 1


@pytest.mark.long
def test_the_exported_graph_answers_the_texts_of_the_run(folders, answers, translators):
    """By the codes of the model alone."""
    import tensorflow as tf

    ids = translators["keras"].source_tokenizer.language_ids

    served = tf.saved_model.load(str(folders["saved_model"]))
    text = tf.constant(LINES)
    lines = [line.decode() for line in served.serve(text)["translation"].numpy()]
    assert lines == translators["keras"](LINES, split="lines")
    for row in ("a language", "languages of lines"):
        asked = ROWS[row][1]["target_language"]
        codes = [asked] if isinstance(asked, str) else asked
        codes = [find_language(code, "target_language", ids) for code in codes]
        options = {"target_language": tf.constant(codes)}
        texts = served.translate_n_best(text, n_best=tf.constant([1]), **options)["translations"]
        assert [[t.decode() for t in line] for line in texts.numpy()] == texts_of(
            answers["keras"][row]
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a language"):
        served.translate_n_best(text, target_language=tf.constant(["xxx_Latn"]))
