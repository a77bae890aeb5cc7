"""A translator of a small random model, which no test changes."""

import pytest


@pytest.fixture(scope="session")
def translator():
    from tests.decoding.test_translator import make_translator

    return make_translator()
