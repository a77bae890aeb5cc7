"""The application around the protocols: readiness, overload, records, description, page."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from keras_transformer.serving.app import ROUTES
from tests.serving.clients import DESCRIPTION, assert_described, client_of, wait_until_ready
from tests.serving.plain_engine import plain_translator
from tests.waiting import wait_until


def translate(client, line):
    return client.post("/translate", json={"q": line})


def translate_together(translator, lines, **limits):
    """Answers to requests that wait while the model runs another."""
    engine = translator.engine
    engine.may_run.clear()
    with client_of(lambda: translator, **limits) as client, ThreadPoolExecutor(50) as pool:
        first = pool.submit(translate, client, "first")
        assert engine.runs.wait(30)
        found = [pool.submit(translate, client, line) for line in lines]
        most = min(len(lines), limits.get("max_queue", 1_000) // 2)  # of one client
        wait_until(lambda: f"queue_rows {most}.0" in client.get("/metrics").text)
        wait_until(lambda: sum(one.done() for one in found) == len(lines) - most)
        engine.may_run.set()
        assert first.result().json() == {"translatedText": "FIRST"}
        answers = [one.result() for one in found]
        assert translate(client, "later").json() == {"translatedText": "LATER"}
    return answers


def test_server_is_alive_but_not_ready_while_it_loads():
    loaded = threading.Event()

    def load():
        loaded.wait(30)
        return plain_translator()

    def ready():
        return client.get("/health/ready").status_code

    with client_of(load, wait=False) as client:
        assert client.get("/health").status_code == 200
        assert ready() == 503
        refused = translate(client, "a")
        assert refused.status_code == 503 and "Retry-After" in refused.headers
        loaded.set()
        wait_until_ready(client.service)
        assert ready() == 200
        client.service.drain()
        assert ready() == 503
        assert translate(client, "a").json() == {"translatedText": "A"}


def test_model_that_cannot_be_loaded_is_told():
    def load():
        raise FileNotFoundError("There is no SavedModel")

    with client_of(load) as client:
        assert "There is no SavedModel" in str(client.service.failure)
        assert client.get("/health/ready").status_code == 503
        assert "The model failed" in translate(client, "a").json()["error"]


def test_answer_that_takes_too_long_is_503_and_its_lines_are_not_run():
    translator = plain_translator()
    engine = translator.engine
    engine.may_run.clear()
    with client_of(lambda: translator, timeout=1) as client, ThreadPoolExecutor(2) as pool:
        found = [pool.submit(translate, client, "running")]
        assert engine.runs.wait(30)
        found.append(pool.submit(translate, client, "waiting"))
        for answer in (one.result(30) for one in found):
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
            assert "no answer within 1 s. Send fewer or shorter" in answer.json()["error"]
        assert "queue_rows 0.0" in client.get("/metrics").text
        engine.may_run.set()
        # On a busy machine, one second may be too short for the first attempt.
        wait_until(lambda: translate(client, "later").status_code == 200)
    assert engine.batches[0] == ["running"]
    assert not any("waiting" in batch for batch in engine.batches)


def test_line_that_the_model_refuses_fails_only_its_request():
    translator = plain_translator()
    lines = [f"refused {n}" if n % 13 in (3, 4) else f"line {n}" for n in range(40)]
    for line, answer in zip(lines, translate_together(translator, lines), strict=True):
        if "refused" in line:
            assert answer.status_code == 400, "not 500"
            assert "A line was refused." in answer.json()["error"]
        else:
            assert answer.json() == {"translatedText": line.upper()}
    assert max(map(len, translator.engine.batches)) == 8


def test_full_queue_answers_503_and_recovers():
    answers = translate_together(
        plain_translator(), "abcdefghijklmnopqrst", max_queue=8, max_lines=4
    )
    refused = [one for one in answers if one.status_code != 200]
    assert len(refused) == 16 and {one.status_code for one in refused} == {503}
    assert all(one.headers["Retry-After"] == "1" for one in refused)
    assert all("4 lines wait for the model" in one.json()["error"] for one in refused)


def test_lack_of_memory_is_503():
    def fail(*_):
        raise MemoryError("OOM when allocating")

    translator = plain_translator()
    translator.engine.search = fail
    with client_of(lambda: translator) as client:
        response = translate(client, "a")
    assert response.status_code == 503 and "OOM" in response.json()["error"]


# === Records ===


def test_log_has_a_json_line_for_each_request_without_the_text(client, capsys):
    capsys.readouterr()
    client.post("/translate?key=secret", json={"q": ["secret one", "secret two"]})
    client.post("/translate", json={"q": "secret", "format": "xml"})
    client.get("/nowhere")
    log = capsys.readouterr().out
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(one["method"], one["path"], one["status"], one["rows"]) for one in lines] == [
        ("POST", "/translate", 200, 2),
        ("POST", "/translate", 400, 0),
        ("GET", "/nowhere", 404, 0),
    ]
    assert all(one["ms"] >= 0 and one["time"].endswith("Z") for one in lines)
    assert "secret" not in log


def test_metrics_count_requests_by_route_rows_and_batches():
    with client_of(plain_translator) as client:
        client.post("/v1/models/plain:predict", json={"instances": ["a", "b", "c"]})
        client.get("/nowhere/1"), client.get("/nowhere/2")
        text = client.get("/metrics").text
    for line in (
        'requests_total{route="/v1/models/{name}:predict",status="200"} 1.0',
        'requests_total{route="none",status="404"} 2.0',
        'rows_total{signature="search"} 3.0',
        'batch_rows_bucket{le="4.0"} 1.0',
        "batch_rows_sum 3.0",
        'request_seconds_count{route="/v1/models/{name}:predict"} 1.0',
        "queue_rows 0.0",
    ):
        assert f"keras_transformer_{line}\n" in text


# === Description, page, other origins ===


def test_description_has_exactly_the_routes():
    described = {
        (path, method)
        for path, item in DESCRIPTION["paths"].items()
        for method in item.keys() - {"parameters"}
    }
    routes = {
        (route.path, method.lower())
        for route in ROUTES
        for method in route.methods
        if method != "HEAD"
    }
    assert described == routes


def test_description_is_served_and_its_schemas_are_valid(client):
    assert client.get("/openapi.json").json() == DESCRIPTION
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", [path for path, item in DESCRIPTION["paths"].items()
                                  if "get" in item])  # fmt: skip
def test_answers_are_as_described(client, path):
    response = client.get(path.replace("{name}", "plain").replace("{version}", "1"))
    assert response.status_code == 200
    assert_described(response, path, "get")


def test_page_may_load_and_run_nothing_from_elsewhere(client):
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        each.strip().split(" ", 1)
        for each in response.headers["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "style-src": "'unsafe-inline'",
        "script-src": "'unsafe-inline'",
        "img-src": "data:",
    }


def test_pages_of_other_origins_may_not_call_unless_told(client):
    origin = {"Origin": "https://example.org"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    preflight["Access-Control-Request-Headers"] = "authorization, content-type"
    allowed = "access-control-allow-origin"
    assert allowed not in client.get("/languages", headers=origin).headers
    assert client.options("/translate", headers=preflight).status_code == 405
    with client_of(plain_translator, cors_origins=["https://example.org"]) as told:
        assert told.get("/languages", headers=origin).headers[allowed] == origin["Origin"]
        assert told.options("/translate", headers=preflight).status_code == 200
        other = told.get("/languages", headers={"Origin": "https://other.org"})
        assert allowed not in other.headers


def test_unknown_routes_and_methods_are_told(client):
    assert "openapi.json" in client.get("/nowhere").json()["error"]
    response = client.get("/translate")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert client.post("/translate/", json={"q": "a"}).status_code == 404
