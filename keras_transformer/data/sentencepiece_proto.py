"""The fields of a SentencePiece model file that this package reads or writes.

They are declared here, because the generated code in the package `sentencepiece` raises an error
with a `protobuf` older than the one it was generated with, such as TensorFlow 2.19 requires.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

NORMAL, UNKNOWN, BYTE = 1, 2, 6  # values of `SentencePiece.type`
UNIGRAM, BPE = 1, 2  # values of `TrainerSpec.model_type`
_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "keras_transformer.sentencepiece"
# Message, field, number, type and default, as in SentencePiece's `sentencepiece_model.proto`.
# Messages keep the fields that are not listed here when they are written again.
FIELDS = (
    "SentencePiece piece 1 STRING",
    "SentencePiece score 2 FLOAT",
    "SentencePiece type 3 INT32 1",
    "TrainerSpec input 1 STRING",
    "TrainerSpec model_type 3 INT32 1",
    "TrainerSpec byte_fallback 35 BOOL false",
    "TrainerSpec unk_id 40 INT32 0",
    "TrainerSpec bos_id 41 INT32 1",
    "TrainerSpec eos_id 42 INT32 2",
    "TrainerSpec pad_id 43 INT32 -1",
    "TrainerSpec unk_piece 45 STRING <unk>",
    "TrainerSpec bos_piece 46 STRING <s>",
    "TrainerSpec eos_piece 47 STRING </s>",
    "TrainerSpec pad_piece 48 STRING <pad>",
    "NormalizerSpec name 1 STRING",
    "NormalizerSpec add_dummy_prefix 3 BOOL true",
    "NormalizerSpec remove_extra_whitespaces 4 BOOL true",
    "NormalizerSpec normalization_rule_tsv 6 STRING",
    "ModelProto pieces 1 SentencePiece",
    "ModelProto trainer_spec 2 TrainerSpec",
    "ModelProto normalizer_spec 3 NormalizerSpec",
)


def _make_model_proto():
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE)
    messages: dict[str, Any] = {}
    for row in FIELDS:
        message, name, number, kind, *default = row.split()
        if message not in messages:
            messages[message] = file.message_type.add(name=message)
        field = messages[message].field.add(name=name, number=int(number))
        is_list = name in ("pieces", "input")
        field.label = _FIELD.LABEL_REPEATED if is_list else _FIELD.LABEL_OPTIONAL
        if kind in messages:
            field.type_name = f".{_PACKAGE}.{kind}"
        else:
            field.type = _FIELD.Type.Value(f"TYPE_{kind}")
        if default:
            (field.default_value,) = default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


ModelProto: Any = _make_model_proto()
