"""Clients of a server in this process."""

import contextlib
import functools

from starlette.testclient import TestClient

from keras_transformer.decoding.protected_text import mask
from keras_transformer.serving.app import build_app
from keras_transformer.serving.engine import Engine
from keras_transformer.serving.limits import Limits
from tests.waiting import wait_until


@contextlib.contextmanager
def client_of(
    load, cors_origins=(), split="lines", protect=(), max_batch=8, workers=1, wait=True, **limits
):
    """A client of a server in this process; the answer to a bug is an exception."""
    engine = Engine(load, Limits(**limits), workers, max_batch)
    with TestClient(
        build_app(engine, cors_origins, split, functools.partial(mask, protect, None))
    ) as client:
        client.engine = engine
        if wait:
            wait_until_ready(engine)
        yield client


def wait_until_ready(engine):
    wait_until(lambda: engine.is_ready or engine.failure)
