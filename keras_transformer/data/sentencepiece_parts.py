"""SentencePiece models as the parts of a `Tokenizer`: their pieces, and a vocabulary for them."""

import json
import operator
import os
import pathlib
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from keras_transformer.data.pieces import (
    MARIAN,
    NORMALIZATIONS,
    SENTENCEPIECE,
    SUBWORDS,
    SentencePieces,
)
from keras_transformer.data.sentencepiece_proto import BYTE, NORMAL, UNIGRAM, ModelProto
from keras_transformer.data.vocabulary import SPECIAL, Vocabulary
from keras_transformer.types import Path

# The pieces of padding, start, end and unknown text. Marian's decoder starts with padding.
MARIAN_SPECIAL = "<pad>", "<pad>", "</s>", "<unk>"


def subword_parts(model: Path | bytes) -> tuple[SentencePieces, Vocabulary]:
    """Returns the parts of a model that `Tokenizer.train` made; see `Tokenizer`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if `Tokenizer.train` did not make the model.
    """
    source = f"{len(model)} bytes" if isinstance(model, bytes) else f"model={str(model)!r}"
    content, proto = read_model(model)
    _require_own_model(proto, source)
    tokens = [piece.piece for piece in proto.pieces]
    learned_from = ", ".join(proto.trainer_spec.input)
    pieces = SentencePieces(
        content,
        SUBWORDS,
        proto.normalizer_spec.name,
        sorts_ties=proto.trainer_spec.model_type == UNIGRAM,
    )
    return pieces, Vocabulary(tokens, learned_from=learned_from)


def sentencepiece_parts(
    model: Path | bytes,
    special: Sequence[int | None],
    vocabulary: Sequence[str] | Mapping[str, int] | None = None,
    vocabulary_size: int | None = None,
    kind: str = SENTENCEPIECE,
) -> tuple[SentencePieces, Vocabulary]:
    """Returns the parts of any model; see `Tokenizer.from_sentencepiece`.

    Args:
        model, vocabulary, vocabulary_size: as in `Tokenizer.from_sentencepiece`.
        special: ids of padding, start, end and the unknown token. `None`: the id of the piece that
            the model names for it.
        kind: `kind` of the returned pieces.
    """
    content, proto = read_model(model)
    names = [piece.piece for piece in proto.pieces]
    ids = ids_of(names if vocabulary is None else vocabulary)
    has_other_pieces = vocabulary is not None and not ids.keys() <= {*names}
    special_ids = _special_ids(special, ids, proto, start_is_pad=kind == MARIAN)
    tokens = tokens_of(ids, special_ids.values(), vocabulary_size)
    unknown = special_ids["unk_token_id"]
    pieces = SentencePieces(
        content,
        kind,
        has_other_pieces=has_other_pieces,
        dropped_pieces=[tokens[unknown]] if kind == MARIAN else [],
        sorts_ties=proto.trainer_spec.model_type == UNIGRAM,
    )
    languages = sorted(filter(is_tag_piece, ids)) if kind == MARIAN else []
    return pieces, Vocabulary(tokens, **special_ids, languages=[tag[2:-2] for tag in languages])


def marian_parts(
    model: Path | bytes, vocabulary: Mapping[str, int]
) -> tuple[SentencePieces, Vocabulary]:
    """Returns the parts of one side of a Marian model; see `Tokenizer.from_marian`."""
    checked_vocabulary(vocabulary, "`vocabulary`")
    special = [vocabulary[piece] for piece in MARIAN_SPECIAL]
    return sentencepiece_parts(model, special, vocabulary, kind=MARIAN)


def checked_vocabulary(vocabulary: Any, source: Any) -> Mapping[str, int]:
    """Returns the vocabulary of a Marian model.

    Raises a `ValueError` unless it maps pieces, which UTF-8 can encode, to the ids 0, 1, 2, ... and
    has the pieces `MARIAN_SPECIAL`.

    Args:
        vocabulary: the object to check.
        source: name of the argument or path of the file, for errors.
    """
    is_valid = isinstance(vocabulary, Mapping) and all(
        isinstance(piece, str) and type(i) is int for piece, i in vocabulary.items()
    )
    if not is_valid or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError(
            f"{source} must map each piece to its id, and the ids must be 0, 1, 2, ... Received: "
            f"{reprlib.repr(vocabulary)}"
        )
    if halves := [piece for piece in vocabulary if re.search("[\ud800-\udfff]", piece)]:
        raise ValueError(f"{source} must hold whole characters. Received: {halves[0]!r}")
    if missing := sorted({*MARIAN_SPECIAL} - {*vocabulary}):
        raise ValueError(f"{source} must have the pieces {', '.join(missing)}.")
    return vocabulary


def read_vocabulary(path: pathlib.Path) -> Mapping[str, int]:
    """Returns the vocabulary of a Marian model from a JSON file."""
    try:
        vocabulary = json.loads(path.read_text("utf-8"), strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return checked_vocabulary(vocabulary, path)


def is_tag_piece(piece: str) -> bool:
    """Whether a piece is the tag of a language."""
    return piece.startswith(">>") and piece.endswith("<<")


def read_model(model):
    """Returns a SentencePiece model as bytes and as a parsed `ModelProto`.

    Args:
        model: path of the file, or its bytes.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not a SentencePiece model.
    """
    if isinstance(model, bytes):
        content, source = model, f"{len(model)} bytes"
    elif os.path.isfile(model):
        content, source = pathlib.Path(model).read_bytes(), f"model={str(model)!r}"
    else:
        raise FileNotFoundError(f"`model` must be an existing file. Received: {model=!s}")
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        proto.Clear()  # drop the pieces that were read before the damage
    # A file that was cut off lacks its last part, the normalizer.
    if not (proto.pieces and proto.HasField("normalizer_spec")):
        raise ValueError(f"`model` must be a whole SentencePiece model. Received: {source}")
    return content, proto


def _special_ids(chosen_ids, ids, proto, start_is_pad):
    """Returns the ids of the special tokens by name, and adds their pieces to `ids`.

    Raises a `ValueError` unless every special token has its own id, which no piece of text has.

    Args:
        chosen_ids: ids in the order of `SPECIAL`; `None`: that of the piece that the model names.
        ids: `{piece: id}` of the vocabulary.
        proto: `ModelProto` of the model.
        start_is_pad: whether the start token is that of padding, as Marian's.
    """
    text_ids = {ids.get(p.piece) for p in proto.pieces if p.type in (NORMAL, BYTE)}
    spec = proto.trainer_spec
    pieces = spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece
    special: dict[str, int] = {}
    for name, chosen_id, piece in zip(SPECIAL, chosen_ids, pieces, strict=True):
        token_id = ids.get(piece) if chosen_id is None else chosen_id
        if token_id is None:
            raise ValueError(
                f"`{name}` must be given, because the vocabulary has no {piece!r}. Give an unused "
                "id, such as the one after the last. Received: None"
            )
        if token_id < 0 or token_id in text_ids:
            raise ValueError(
                f"`{name}` must be the id of a control piece or an id without a piece. Received: "
                f"{token_id}"
            )
        may_be_pad = start_is_pad and name == "start_token_id"
        if not may_be_pad and token_id in special.values():
            other = next(other for other, other_id in special.items() if other_id == token_id)
            raise ValueError(
                f"`{name}` must differ from `{other}`. Received: {token_id}. Give one of them an "
                "id after the last one of the vocabulary."
            )
        special[name] = operator.index(token_id)
        if not may_be_pad:
            ids.setdefault(piece, special[name])
    return special


def _require_own_model(proto, source):
    """Raises a `ValueError` unless `Tokenizer.train` made the model."""
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    ids = [trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id]
    has_our_tokens = ids == [0, 1, 2, 3] and trainer.byte_fallback
    # Only "identity" keeps all spaces.
    changes_spaces = normalizer.name != "identity"
    has_our_rule = (
        normalizer.name in NORMALIZATIONS
        and normalizer.remove_extra_whitespaces == changes_spaces
        and normalizer.add_dummy_prefix == changes_spaces
    )
    if not (has_our_tokens and has_our_rule):
        raise ValueError(
            f"`model` must be a file that `Tokenizer.train` wrote. Received: {source}. For another "
            "SentencePiece model, call `Tokenizer.from_sentencepiece` and `save` its tokenizer; "
            "recipes take that file"
        )


def ids_of(vocabulary: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Returns `{token: id}` of a vocabulary; in a list, the id is the position."""
    if not isinstance(vocabulary, Mapping):
        return {token: token_id for token_id, token in enumerate(vocabulary)}
    if negative := {token: n for token, n in vocabulary.items() if n < 0}:
        raise ValueError(f"`vocabulary` must have ids from 0. Received: {negative}")
    if len({*vocabulary.values()}) < len(vocabulary):
        counts = Counter(vocabulary.values())
        token = next(token for token, token_id in vocabulary.items() if counts[token_id] > 1)
        raise ValueError(
            "`vocabulary` must give each piece an id of its own. Received: another piece with the "
            f"id {vocabulary[token]} of {token!r}"
        )
    return dict(vocabulary)


def tokens_of(
    ids: Mapping[str, int], special_ids: Iterable[int], vocabulary_size: int | None = None
) -> list[str]:
    """Returns the tokens in the order of their ids; an empty string for an id without a token."""
    smallest = 1 + max(*ids.values(), *special_ids)
    size = smallest if vocabulary_size is None else operator.index(vocabulary_size)
    if size < smallest:
        raise ValueError(
            f"`vocabulary_size` must be at least {smallest}, the largest id plus 1. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    tokens = [""] * size
    for token, token_id in ids.items():
        tokens[token_id] = token
    return tokens
