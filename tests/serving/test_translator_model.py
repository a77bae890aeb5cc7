"""A folder for CTranslate2 is served with the routes of a SavedModel, without TensorFlow."""

import json
import math
import subprocess
import sys

import pytest

from keras_transformer import Translator, export_ctranslate2
from keras_transformer.cli.serving import model_loader
from tests.decoding.test_translator import LINES, make_translator
from tests.serving.clients import client_of

pytest.importorskip("ctranslate2")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder, and a translator with its settings."""
    folder = tmp_path_factory.mktemp("served")
    made = make_translator(folder / "numbers.model")
    path = export_ctranslate2(made, folder / "ct2", card={"name": "mine", "target_language": "de"})
    search = json.loads((path / "model_card.json").read_text("utf-8"))["search"]
    return path, Translator(made.model, made.source_tokenizer, **search)


@pytest.fixture(scope="module")
def client(served):
    with client_of(model_loader(served[0], workers=2)) as client:
        yield client


def predict(client, signature, **inputs):
    body = {"signature_name": signature, "inputs": inputs}
    return client.post("/v1/models/mine:predict", json=body)


def test_answers_are_those_of_the_translator(client, served):
    translator = served[1]
    assert client.post("/translate", json={"q": LINES}).json()["translatedText"] == translator(
        LINES
    )
    options = {"n_best": [3], "alpha": [1.5], "max_length": [7], "target_prefix": ["ein"]}
    found = predict(client, "translate_n_best", text=LINES, **options).json()["outputs"]
    expected = translator(LINES, n_best=3, alpha=1.5, max_length=7, target_prefix="ein")
    for row, hypotheses in enumerate(expected):
        count = len(hypotheses)
        assert found["translations"][row] == [h.text for h in hypotheses] + [""] * (3 - count)
        assert found["lengths"][row] == [len(h.tokens) for h in hypotheses] + [0] * (3 - count)
        flags = [h.unfinished for h in hypotheses] + [False] * (3 - count)
        assert found["unfinished"][row] == flags
        scores = [h.score for h in hypotheses]
        assert found["scores"][row][:count] == pytest.approx(scores, rel=1e-4)
        assert found["scores"][row][count:] == [None] * (3 - count)
    one, other = predict(
        client, "translate_n_best", text=["one", "two"], n_best=[1, 9], max_length=[3, 9]
    ).json()["outputs"]["translations"]
    assert [text for text in one if text] == [translator("one", max_length=3)]
    assert other == [h.text for h in translator("two", n_best=4, max_length=9)]


def test_other_signatures(client, served):
    translator = served[1]
    scored = predict(client, "score", source=["one"], target=["eins"]).json()["outputs"]
    best = translator.score("one", "eins")
    assert scored["tokens"] == [len(best.tokens)]
    assert scored["log_prob"] == pytest.approx([best.log_prob], rel=1e-4)
    assert scored["perplexity"] == pytest.approx([math.exp(-best.log_prob / 5)], rel=1e-3)
    ids = predict(client, "tokenize", text=["two", " "]).json()["outputs"]
    assert ids["token_ids"][0] == translator.source_tokenizer.encode("two")
    assert ids["lengths"] == [len(ids["token_ids"][0]), 0]
    text = predict(client, "detokenize", token_ids=ids["token_ids"]).json()["outputs"]
    assert text == ["two", ""]


def test_what_the_engine_lacks_and_mistakes_get_one_line(client):
    for name, inputs in (("search_tree", {"text": ["a"]}), ("detokenize", {"token_ids": [[9999]]})):
        answer = predict(client, name, **inputs)
        assert answer.status_code == 400 and "\n" not in answer.json()["error"]
    prefix = predict(client, "translate_n_best", text=["a"], target_prefix=["ein " * 99])
    assert prefix.status_code == 400 and "prefix must be shorter" in prefix.json()["error"]
    card = client.get("/model_card").json()
    assert card["engine"] == "ctranslate2" and "search_tree" not in card["signatures"]
    assert card["signatures"]["score"]["inputs"]["source"] == "string (None,)"


RUN = """
import sys
sys.modules["keras"] = sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = None
from keras_transformer.cli import app
app()
"""


def test_verify_needs_no_tensorflow(served, tmp_path):
    command = [sys.executable, "-c", RUN, "verify", str(served[0])]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout.startswith("3 of 3 translations are equal"), ran.stderr
