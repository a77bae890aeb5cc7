"""Clients of a server in this process, and what its description says of the answers."""

import contextlib
import functools

from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.service import Service
from keras_transformer.serving.status import description
from tests.waiting import wait_until

DESCRIPTION = description()


@contextlib.contextmanager
def client_of(load, cors_origins=(), settings=None, wait=True, **limits):
    """A client of a server in this process; the answer to a bug is an exception."""
    service = Service(load, Limits(**limits), settings, max_batch=8)
    with TestClient(build_app(service, cors_origins)) as client:
        client.service = service
        if wait:
            wait_until_ready(service)
        yield client


def wait_until_ready(service):
    wait_until(lambda: service.is_ready or service.failure)


def validator_of(schema):
    """What checks values by a schema of the description, whose schemas a test checks."""
    return Draft202012Validator({**schema, "components": DESCRIPTION["components"]})


@functools.cache
def described_answer(path, method, status):
    """The content type of an answer, and what checks its JSON; `None` if it is of another type."""
    answer = DESCRIPTION["paths"][path][method]["responses"][status]
    if "$ref" in answer:
        answer = DESCRIPTION["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    ((kind, content),) = answer["content"].items()
    return kind, validator_of(content["schema"]) if kind == "application/json" else None


def assert_described(response, path, method):
    """The answer is one that the description has for the path."""
    answers = DESCRIPTION["paths"][path][method]["responses"]
    assert str(response.status_code) in answers, response.text
    kind, validator = described_answer(path, method, str(response.status_code))
    assert response.headers["content-type"].startswith(kind)
    if validator:
        validator.validate(response.json())
