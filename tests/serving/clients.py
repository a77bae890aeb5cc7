"""Clients of a server in this process."""

import contextlib

from starlette.testclient import TestClient

from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.service import Service
from tests.waiting import wait_until


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
