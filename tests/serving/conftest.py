"""An exported folder, and a client of a server over an engine without a model."""

import pytest

from tests.session import made_once


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of CTranslate2, which starts at once."""

    def export(parent):
        from keras_transformer import Translator, export_ctranslate2
        from tests.decoding.test_translator import make_translator

        made = make_translator()
        settings = {"length_ratio": 3.0, "extra_length": 5, "beam_size": 4}
        translator = Translator(made.model, made.source_tokenizer, **settings)
        card = {"name": "numbers", "source_language": "en", "target_language": "de"}
        examples = ["twenty-one", "", "größer", "seven"]
        export_ctranslate2(translator, parent / "ct2", card=card, examples=examples)

    return made_once(tmp_path_factory, "served", export) / "ct2"


@pytest.fixture(scope="module")
def client():
    from tests.serving.clients import client_of
    from tests.serving.plain_engine import plain_translator

    with client_of(plain_translator) as client:
        yield client
