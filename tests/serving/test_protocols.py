"""Each protocol against the bodies that its documentation shows, and every error."""

import itertools
import json
import math

import pytest

from tests.serving.clients import client_of
from tests.serving.plain_engine import CARD, LINES, REFUSED, plain_translator, translation_of

TFS = "/v1/models/plain"
TRANSLATIONS = [translation_of(line) for line in LINES]


def post(client, path, body):
    """The answer to a request that is right."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def error(client, path, status, **request):
    """The message of an answer to a request that is wrong."""
    response = client.post(path, **request)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return response.json()["error"]


# === LibreTranslate ===


SENTENCES = ["One is here.", "Two is there!", "Dr. Who sleeps."]
# Texts and their formats.
OF_SENTENCES = [
    ("{}  {}\n{}", "text"),
    ("<p>{} {} <b>{}</b></p>", "html"),
]


@pytest.mark.parametrize("text, kind", OF_SENTENCES)
def test_sentences_are_translated_by_themselves(text, kind):
    translator = plain_translator()
    body = {"q": text.format(*SENTENCES), "format": kind, "alternatives": 2}
    with client_of(lambda: translator, settings={"split": "sentences"}) as client:
        answer = post(client, "/translate", body)
    assert sorted(itertools.chain(*translator.engine.batches)) == sorted(SENTENCES)
    upper = [sentence.upper() for sentence in SENTENCES]
    assert answer["translatedText"] == text.format(*upper)
    assert answer["alternatives"] == [
        text.format(*(one + marks for one in upper)) for marks in ("!", "!!")
    ]


PROTECTED = [
    ("Go to http://a.b. {n, plural, one {a file} other {# files}}\n%s",
     "GO TO http://a.b. {n, plural, one {A FILE} other {# FILES}}\n%s"),
    ("<p title='%s'>one <b>%s</b> of %%{name} &lt;b&gt;",
     "<p title='%s'>ONE <b>%s</b> OF %%{name} &lt;b&gt;"),
]  # fmt: skip


@pytest.mark.parametrize("split", ["lines", "sentences"])
@pytest.mark.parametrize("text, expected", PROTECTED)
def test_protected_text_is_kept(text, expected, split):
    asked = {"split": split, "protect": ("printf", "braces", "tags", "urls")}
    body = {"q": text, "format": "html" if "<p" in text else "text"}
    with client_of(plain_translator, settings=asked) as client:
        assert post(client, "/translate", body)["translatedText"] == expected


# Body -> answer.
TRANSLATED = [
    ({"q": LINES, "source": "en", "format": "text"}, {"translatedText": TRANSLATIONS}),
    ({"q": []}, {"translatedText": []}),
    (
        {"q": "a", "source": None, "target": None, "format": None, "alternatives": None},
        {"translatedText": "A"},
    ),
    ({"q": "a", "alternatives": 2}, {"translatedText": "A", "alternatives": ["A!", "A!!"]}),
    (
        {"q": ["<p>a <b>b</b>", "", "<br>", "x\ny"], "format": "html", "alternatives": 1},
        {
            "translatedText": ["<p>A <b>B</b>", "", "<br>", "X\nY"],
            "alternatives": [["<p>A! <b>B!</b>"], [], [], ["X!\nY!"]],
        },
    ),
    # At most as many as the beam has.
    (
        {"q": ["a", ""], "alternatives": 10**9},
        {"translatedText": ["A", ""], "alternatives": [["A!", "A!!", "A!!!"], []]},
    ),
    # Line breaks are kept. An empty line has no alternative, so it keeps its translation.
    (
        {"q": "eins\n\nzwei\r\n", "alternatives": 1},
        {"translatedText": "EINS\n\nZWEI\n", "alternatives": ["EINS!\n\nZWEI!\n"]},
    ),
]


@pytest.mark.parametrize(("body", "answer"), TRANSLATED)
def test_libretranslate_translates_texts_with_alternatives(client, body, answer):
    assert post(client, "/translate", body) == answer


FORM = "application/x-www-form-urlencoded"
# Content type, body -> status and translation, or what the error says.
FORMS = [
    (FORM, "q=ein+Hund+%26+gr%C3%B6%C3%9Fer&source=en&target=de", 200, "EIN HUND & GRÖSSER"),
    (FORM, "q=größer".encode(), 200, "GRÖSSER"),
    (FORM, "q=one&q=two&target=de", 200, ["ONE", "TWO"]),
    (FORM, "q=&api_key=", 200, ""),
    (FORM + "; charset=UTF-8", "q=gr%C3%B6%C3%9Fer", 200, "GRÖSSER"),
    (FORM, "q=gr%F6%DFer", 400, "The form must be UTF-8. Received: b'\\xf6\\xdfer'"),
    (FORM, "q=größer".encode("latin-1"), 400, "The form must be UTF-8"),
    (FORM, "q=a&target=de&target=fr", 400, "'target' must be given once. Received: 2 values"),
    (FORM, "q=a&source=", 400, "`source` must be 'auto' or 'en'. Received: ''"),
    (FORM + "; charset=iso-8859-1", "q=gr%F6%DFer", 415, "must be UTF-8. Received: 'iso-8859-1'"),
    (FORM, ' {"q": "größer"}'.encode(), 200, "GRÖSSER"),  # `curl -d` says so of JSON
    (None, '{"q": "größer"}'.encode(), 200, "GRÖSSER"),
    ("text/plain", '{"q": "größer"}'.encode(), 200, "GRÖSSER"),
    ("application/json; charset=latin-1", b'{"q": "gr\xf6\xdfer"}', 415, "must be UTF-8"),
    ("application/json", b'{"q": "gr\xf6\xdfer"}', 400, "The body must be JSON"),
]


def multipart(*parts, end="--"):
    return b"--x y\r\n" + b"\r\n--x y\r\n".join(parts) + f"\r\n--x y{end}\r\n".encode()


def field(name, text, *headers):
    lines = [f'Content-Disposition: form-data; name="{name}"', *headers, "", ""]
    return "\r\n".join(lines).encode() + text


MULTIPART = 'multipart/form-data; boundary="x y"'
GROESSER_FIELD = field("q", "größer\r\n--x\r\n".encode())
UTF_16 = field("q", "größer".encode("utf-16"), "Content-Type: text/plain; charset=utf-16")
FORMS += [
    (MULTIPART, multipart(GROESSER_FIELD, field("target", b"de")), 200, "GRÖSSER\n--X\n"),
    (MULTIPART, multipart(field("q", b"one"), field("q", b"two")), 200, ["ONE", "TWO"]),
    (MULTIPART, multipart(field("q", b"", "Content-Type: text/plain; charset=UTF-8")), 200, ""),
    (MULTIPART, multipart(field('q"; filename="a', b"file")), 200, "FILE"),
    (MULTIPART, multipart(b"\r\nno name", field("q", b"a")), 200, "A"),
    (MULTIPART, multipart(field("q", "größer".encode("latin-1"))), 400, "The form must be UTF-8"),
    (MULTIPART, multipart(UTF_16), 415, "must be UTF-8. Received: 'utf-16, 8bit'"),
    (MULTIPART, multipart(field("q", b"YQ==", "Content-Transfer-Encoding: base64")), 415, "base64"),
    (MULTIPART, multipart(field("größer", b""), field("q", b"a")), 200, "A"),
    (MULTIPART, multipart(GROESSER_FIELD, end=""), 400, "end with its boundary"),
    (MULTIPART, b"", 400, "end with its boundary"),
    (MULTIPART, b'{"q": "a"}', 400, "must be a multipart form: Expected boundary character"),
    (MULTIPART + "x" * 300, multipart(GROESSER_FIELD), 400, "must be a multipart form"),
    ("multipart/form-data", multipart(GROESSER_FIELD), 400, "name its boundary"),
    ("multipart/form-data; boundary=", multipart(GROESSER_FIELD), 400, "name its boundary"),
    (MULTIPART, multipart(*[field("q", b"a")] * 200), 413, "at most 144 fields"),
    (MULTIPART, multipart(field("x" * 1_024, b"")), 400, "Maximum header size exceeded"),
    (MULTIPART, multipart(field("q", b"a", *["A: b"] * 99)), 400, "Maximum header count exceeded"),
]


@pytest.mark.parametrize(("kind", "body", "status", "expected"), FORMS)
def test_libretranslate_reads_a_form_right_or_refuses_it(client, kind, body, status, expected):
    headers = {"Content-Type": kind} if kind else {}
    response = client.post("/translate", content=body, headers=headers)
    assert response.status_code == status
    if status == 200:
        assert response.json() == {"translatedText": expected}
    else:
        assert expected in response.json()["error"]


def test_fields_of_the_body_replace_those_of_the_query(client):
    url = "/translate?q=a&target=fr&api_key=k"
    assert client.post(url + "&target=de").status_code == 400
    assert post(client, url, {"q": "b", "target": "de"}) == {"translatedText": "B"}
    answer = client.post("/translate?target=de", data={"q": ["a", "b"]})
    assert answer.json() == {"translatedText": ["A", "B"]}
    assert "The form must be UTF-8" in error(client, "/translate?q=%F6", 400)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing q"),
        ({"q": 1}, "`q` must be a text"),
        ({"q": ["a", None]}, "`q` must be a text"),
        ({"q": "a", "format": "xml"}, "`format` must be 'text' or 'html'. Received: 'xml'"),
        ({"q": "a", "alternatives": -1}, "`alternatives`"),
        ({"q": "a", "alternatives": True}, "`alternatives`"),
        ({"q": "\ud800"}, "`q` must be a text, or a list of texts, that UTF-8 can encode"),
        ({"q": REFUSED}, "A line was refused."),
    ],
)
def test_libretranslate_errors_say_what_to_send(client, body, message):
    # `json=` refuses a surrogate.
    assert message in error(client, "/translate", 400, content=json.dumps(body))


def test_greedy_models_without_languages_are_served():
    with client_of(lambda: plain_translator({}, beam_size=1)) as client:
        body = {"q": "a", "source": "auto", "alternatives": 3}
        assert post(client, "/translate", body) == {"translatedText": "A", "alternatives": []}
        assert post(client, "/detect", {"q": "a"}) == []


# === TensorFlow Serving ===


SCORES = [-0.5 * len(line) for line in LINES]
FALSE = [False] * len(LINES)
COLUMNS = {"translation": TRANSLATIONS, "score": SCORES, "truncated": FALSE, "unfinished": FALSE}
COLUMNS |= {"protected": [[]] * len(LINES)}
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
# Each row has its own options.
ROWS_WITH_OPTIONS = [
    {"text": "a", "n_best": 2, "alpha": 1.0, "target_prefix": "<"},
    {"text": "bc", "n_best": 1, "alpha": 0, "target_prefix": ""},
    {"text": "", "n_best": 2, "alpha": 1.0, "target_prefix": ""},
]
OF_LINE = {"unfinished": [False, False], "truncated": False, "protected": []}
FOUND_WITH_OPTIONS = [
    {"translations": ["<A", "<A!"], "scores": [-1.0, -2.0], "lengths": [3, 4]},
    {"translations": ["BC", ""], "scores": [0.0, None], "lengths": [3, 0]},
    {"translations": ["", ""], "scores": [0.0, None], "lengths": [0, 0]},
]
FOUND_WITH_OPTIONS = [found | OF_LINE for found in FOUND_WITH_OPTIONS]
# An option has its default, or one value for all lines.
TWO_LINES = {"translations": [["A"], ["B"]], "scores": [[-0.5], [-0.5]], "lengths": [[2], [2]]}
TWO_LINES |= {"unfinished": [[False]] * 2, "truncated": [False] * 2, "protected": [[], []]}
ALIGNED = {
    "attention": [
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
        [[1.0, 0.0, None], [0.0, 1.0, None], [None, None, None]],
    ],
    "source_tokens": [["a", "b", "<257>"], ["a", "<257>", ""]],
    "target_tokens": [["b", "a", "<257>"], ["a", "<257>", ""]],
    "source_lengths": [3, 2],
    "target_lengths": [3, 2],
}
SCORED = {"log_prob": [-1.5], "tokens": [3], "perplexity": [math.exp(0.5)]}
# Signature, instances or inputs, and their value -> what is answered.
PREDICTED = [
    ("", "instances", LINES, ROWS),
    ("", "instances", [{"text": line} for line in LINES], ROWS),
    ("", "instances", [], []),
    ("", "inputs", LINES, COLUMNS),
    ("", "inputs", {"text": LINES}, COLUMNS),
    ("", "inputs", [], dict.fromkeys(COLUMNS, [])),
    ("translate_n_best", "instances", ROWS_WITH_OPTIONS, FOUND_WITH_OPTIONS),
    ("translate_n_best", "inputs", {"text": ["a", "b"], "n_best": [1]}, TWO_LINES),
    ("score", "inputs", {"source": ["ab"], "target": ["cd"]}, SCORED),
    ("align", "inputs", {"text": ["ab", "a"], "target": ["ba", "a"]}, ALIGNED),
    ("detokenize", "inputs", [[97, 98], [99, 259]], ["ab", "c"]),
    ("detokenize", "inputs", [], []),
    ("tokenize", "inputs", ["ab", "c"], {"token_ids": [[97, 98], [99, 0]], "lengths": [2, 1]}),
]


@pytest.mark.parametrize(("signature", "kind", "value", "expected"), PREDICTED)
def test_tf_serving_predicts(client, signature, kind, value, expected):
    body = {kind: value} | ({"signature_name": signature} if signature else {})
    answered = {"instances": "predictions", "inputs": "outputs"}[kind]
    assert post(client, f"{TFS}:predict", body) == {answered: expected}


def test_tf_serving_describes_the_model(client):
    status = client.get(TFS).json()["model_version_status"]
    fine = {"error_code": "OK", "error_message": ""}
    assert status == [{"version": "1", "state": "AVAILABLE", "status": fine}]
    response = client.get(f"{TFS}:predict")
    assert response.status_code == 405 and response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "`instances`, a list of rows, or `inputs`"),
        ({"instances": [], "inputs": []}, "`instances`, a list of rows, or `inputs`"),
        ({"instances": "a"}, "`instances` must be a list"),
        ({"instances": [{"text": "a"}, "b"]}, "same names"),
        ({"instances": [1]}, "'text' must be a list of text (string). Received: [1]"),
        ({"inputs": {"txt": ["a"]}}, "takes ['text'] and the options []. Received: ['txt']"),
        ({"inputs": "a"}, "'text' must be a list"),
        ({"instances": ["a"], "signature_name": "x"}, "the signatures ['align'"),
        ({"instances": ["a"], "signature_name": ["x"]}, "the signatures ['align'"),
        ({"instances": ["a"], "signature_name": "align"}, "Name the inputs of 'align'"),
        (
            {"inputs": {"text": ["a"], "target": []}, "signature_name": "align"},
            "'target' must have 1 elements, one for each line. Received: 0",
        ),
        (
            {"inputs": {"text": ["a"], "alpha": [1e39]}, "signature_name": "translate_n_best"},
            "'alpha' must be a list of numbers (float32)",
        ),
        (
            {"inputs": {"text": ["a"], "n_best": [2**31]}, "signature_name": "translate_n_best"},
            "'n_best' must be a list of integers (int32)",
        ),
        (
            {"inputs": {"text": ["a"], "n_best": [True]}, "signature_name": "translate_n_best"},
            "'n_best' must be a list of integers (int32)",
        ),
        ({"inputs": [[1, 2], [3]], "signature_name": "detokenize"}, "equally long lists"),
        (
            {
                "inputs": {
                    "text": [*"abc"],
                    "max_length": [9, 1, 1],
                    "target_prefix": ["", "", "x"],
                },
                "signature_name": "translate_n_best",
            },
            "with the same options, 3 of the request: `target_prefix` must leave room",
        ),
    ],
)
def test_tf_serving_errors_say_what_to_send(client, body, message):
    assert message in error(client, f"{TFS}:predict", 400, json=body)


def test_tf_serving_has_no_other_model(client):
    other = "/v1/models/other"
    assert "The model is called 'plain'" in error(client, f"{other}:predict", 404, json={})
    assert client.get(other).status_code == 404


# === Both of them ===


@pytest.mark.parametrize("path", ["/translate", f"{TFS}:predict"])
def test_bodies_that_are_not_objects_are_refused(client, path):
    for body in (b"", b"\xff", b"[1]", b'{"q": NaN}', b"1" * 5000, b'"' + b"\\ud800" * 50 + b'"'):
        assert "The body must be" in error(client, path, 400, content=body)
    assert "nested too deeply" in error(client, path, 400, content=b"[" * 200_000)


def test_limits_are_named_with_what_was_received():
    with client_of(
        plain_translator, max_line_chars=10, max_lines=3, max_body_bytes=500, max_queue=6
    ) as client:
        assert post(client, "/translate", {"q": "ü" * 10}) == {"translatedText": "Ü" * 10}
        message = error(client, "/translate", 413, json={"q": ["a", "ü" * 11]})
        assert "at most 10 characters. Received: a line of 11" in message
        message = error(client, "/translate", 413, json={"q": "a\n\n\n"})
        assert "at most 3 lines. Received: 4" in message
        message = error(client, "/translate", 413, json={"q": "a" * 500})
        assert "at most 500 bytes" in message
        body = {"signature_name": "align", "inputs": {"text": ["abcd"] * 3, "target": ["a"] * 3}}
        message = error(client, f"{TFS}:predict", 413, json=body)
        assert "may be at most 10. Received: 3 * 4" in message
        inputs = {"text": ["a" * 10, "b"], "target_prefix": ["", "c" * 9], "n_best": [1]}
        body = {"signature_name": "translate_n_best", "inputs": inputs}
        found = post(client, f"{TFS}:predict", body)["outputs"]["translations"]
        assert found == [["A" * 10], ["c" * 9 + "B"]]
        body["inputs"] = inputs | {"target_prefix": ["c"]}
        message = error(client, f"{TFS}:predict", 413, json=body)
        assert "with its prefix may have at most 10 characters. Received: a line of 11" in message
        limits = client.get("/model_card").json()["limits"]
        assert limits == {
            "max_line_chars": 10, "max_lines": 3, "max_body_bytes": 500, "max_queue": 6,
            "max_receive_seconds": 10, "timeout": 50, "keep_alive": 75,
        }  # fmt: skip


def test_card_and_model_are_described(client):
    card = client.get("/model_card").json()
    assert card.items() >= {**CARD, "model": "plain"}.items()
