"""Clients of a server in this process, and what its description says of the answers."""

import contextlib

import jsonschema
from starlette.testclient import TestClient

from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.service import Service
from keras_transformer.serving.status import description
from tests.waiting import wait_until

DESCRIPTION = description()


@contextlib.contextmanager
def client_of(load, cors_origins=(), settings=None, max_batch=8, workers=1, wait=True, **limits):
    """A client of a server in this process; the answer to a bug is an exception."""
    service = Service(load, Limits(**limits), settings, workers, max_batch)
    with TestClient(build_app(service, cors_origins)) as client:
        client.service = service
        if wait:
            wait_until_ready(service)
        yield client


def wait_until_ready(service):
    wait_until(lambda: service.is_ready or service.failure)


def assert_described(response, path, method):
    """The answer is one that the description has for the path."""
    answers = DESCRIPTION["paths"][path][method]["responses"]
    assert str(response.status_code) in answers, response.text
    answer = answers[str(response.status_code)]
    if "$ref" in answer:
        answer = DESCRIPTION["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    ((kind, content),) = answer["content"].items()
    assert response.headers["content-type"].startswith(kind)
    if kind == "application/json":
        schema = {**content["schema"], "components": DESCRIPTION["components"]}
        jsonschema.validate(response.json(), schema)
