"""Requests that nobody waits for, or that are refused, cost next to nothing."""

import asyncio
import collections
import itertools
import json
import sys

import pytest
from starlette.requests import Request

from keras_transformer.serving.app import build_app
from keras_transformer.serving.bodies import client_of
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.service import Service
from tests.serving.plain_engine import plain_translator
from tests.waiting import until

PREDICT = "/v1/models/plain:predict"
MANY = 200_000
MOST_CALLS = 5_000


def detokenize(ids):
    return {"signature_name": "detokenize", "inputs": ids}


def n_best(**inputs):
    return {"signature_name": "translate_n_best", "inputs": inputs}


# name: path, body. Each is refused with 413.
FLOODS = {
    "texts": ("/translate", {"q": [""] * MANY}),
    "lines of a text": ("/translate", {"q": "\n" * MANY}),
    "lines of texts": ("/translate", {"q": ["\n" * 99] * 9}),
    "texts of HTML": ("/translate", {"q": "<b>a</b>" * 20_000, "format": "html"}),
    "a long line": ("/translate", {"q": "é" * MANY}),
    "many sentences": ("/translate", {"q": "Two. " * MANY}),
    "long lines of sentences": ("/translate", {"q": [" Two. " * 2_600] * 20}),
    "many sentences of HTML": ("/translate", {"q": "<p>Two. " + "Two. " * MANY, "format": "html"}),
    "fields of a form": ("/translate", "q=&" * MANY),
    "texts to detect": ("/detect", {"q": [""] * MANY}),
    "rows": (PREDICT, {"instances": [""] * MANY}),
    "rows with names": (PREDICT, {"instances": [{}] * MANY}),
    "a column": (PREDICT, {"inputs": [""] * MANY}),
    "a column with a name": (PREDICT, {"inputs": {"text": [""] * MANY}}),
    "an option": (PREDICT, n_best(text=["a"], n_best=[1] * MANY)),
    "token ids": (PREDICT, detokenize([[1] * MANY])),
    "rows of token ids": (PREDICT, detokenize([[1]] * MANY)),
    "a prefix": (PREDICT, n_best(text=["a"], target_prefix=["b" * 2_000])),
    "prefixes": (PREDICT, n_best(text=["a" * 1_001] * 2, target_prefix=["b", "b" * 1_000])),
}


async def ask(app, path, body, gone=None):
    """Status and answer; the client closes the connection when the event `gone` is set."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = b"application/json"
    if isinstance(body, str):
        content, kind = body.encode(), b"application/x-www-form-urlencoded"
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "headers": [(b"content-type", kind)], "query_string": b"", "root_path": "",
        "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1),
    }  # fmt: skip
    messages, sent = [{"type": "http.request", "body": content, "more_body": False}], []

    async def receive():
        if messages:
            return messages.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def serve(translator, scenario, **limits):
    """Runs `scenario(app, service)` in the loop of a server."""

    async def main():
        service = Service(lambda: translator, Limits(**limits), max_batch=8)
        async with service.running():
            await until(lambda: service.is_ready)
            try:
                app = build_app(service)
                return await asyncio.wait_for(scenario(app, service), 60)
            finally:
                translator.engine.may_run.set()

    return asyncio.run(main())


@pytest.mark.parametrize("name", FLOODS)
def test_flood_is_refused_before_its_elements_are_looked_at(name):
    path, body = FLOODS[name]
    calls = collections.Counter()

    def request(*_, **__):
        raise AssertionError("Text is read before the limits are asked.")

    async def scenario(app, service):
        profile = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: calls.update([event]))
        try:
            return await ask(app, path, body)
        finally:
            sys.setprofile(profile)

    translator = plain_translator()
    translator.request = request
    status, answer = serve(translator, scenario)
    assert status == 413 and " at most " in answer["error"], answer
    assert calls["call"] + calls["c_call"] < MOST_CALLS


NESTED = [
    ("/translate", '{"q": %s}'),
    ("/translate", '{"q": "a", "target": %s}'),
    ("/translate", '{"q": "a", "alternatives": %s}'),
    ("/translate", '{"q": "a", "format": %s}'),
    ("/translate", "%s"),
    (PREDICT, '{"instances": %s}'),
    (PREDICT, '{"inputs": %s}'),
    (PREDICT, '{"signature_name": "detokenize", "inputs": %s}'),
    (PREDICT, '{"instances": ["a"], "signature_name": %s}'),
]


@pytest.mark.parametrize(("path", "around"), NESTED)
def test_deeply_nested_json_is_400(path, around):
    async def scenario(app, service):
        for levels in (30, 300, 500, 700, 900, 985, 1_000, 3_000, 100_000):
            for value in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
                status, answer = await ask(app, path, (around % value).encode())
                assert status == 400, (levels, answer)

    serve(plain_translator(), scenario)


def test_between_two_large_bodies_the_event_loop_does_other_work(monkeypatch):
    ticks, read_at, loads = itertools.count(), [], json.loads

    def recorded(text, **options):
        read_at.extend([next(ticks)] * (len(text) > MANY))
        return loads(text, **options)

    async def scenario(app, service):
        async def tick():
            while True:
                next(ticks)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            others = group.create_task(tick())
            asked = [ask(app, "/translate", {"q": [""] * MANY}) for _ in range(4)]
            answers = await asyncio.gather(*asked)
            others.cancel()
        assert [status for status, _ in answers] == [413] * 4

    monkeypatch.setattr(json, "loads", recorded)
    serve(plain_translator(), scenario)
    assert len(read_at) == 4 and all(b - a > 2 for a, b in itertools.pairwise(read_at)), read_at


def test_lines_that_nobody_waits_for_are_not_run_and_leave_the_queue():
    translator = plain_translator()
    engine = translator.engine

    async def scenario(app, service):
        engine.may_run.clear()
        gone = asyncio.Event()
        first = asyncio.create_task(ask(app, "/translate", {"q": "first"}))
        await until(engine.runs.is_set)
        # The prefix of one row leaves no room, so the other rows of the request are not wanted.
        options = {"alpha": [0, 1, 2], "max_length": [9, 9, 1], "target_prefix": ["", "", "long"]}
        status, _ = await ask(app, PREDICT, n_best(text=["unwanted"] * 3, **options))
        assert status == 400
        lines = ["unwanted"] * 16
        requests = [("/translate", {"q": lines}), (PREDICT, {"instances": lines})] * 2
        left = [asyncio.create_task(ask(app, *request, gone)) for request in requests]
        stays = asyncio.create_task(ask(app, "/translate", {"q": "wanted"}))
        await until(lambda: b"queue_rows 65.0" in service.metrics.text())
        gone.set()
        assert {status for status, _ in await asyncio.gather(*left)} == {499}
        assert b"queue_rows 1.0" in service.metrics.text()
        engine.may_run.set()
        return await asyncio.gather(first, stays)

    answers = serve(translator, scenario)
    assert [answer["translatedText"] for _, answer in answers] == ["FIRST", "WANTED"]
    assert engine.batches == [["first"], ["wanted"]]


ONE_CLIENT = {
    "1.2.3.4": ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304"],
    "2001:db8::1": ["2001:db8::2", "2001:DB8:0:0:ffff::"],
    "a name": ["a name"],
}


def test_network_address_is_the_client():
    """A user of IPv6 has 2^64 addresses, and one of IPv4 has one, whatever socket accepts it."""

    def client(host):
        return client_of(Request({"type": "http", "client": (host, 1)}))

    for one, others in ONE_CLIENT.items():
        assert {client(each) for each in others} == {client(one)}
    addresses = [*ONE_CLIENT, "1.2.3.5", "::ffff:1.2.3.6", "2001:db8:0:1::1"]
    assert len({client(each) for each in addresses}) == len(addresses)


def test_line_that_the_model_would_refuse_does_not_wait_for_it():
    translator = plain_translator(on_too_long="error", max_source_tokens=8)
    engine = translator.engine

    async def scenario(app, service):
        engine.may_run.clear()
        allowed = asyncio.create_task(ask(app, "/translate", {"q": "a b c d"}))
        refused = await ask(app, "/translate", {"q": ["a", "a b c d e"]})
        engine.may_run.set()
        return await allowed, refused

    (status, _), (refused, answer) = serve(translator, scenario)
    assert (status, refused) == (200, 400)
    assert "at most 8 tokens with the end token" in answer["error"]
    assert "line 2 of `lines` has 10 tokens" in answer["error"]
    assert engine.batches == [["a b c d"]]
