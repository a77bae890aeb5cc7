"""The fields of a SentencePiece model, read as SentencePiece's own generated code reads them."""

import pytest
import sentencepiece
from tokenizer_agreement import train_sentencepiece

from keras_transformer.data.sentencepiece_proto import FIELDS, ModelProto

pytestmark = pytest.mark.tensorflow_only
LINES = ["a cat sat on a mat", "the dog ate it"] * 20


@pytest.fixture(
    params=[
        {},
        {"pad_id": 3, "byte_fallback": True, "bos_piece": "[CLS]", "add_dummy_prefix": False},
    ]
)
def content(request):
    return train_sentencepiece(LINES, 300, user_defined_symbols=["<sep>"], **request.param)


def test_fields_are_those_of_sentencepiece_and_no_other_is_lost(content):
    reference = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto
    ours, theirs = ModelProto.FromString(content), reference.FromString(content)
    assert reference.FromString(ours.SerializeToString()) == theirs
    rows = [row.split()[:2] for row in FIELDS]
    for message, field in rows:
        if message in ("TrainerSpec", "NormalizerSpec"):
            spec = "trainer_spec" if message == "TrainerSpec" else "normalizer_spec"
            assert getattr(getattr(ours, spec), field) == getattr(getattr(theirs, spec), field)
    for one, other in zip(ours.pieces, theirs.pieces, strict=True):
        assert (one.piece, one.score, one.type) == (other.piece, other.score, other.type)


def test_changed_field_is_read_by_sentencepiece(content):
    proto = ModelProto.FromString(content)
    proto.pieces[-1].piece = "▁changed"
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    assert processor.id_to_piece(len(proto.pieces) - 1) == "▁changed"
