"""`SentencePieceTokenizer`: any SentencePiece model, with the ids of its model's embeddings."""

import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from keras_transformer.atomic_file import atomic_path
from keras_transformer.data.base_tokenizer import SPECIAL, BaseTokenizer
from keras_transformer.data.piece_tokenizer import PieceTokenizer
from keras_transformer.data.sentencepiece_proto import BYTE, NORMAL, UNIGRAM, UNKNOWN, ModelProto
from keras_transformer.types import Path


class SentencePieceTokenizer(BaseTokenizer):
    """Any SentencePiece model, such as that of T5, mBART or Marian.

    Texts become the pieces that SentencePiece itself gives, by the normalisation that the model
    holds. Only neighbours that repeat the same text, such as `..` `...`, are always in the order of
    their lengths: in a unigram model both orders have the same score. Texts may have unknown tokens
    and need not be restored exactly. Use `Tokenizer` for a vocabulary of your own.

    By default the ids are those of the model, as for T5. Others number the pieces anew: give the
    `vocabulary` for mBART (`["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]`) or Marian
    (the contents of `vocab.json`). Special tokens that are not in the vocabulary get ids after its
    last one: `start_token_id=32_100` gives T5 a start token.

    Args:
        model: path of a SentencePiece model, or its bytes.
        pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens: control
            pieces, or ids without a piece. Default to the ids of the pieces that the model names
            for them: `<pad>`, `<s>`, `</s>`, `<unk>`.
        vocabulary: the pieces in the order of their ids, or `{piece: id}`. Pieces of the model that
            are not in it become unknown tokens. Defaults to the pieces of the model.
        vocabulary_size: number of ids, to have more of them than there are pieces. Optional.

    Attributes:
        vocabulary_size: number of token ids.
        pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens.
        vocabulary: list of the tokens in the order of their ids, such as `▁cat`, `s`, `<0xC3>` or
            `</s>`; an id without a token has `""`.
        model_bytes: the SentencePiece model, as in its file.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if `model` is not a SentencePiece model, or a special token has no id or that of
            a piece of text.

    Example:

    >>> lines = ["a cat", "a mat"]
    >>> model = keras_transformer.Tokenizer.train_on_lines(lines, 265, "cats.model").model_bytes
    >>> tokenizer = SentencePieceTokenizer(model, start_token_id=300)
    >>> tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.vocabulary_size
    (0, 300, 301)
    >>> tokenizer.decode(tokenizer.encode(["a  cat"]))
    ['a cat']

    Reference:
        [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
    """

    _is_marian = False
    _graph_class = "GraphTokenizer"

    def __init__(
        self,
        model: Path | bytes,
        *,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        unk_token_id: int | None = None,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        vocabulary_size: int | None = None,
    ) -> None:
        self.model_bytes, proto = read_model(model)
        pieces = [p.piece for p in proto.pieces]
        ids = ids_of(pieces if vocabulary is None else vocabulary)
        self._given = None if vocabulary is None else dict(ids)
        special_ids = pad_token_id, start_token_id, end_token_id, unk_token_id
        special = _special_ids(special_ids, ids, proto, start_is_pad=self._is_marian)
        vars(self).update(special)
        smallest = 1 + max(*ids.values(), *special.values())
        self.vocabulary_size = operator.index(vocabulary_size or smallest)
        if self.vocabulary_size < smallest:
            raise ValueError(
                f"`vocabulary_size` must be at least {smallest}, the largest id plus 1. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        self.vocabulary = texts_of(ids, self.vocabulary_size)
        self.tag_ids = [i for i, piece in enumerate(self.vocabulary) if piece == self.tag]
        unk = self.unk_token_id
        # Our ids, by those of the model.
        self.ids = [unk if p.type == UNKNOWN else ids.get(p.piece, unk) for p in proto.pieces]
        self.rules: dict[str, Any] = {
            "normalization": self.normalization,
            "has_tags": self._is_marian,
            "has_other_pieces": not set(self._given or ()) <= set(pieces),
            "dropped_pieces": [self.vocabulary[unk]] if self._is_marian else [],
            "sorts_ties": proto.trainer_spec.model_type == UNIGRAM,
            "tag": self.tag,
        }
        self._pieces = PieceTokenizer(self.model_bytes, **self.rules)

    def save(self, path: Path) -> None:
        """Writes the SentencePiece model atomically to a file. Creates missing folders."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path, unique=True) as partial:
            partial.write_bytes(self.model_bytes)

    def is_tag(self, token_id: int) -> bool:
        """Returns whether a token id is a tag at the beginning of texts."""
        return token_id in self.tag_ids


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
        proto.Clear()  # of the pieces before the damage
    if not (proto.pieces and proto.HasField("normalizer_spec")):  # its last part
        raise ValueError(f"`model` must be a whole SentencePiece model. Received: {source}")
    return content, proto


def _special_ids(given, ids, proto, start_is_pad):
    """Returns the ids of the special tokens by name, and adds their pieces to `ids`.

    Raises a `ValueError` unless each has an id of its own, and no text has it.
    """
    text_ids = {ids.get(p.piece) for p in proto.pieces if p.type in (NORMAL, BYTE)}
    names = proto.trainer_spec
    pieces = names.pad_piece, names.bos_piece, names.eos_piece, names.unk_piece
    special: dict[str, int] = {}
    for name, token_id, piece in zip(SPECIAL, given, pieces, strict=True):
        token_id = ids.get(piece) if token_id is None else token_id
        if token_id is None:
            raise ValueError(
                f"`{name}` must be given, because the vocabulary has no {piece!r}. An id after the "
                "last one is free. Received: None"
            )
        if token_id < 0 or token_id in text_ids:
            raise ValueError(
                f"`{name}` must be the id of a control piece or an id without a piece. Received: "
                f"{token_id}"
            )
        is_pad = start_is_pad and name == "start_token_id"
        if not is_pad and token_id in special.values():
            other = next(other for other, other_id in special.items() if other_id == token_id)
            raise ValueError(
                f"`{name}` must differ from `{other}`. Received: {token_id}. Give one of them an "
                "id after the last one of the vocabulary."
            )
        special[name] = operator.index(token_id)
        if not is_pad:
            ids.setdefault(piece, special[name])
    return special


def ids_of(vocabulary: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Returns `{token: id}` of a vocabulary; of a list, the position of each token."""
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {token: token_id for token_id, token in enumerate(vocabulary)}


def texts_of(ids: dict[str, int], vocabulary_size: int) -> list[str]:
    """Returns the tokens in the order of their ids; an id without a token has an empty one."""
    tokens = [""] * vocabulary_size
    for token, token_id in ids.items():
        tokens[token_id] = token
    return tokens
