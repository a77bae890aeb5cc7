"""A stand-in for an exported folder, and a client of a server over it."""

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    from tests.serving import stand_in

    return stand_in.save(tmp_path_factory.mktemp("serving") / "stand_in")


@pytest.fixture(scope="session")
def model(folder):
    from keras_transformer.serving.saved_model import ServedModel

    return ServedModel(folder)


@pytest.fixture(scope="module")
def client(model):
    from tests.serving.clients import client_of

    with client_of(lambda: model) as client:
        yield client
