"""A translator that is exported and served gives its own translations."""

import pytest

from keras_transformer import Translator, export_saved_model
from keras_transformer.serving.model import ServedModel
from tests.decoding.test_translator import LINES, make_translator
from tests.serving.clients import client_of

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def test_server_gives_the_translations_of_the_translator(tmp_path):
    made = make_translator(tmp_path / "tokenizer.model")
    translator = Translator(made.model, made.source_tokenizer, beam_size=1, extra_length=6)
    model = ServedModel(export_saved_model(translator, tmp_path / "served"))
    model.warm_up()
    lines = [line for line in LINES if "\n" not in line]
    with client_of(lambda: model) as client:
        answer = client.post("/translate", json={"q": lines}).json()
    assert answer == {"translatedText": [text for text in translator(lines)]}
