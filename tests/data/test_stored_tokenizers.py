"""Files of tokenizers that the version before wrote are read, and saved in the format of this one.

`stored_tokenizers` was written at commit 1bb5618; `expected.json` has its ids and texts.
"""

import json
import pathlib

import pytest

from keras_transformer.data import Tokenizer

STORED = pathlib.Path(__file__).parent / "stored_tokenizers"
EXPECTED = json.loads((STORED / "expected.json").read_text("utf-8"))
SPECIAL = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id"


@pytest.mark.parametrize("name", EXPECTED["tokenizers"])
def test_files_of_before_give_the_same_ids_and_texts(name, tmp_path):
    expected, texts = EXPECTED["tokenizers"][name], EXPECTED["texts"]
    Tokenizer.load(STORED / name).save(tmp_path / "new.json")
    for path in (STORED / name, tmp_path / "new.json"):
        tokenizer = Tokenizer.load(path)
        ids = tokenizer.encode(texts)
        assert (ids, tokenizer.decode(ids)) == (expected["ids"], expected["texts"])
        assert [getattr(tokenizer, each) for each in SPECIAL] == expected["special"]
        for member in ("kind", "vocabulary_size", "languages", "learned_from"):
            assert getattr(tokenizer, member) == expected[member]
