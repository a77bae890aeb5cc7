"""The fields of a SentencePiece model file that this package reads or writes.

The generated code inside the package `sentencepiece` raises an error with a `protobuf` older than
the one it was generated with, such as the one that TensorFlow 2.19 requires.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "keras_transformer.sentencepiece"
_PIECE_TYPES = {"NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "USER_DEFINED": 4, "UNUSED": 5, "BYTE": 6}
# {message: {field: (number, type, default)}}, as in SentencePiece's `sentencepiece_model.proto`.
# Messages keep the fields that are not listed here when they are written again.
_MESSAGES: dict[str, dict[str, tuple[int, Any, str | None]]] = {
    "SentencePiece": {
        "piece": (1, _FIELD.TYPE_STRING, None),
        "score": (2, _FIELD.TYPE_FLOAT, None),
        "type": (3, "SentencePiece.Type", "NORMAL"),
    },
    "TrainerSpec": {
        "model_type": (3, _FIELD.TYPE_INT32, "1"),  # an enum: 1 is unigram, 2 BPE
        "byte_fallback": (35, _FIELD.TYPE_BOOL, "false"),
        "unk_id": (40, _FIELD.TYPE_INT32, "0"),
        "bos_id": (41, _FIELD.TYPE_INT32, "1"),
        "eos_id": (42, _FIELD.TYPE_INT32, "2"),
        "pad_id": (43, _FIELD.TYPE_INT32, "-1"),
        "unk_piece": (45, _FIELD.TYPE_STRING, "<unk>"),
        "bos_piece": (46, _FIELD.TYPE_STRING, "<s>"),
        "eos_piece": (47, _FIELD.TYPE_STRING, "</s>"),
        "pad_piece": (48, _FIELD.TYPE_STRING, "<pad>"),
    },
    "NormalizerSpec": {
        "name": (1, _FIELD.TYPE_STRING, None),
        "add_dummy_prefix": (3, _FIELD.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, _FIELD.TYPE_BOOL, "true"),
        "normalization_rule_tsv": (6, _FIELD.TYPE_STRING, None),
    },
    "ModelProto": {
        "pieces": (1, "SentencePiece", None),
        "trainer_spec": (2, "TrainerSpec", None),
        "normalizer_spec": (3, "NormalizerSpec", None),
    },
}


def _make_model_proto():
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "SentencePiece":
            types = message.enum_type.add(name="Type")
            for value, number in _PIECE_TYPES.items():
                types.value.add(name=value, number=number)
        for field, (number, kind, default) in fields.items():
            label = _FIELD.LABEL_REPEATED if field == "pieces" else _FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label, default_value=default)
            if isinstance(kind, str):
                added.type_name = f".{_PACKAGE}.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


ModelProto: Any = _make_model_proto()
