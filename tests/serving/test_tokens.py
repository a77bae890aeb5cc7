"""What the server refuses for its number of tokens is what the translator refuses."""

import asyncio
import collections
import dataclasses
import itertools
import types

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.tokens import check_tokens
from tests.decoding.test_translator import make_translator

pytestmark = pytest.mark.tensorflow_only
MOST, NO_LIMIT = 9, 2**31 - 1
LINES = ["", "one", "one two three", "a b c d", "a b c d e f g h", "one " * 8, "one " * 20]
PREFIXES = ["", "one", "one two", "a b c d", "one two three four five six seven"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_translator(tmp_path_factory.mktemp("tokens") / "tokenizer.model")


def served(translator):
    """A model of the server that can only tokenize."""

    def call(name, inputs):
        assert name == "tokenize"
        rows = translator.source_tokenizer.graph.tokenize(inputs["text"].tolist())
        return {"lengths": rows.row_lengths().numpy()}

    settings, config = dataclasses.asdict(translator.settings), translator.model.config
    defaults = {"target_prefix": np.array([b""], object), "max_length": np.array([NO_LIMIT])}
    signature = types.SimpleNamespace(defaults=defaults)
    signatures = {"translate_n_best": signature, "tokenize": None}
    card = {"search": settings, "architecture": config.to_dict()}
    return types.SimpleNamespace(card=card, signatures=signatures, call=call)


@pytest.mark.filterwarnings("ignore:`max_source_tokens` is")
@pytest.mark.parametrize(
    ("on_too_long", "split"), [("error", "lines"), ("error", "sentences"), ("truncate", "lines")]
)
def test_server_refuses_what_the_translator_refuses(made, on_too_long, split):
    """Of a line that is cut, it knows the longest first piece, so the model refuses a few more."""
    options = {"max_source_tokens": MOST, "extra_length": 1}
    options |= {"on_too_long": on_too_long, "split": split}
    translator = Translator(made.model, made.source_tokenizer, beam_size=1, **options)
    model, is_cut = served(translator), (on_too_long, split) != ("error", "lines")
    counts = collections.Counter()
    for line, prefix, max_length in itertools.product(LINES, PREFIXES, (None, 3)):
        lines, prefixes = ["one", line], ["", prefix]
        columns = {"text": lines, "target_prefix": prefixes}
        columns = {name: np.char.encode(column).astype(object) for name, column in columns.items()}
        if max_length:
            columns["max_length"] = np.array([max_length])
        server = error_of(asyncio.run, check_tokens(model, "translate_n_best", columns))
        options = {"target_prefix": prefixes, "max_length": max_length}
        expected = error_of(translator, lines, **options)
        assert expected or not server, (line, prefix, max_length, server)
        assert server or not expected or is_cut, (line, prefix, max_length, expected)
        counts[server.partition(".")[0]] += 1
    assert len(counts) == (2 if is_cut else 3)


def error_of(call, *words, **options):
    try:
        call(*words, **options)
    except (RequestError, ValueError) as error:
        return str(error)
    return ""
