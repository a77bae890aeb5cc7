"""What `/translate`, `/languages` and tags of lines make of the languages of a model card."""

import pytest

from tests.serving.clients import client_of
from tests.serving.plain_engine import plain_translator

PAIR = {"source_language": "en", "target_language": "de"}
SEVERAL = {"source_language": "en", "target_languages": ["deu", "fra"]}
REGIONS = {"source_language": "en", "target_languages": ["pt", "pt_BR"]}
LIST = "`target` must be 'deu' or 'fra'. Received: "
EXPORT = "names no {0} language: leave `{0}` out, or export the model with `--{0}-language`"
TAG = "A line must begin with at most one tag, that of "
ANY = TAG + "deu, fra. Received: line 1"
FRA = TAG + "`target_language`, >>fra<<. Received: line 1"

# Card, fields beside `q`, line -> translation, or what the error says.
ROWS = [
    (PAIR, {"source": "EN", "target": "DE"}, "a", "A"),
    (PAIR, {"source": "en-US", "target": "de_DE"}, "a", "A"),
    (PAIR, {"source": "en_Latn_US", "target": "De-at"}, "a", "A"),
    (PAIR, {"target": "de"}, ">>fra<< a", ">>FRA<< A"),  # a model without tags: text
    (PAIR, {"target": "fr"}, "a", ValueError("`target` must be 'de'. Received: 'fr'")),
    (PAIR, {"target": "den"}, "a", ValueError("`target` must be 'de'. Received: 'den'")),
    (PAIR, {"target": ["de"]}, "a", ValueError("`target` must be 'de'. Received: ['de']")),
    (PAIR, {"source": "es"}, "a", ValueError("`source` must be 'auto' or 'en'. Received: 'es'")),
    ({}, {}, "a", "A"),
    ({}, {"target": "de"}, "a", ValueError(EXPORT.format("target"))),
    ({}, {"source": "en"}, "a", ValueError(EXPORT.format("source"))),
    (SEVERAL, {"target": "fra"}, "a", "fraA"),
    (SEVERAL, {"target": "FRA_ca"}, "a", "fraA"),
    (REGIONS, {"target": "pt"}, "a", "ptA"),
    (REGIONS, {"target": "pt-pt"}, "a", "ptA"),
    (REGIONS, {"target": "pt-br"}, "a", "pt_BRA"),
    (SEVERAL, {"target": "fra"}, ">>fra<< a", "fraA"),
    pytest.param(SEVERAL, {"target": "fra"}, "a" * 2_000, "fra" + "A" * 2_000, id="longest line"),
    (SEVERAL, {}, "a", ValueError(LIST + "none")),
    (SEVERAL, {"target": None}, ">>fra<< a", ValueError(LIST + "none")),
    (SEVERAL, {"target": "xx"}, "a", ValueError(LIST + "'xx'")),
    (SEVERAL, {"target": ""}, "a", ValueError(LIST + "''")),
    (SEVERAL, {"target": "fra"}, ">>deu<< a", ValueError(FRA)),
]  # fmt: skip


@pytest.mark.parametrize(("card", "fields", "line", "expected"), ROWS)
def test_translate_is_into_the_language_asked_for_or_refused(card, fields, line, expected):
    translator = plain_translator(card)
    with client_of(lambda: translator) as client:
        response = client.post("/translate", json={"q": line, **fields})
    if isinstance(expected, ValueError):
        assert response.status_code == 400 and str(expected) in response.json()["error"]
        assert not translator.engine.batches, "refused before it is queued"
    else:
        assert response.json() == {"translatedText": expected}


# Signature, inputs -> the error, or `None`.
SIGNATURES = [
    ("serving_default", {"text": ["a", ">>fra<< a"]}, None),
    ("serving_default", {"text": [">>xx<< a"]}, ANY),
    ("translate_n_best", {"text": ["a", ">>xx<< a"]}, TAG),
    ("translate_n_best", {"text": ["a", ">>fra<< a"], "target_language": ["deu", "fra"]}, None),
    ("translate_n_best", {"text": [">>fra<< a"], "target_language": ["deu"]}, TAG),
    ("translate_n_best", {"text": [">>fra<< a"], "target_language": [""]}, None),
    ("translate_n_best", {"text": [">>fra<<" + "a" * 1_993], "target_language": ["fra"]}, None),
    ("translate_n_best", {"text": ["a"], "target_language": ["xx"]}, "has a tag for: deu, fra"),
]


@pytest.mark.parametrize(("name", "inputs", "message"), SIGNATURES)
def test_signatures_refuse_languages_and_tags_that_the_model_lacks(name, inputs, message):
    translator = plain_translator(SEVERAL)
    body = {"signature_name": name, "inputs": inputs}
    with client_of(lambda: translator) as client:
        response = client.post("/v1/models/plain:predict", json=body)
    assert response.status_code == (400 if message else 200)
    assert bool(translator.engine.batches) == (not message)
    if message:
        assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({}, []),
        ({"source_language": "en"}, []),
        (PAIR, [["en", "English", ["de"]], ["de", "German", []]]),
        (SEVERAL, [["en", "English", ["deu", "fra"]], ["deu", "deu", []], ["fra", "fra", []]]),
        ({"target_language": "de"}, [["auto", "auto", ["de"]], ["de", "German", []]]),
    ],
)
def test_languages_are_those_of_the_card(card, expected):
    with client_of(lambda: plain_translator(card)) as client:
        languages = client.get("/languages").json()
        settings = client.get("/frontend/settings").json()
    rows = [dict(zip(("code", "name", "targets"), row, strict=True)) for row in expected]
    assert languages == rows
    codes = [row[0] for row in expected[:2]] or ["auto", "auto"]
    assert [settings["language"][side]["code"] for side in ("source", "target")] == codes
