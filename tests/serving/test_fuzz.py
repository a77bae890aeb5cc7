"""Arbitrary requests: only documented answers, a line for each line, valid UTF-8, no hang."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import load_translator
from tests.serving.clients import DESCRIPTION, assert_described, client_of
from tests.serving.plain_engine import REFUSED, plain_translator, translation_of

POSTS = [
    path
    for path, item in DESCRIPTION["paths"].items()
    if "post" in item and "{version}" not in path  # the same function
]
HOSTILE = [
    *("", " ", "\n", "\x00", "\t\x01\x7f", "\u2028", "\ufeff", "\ufffe", "\ud800", "\U0010ffff"),
    *("</s>", "<s>", "<pad>", "<unk>", "[MASK]", "▁", "שלום עולם", "e\u0301\u0323", "👩‍👩‍👧"),
    *("<p>a <b>b</b></p>", "<!--", "<p translate=no>", "&lt;p&gt;", "<script"),
    *("word " * 2_000, "x" * 1_999, "x" * 2_001, REFUSED, "<script>", "'\"`${}%s"),
]
TEXTS = st.text() | st.sampled_from(HOSTILE)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
LISTS = st.lists(TEXTS, max_size=5) | VALUES
SIGNATURES = st.sampled_from(["serving_default", "translate_n_best", "align", "detokenize"])
OPTIONS = {
    "n_best": st.lists(st.integers(-1, 5), max_size=3) | VALUES,
    "alpha": st.lists(st.floats(), max_size=3) | VALUES,
    "target_prefix": LISTS,
    "target": LISTS,
    "token_ids": st.lists(st.lists(st.integers(-1, 2**31), max_size=3), max_size=3) | VALUES,
}
COLUMNS = st.fixed_dictionaries({"text": LISTS}, optional=OPTIONS) | VALUES
# Almost right, which gets further than arbitrary JSON.
BODIES = {
    "/translate": st.fixed_dictionaries(
        {"q": LISTS},
        optional={
            "source": st.just("en") | VALUES,
            "target": st.just("de") | VALUES,
            "alternatives": st.integers(0, 5) | VALUES,
            "format": st.sampled_from(["text", "html"]) | VALUES,
        },
    ),
    "/detect": st.fixed_dictionaries({"q": LISTS}),
    "/languages": VALUES,
    "/v1/models/{name}:predict": st.fixed_dictionaries(
        {},
        optional={
            "signature_name": SIGNATURES | VALUES,
            "instances": st.lists(COLUMNS, max_size=4) | LISTS,
            "inputs": COLUMNS,
        },
    ),
}


def send(client, path, content, query="", **headers):
    """Sends a request, and checks that the answer is one that the description allows."""
    url = path.replace("{name}", client.service.name)
    # A bug is raised here, because the test client passes on exceptions.
    response = client.post(url + query, content=content, headers=headers)
    response.content.decode("utf-8")
    assert_described(response, path, "post")
    return response


@pytest.fixture(
    scope="module", params=["plain", pytest.param("ctranslate2", marks=pytest.mark.long)]
)
def served(request):
    """A client of a server of each engine, and what translates a line."""
    if request.param == "plain":
        translator, translate = plain_translator(), translation_of
    else:
        folder = request.getfixturevalue("folder")
        translator = translate = load_translator(folder, workers=1, beam_size=2, max_length=8)
    with client_of(lambda: translator) as client:
        yield client, translate


@pytest.fixture(scope="module")
def client(served):
    return served[0]


KINDS = [
    None,
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=a",
    "in a form",
    "in the query",
]


@settings(max_examples=200)
@given(
    st.sampled_from(POSTS),
    st.binary() | VALUES.map(json.dumps) | TEXTS.map(repr),
    st.sampled_from(KINDS),
)
def test_arbitrary_bodies(client, path, body, kind):
    content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    query = ""
    if kind == "in the query":
        kind, query, content = None, f"?q={quote(content[:999])}", b""
    if kind == "in a form":
        kind = KINDS[2]
        content = b"--a\r\nContent-Disposition: form-data; name=q\r\n\r\n%b\r\n--a--" % content
    send(client, path, content, query, **({"Content-Type": kind} if kind else {}))


@settings(max_examples=300)
@given(st.sampled_from(POSTS).flatmap(lambda path: st.tuples(st.just(path), BODIES[path])))
def test_bodies_that_are_almost_right(client, request_):
    path, body = request_
    send(client, path, json.dumps(body).encode())


@settings(max_examples=100)
@given(st.lists(TEXTS, max_size=9))
def test_every_text_has_its_translation(served, lines):
    client, translate = served
    response = send(client, "/translate", json.dumps({"q": lines}).encode())
    if response.status_code == 200:
        assert len(response.json()["translatedText"]) == len(lines)
    known = [line for line in lines if line.isascii() and line.isprintable() and len(line) < 99]
    known = [line for line in known if REFUSED not in line]
    response = send(client, "/translate", json.dumps({"q": known}).encode())
    assert response.json() == {"translatedText": [translate(line) for line in known]}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.binary(max_size=30))
def test_arbitrary_paths_and_methods(client, path, method):
    name = "".join(chr(65 + byte % 26) for byte in method) or "GET"
    response = client.request(name, "/" + quote(path))
    assert response.status_code < 500
    response.content.decode("utf-8")
