"""Clients of LibreTranslate: their requests as they send them, and the answers that they can read.

The table of docs/pages/serving.md lists them. Where a client is a program in another language, the
request is written down here, byte by byte.
"""

import io
import json
import urllib.request
from urllib.response import addinfourl

import pytest

from tests.builders import ROOT
from tests.serving.clients import DESCRIPTION, validator_of

FORM = "application/x-www-form-urlencoded"
JSON, UTF_8_JSON = "application/json", "application/json; charset=utf-8"
ENGLISH = {"code": "en", "name": "English", "targets": ["de"]}
GERMAN = {"code": "de", "name": "German", "targets": []}
DETECTED = {"confidence": 100, "language": "en"}
SETTINGS = {
    "apiKeys": False,
    "charLimit": 2_000,
    "filesTranslation": False,
    "frontendTimeout": 500,
    "keyRequired": False,
    "language": {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    },
    "suggestions": False,
    "supportedFilesFormat": [],
}


def multipart(boundary, **fields):
    lines = []
    for name, text in fields.items():
        head = f'Content-Disposition: form-data; name="{name}"'
        lines += [f"--{boundary}", head, "", text]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode()


CURL, WEBKIT = "------------------------d74496d66958873e", "----WebKitFormBoundary7MA4YWxkTrZu0gW"
# Client: method, path and query, content type, body, answer.
REQUESTS = {
    # Reads `targets` of each language, and a list for a list.
    "Mastodon": [
        ("GET", "/languages", JSON, b"", [ENGLISH, GERMAN]),
        (
            *("POST", "/translate", JSON),
            '{"q":["<p>Hi <a href=\\"https://a.org\\">@<span>ann</span></a>, two\u00a0dogs '
            '&amp; a cat<br>bye</p>",":b: <span translate=\\"no\\">:cat:</span>"],'
            '"source":"auto","target":"de","format":"html","api_key":null}'.encode(),
            {
                "translatedText": [
                    '<p>HI <a href="https://a.org">@<span>ANN</span></a>, TWO DOGS '
                    "&amp; A CAT<br>BYE</p>",
                    ':B: <span translate="no">:cat:</span>',
                ],
                "detectedLanguage": [DETECTED, DETECTED],
            },
        ),
        (
            *("POST", "/translate", JSON),
            b'{"q":["a dog"],"source":"en","target":"de","format":"html","api_key":"k"}',
            {"translatedText": ["A DOG"]},
        ),
    ],
    # Looks for both languages among the codes.
    "Weblate": [
        ("GET", "/languages", None, b"", [ENGLISH, GERMAN]),
        (
            *("POST", "/translate", JSON),
            b'{"api_key": "", "q": ["a", "\\u00dcbermut"], "source": "en", "target": "de"}',
            {"translatedText": ["A", "ÜBERMUT"]},
        ),
    ],
    "Weblate 4": [
        ("POST", "/translate", FORM, b"q=a+dog&source=en&target=de", {"translatedText": "A DOG"})
    ],
    "Discourse": [
        ("POST", "/detect", FORM, b"q=a+dog%0A&api_key=", [DETECTED]),
        ("GET", "/languages", None, b"", [ENGLISH, GERMAN]),
        (
            *("POST", "/translate", FORM),
            b"q=%3Cp%3Ea%0Adog%3C%2Fp%3E&source=en&target=de&format=html&api_key=",
            {"translatedText": "<p>A DOG</p>"},
        ),
    ],
    "i18n Ally": [
        (
            *("POST", "/translate", UTF_8_JSON),
            b'{"q":"a {dog}","source":"en-US","target":"de_DE"}',
            {"translatedText": "A {DOG}"},
        )
    ],
    "Wagtail Localize": [
        (
            *("POST", "/translate", JSON),
            b'{"q": ["a dog"], "source": "en", "target": "de", "api_key": "k", "format": "html"}',
            {"translatedText": ["A DOG"]},
        )
    ],
    # The body is empty. A confidence of 100.0 has ended this client with an error.
    "Translate You": [
        ("GET", "/languages", None, b"", [ENGLISH, GERMAN]),
        (
            *("POST", "/translate?q=a%20dog&source=auto&target=de&api_key=k", None, b""),
            {"translatedText": "A DOG", "detectedLanguage": DETECTED},
        ),
    ],
    "deep-translator": [
        (
            *("POST", "/translate?q=%C3%9Cbermut&source=en&target=de&format=text", None, b""),
            {"translatedText": "ÜBERMUT"},
        )
    ],
    "Crow Translate": [
        (
            *("POST", "/translate", FORM, b"&q=a%20dog&source=en&target=de&api_key="),
            {"translatedText": "A DOG"},
        )
    ],
    "Argos Translate": [
        ("POST", "/languages", FORM, b"", [ENGLISH, GERMAN]),
        ("POST", "/detect", FORM, b"q=a+dog", [DETECTED]),
    ],
    "jefs42/libretranslate": [
        ("GET", "/frontend/settings", FORM, b"", SETTINGS),
        ("POST", "/detect?q=a+dog&api_key=", FORM, b"", [DETECTED]),
        (
            *("POST", "/translate", f"multipart/form-data; boundary={CURL}"),
            multipart(CURL, q="<b>Über</b>", format="html", source="en", target="de", api_key=""),
            {"translatedText": "<b>ÜBER</b>"},
        ),
    ],
    "LibreTranslate's page": [
        ("GET", "/frontend/settings", None, b"", SETTINGS),
        ("GET", "/languages", None, b"", [ENGLISH, GERMAN]),
        (
            *("POST", "/translate", f"multipart/form-data; boundary={WEBKIT}"),
            multipart(WEBKIT, q="a\r\nb", source="auto", target="de", format="text", api_key=""),
            {"translatedText": "A\nB", "detectedLanguage": DETECTED},
        ),
    ],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_client_gets_the_answer_that_it_can_read(client, name):
    for method, url, kind, body, expected in REQUESTS[name]:
        headers = {"X-Api-Key": "k", "Authorization": "Bearer k"}  # accepted and ignored
        headers |= {"Content-Type": kind} if kind else {}
        response = client.request(method, url, content=body, headers=headers)
        assert response.status_code == 200, response.text
        assert json.loads(response.text, parse_float=pytest.fail) == expected


def test_description_takes_what_clients_send():
    validator = validator_of(DESCRIPTION["components"]["schemas"]["TranslateRequest"])
    bodies = [body for rows in REQUESTS.values() for _, _, _, body, _ in rows if body[:1] == b"{"]
    for body in bodies:
        validator.validate(json.loads(body))
    assert len(bodies) > 3


def test_python_client_of_libretranslate_is_answered(client, monkeypatch):
    api = pytest.importorskip("libretranslatepy").api

    class ToServer(urllib.request.HTTPHandler):
        def http_open(self, request):
            headers = dict(request.header_items())
            response = client.request(
                request.get_method(), request.full_url, content=request.data, headers=headers
            )
            body = io.BytesIO(response.content)
            answer = addinfourl(body, response.headers, request.full_url, response.status_code)
            answer.msg = response.reason_phrase
            return answer

    opener = urllib.request.build_opener(ToServer)
    monkeypatch.setattr(api.request, "urlopen", lambda sent, timeout: opener.open(sent))
    for key in (None, "k"):
        server = api.LibreTranslateAPI("http://testserver", api_key=key)
        assert server.translate("Übermut & a dog", "en", "de") == "ÜBERMUT & A DOG"
        assert server.translate("a dog", "auto", "de") == "A DOG"
        assert server.detect("a dog") == [DETECTED]
        assert server.languages() == [ENGLISH, GERMAN]


def test_page_lists_exactly_these_clients():
    text = (ROOT / "docs/pages/serving.md").read_text("utf-8")
    table = text.partition("| client | ")[2].partition("\n\n")[0].splitlines()[2:]
    names = [line.split("|")[1].strip().strip("`") for line in table]
    assert names == ["libretranslatepy", *REQUESTS]
