"""`SentencePieceTokenizer`: any SentencePiece model, with the token ids of its model's embeddings.

It runs in the TensorFlow graph and becomes part of the exported SavedModel.
"""

import functools
import hashlib
import json
import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_transformer.data.sentencepiece_proto import BYTE, NORMAL, UNKNOWN, ModelProto
from keras_transformer.data.tokenizer_like import SPACE_SYMBOL
from keras_transformer.types import Path


class SentencePieceTokenizer(tf.Module):
    """Any SentencePiece model, such as that of T5, mBART or Marian.

    Texts become the pieces that SentencePiece itself gives, by the normalisation that the model
    holds; texts may have unknown tokens and need not be restored exactly. Use `Tokenizer` for a
    vocabulary of your own.

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
        model_bytes: the SentencePiece model, as in its file.

    Raises:
        ImportError: if tensorflow-text is missing (it has no build for Windows).
        FileNotFoundError: if the file does not exist.
        ValueError: if `model` is not a SentencePiece model, or a special token has no id or that of
            a piece of text.

    Example:

    >>> lines = ["a cat", "a mat"]
    >>> model = keras_transformer.Tokenizer.train_on_lines(lines, 265, "cats.model").model_bytes
    >>> tokenizer = SentencePieceTokenizer(model, start_token_id=300)
    >>> tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.vocabulary_size
    (0, 300, 301)
    >>> tokenizer.detokenize(tokenizer.tokenize(["a  cat"])).numpy().tolist()
    [b'a cat']

    Reference:
        [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
    """

    _start_is_pad = False

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
        super().__init__(name="tokenizer")
        import_tensorflow_text()
        self.model_bytes, proto = read_model(model)
        pieces = [p.piece for p in proto.pieces]
        ids = ids_of(pieces if vocabulary is None else vocabulary)
        # As text: a `tf.Module` would track each entry of a dict.
        self._vocabulary = "" if vocabulary is None else json.dumps(ids, ensure_ascii=False)
        self.has_other_pieces = not set(ids) <= set(pieces)
        text_ids = {ids.get(p.piece) for p in proto.pieces if p.type in (NORMAL, BYTE)}
        names = proto.trainer_spec
        special: dict[str, int] = {}
        for name, given, piece in (
            ("pad_token_id", pad_token_id, names.pad_piece),
            ("start_token_id", start_token_id, names.bos_piece),
            ("end_token_id", end_token_id, names.eos_piece),
            ("unk_token_id", unk_token_id, names.unk_piece),
        ):
            given = ids.get(piece) if given is None else given
            is_pad = self._start_is_pad and name == "start_token_id"
            others = {} if is_pad else special
            special[name] = _special_id(name, given, piece, others, text_ids)
            setattr(self, name, special[name])
            if not is_pad:
                ids.setdefault(piece, special[name])
        smallest = 1 + max(*ids.values(), *special.values())
        self.vocabulary_size = operator.index(vocabulary_size or smallest)
        if self.vocabulary_size < smallest:
            raise ValueError(
                f"`vocabulary_size` must be at least {smallest}, the largest id plus 1. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        unk = self.unk_token_id
        ids_of_pieces = [unk if p.type == UNKNOWN else ids.get(p.piece, unk) for p in proto.pieces]
        self._ids = tf.constant(ids_of_pieces)
        self._pieces = tf.constant(texts_of(ids, self.vocabulary_size))
        self._sentencepiece = self._processor()

    def tokenize(
        self, text: tf.Tensor | Sequence[str] | str, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns the token ids of text.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.
            add_start: prepend `start_token_id` to each row.
            add_end: append `end_token_id` to each row.

        Returns:
            int32 `RaggedTensor` `(B, None)`; for one string, int32 tensor `(T,)`. An empty text
            has no tokens.
        """
        text = tf.convert_to_tensor(text, tf.string)
        if text.shape.rank not in (0, 1):
            raise ValueError(
                f"`text` must be a string or a list of strings. Received: shape {text.shape}"
            )
        if text.shape.rank == 0:
            return self.tokenize(text[None], add_start, add_end)[0]
        parts = [self._ids_of_text(self._prepare(text))]
        if add_start:
            parts.insert(0, tf.fill([tf.size(text), 1], self.start_token_id))
        if add_end:
            parts.append(tf.fill([tf.size(text), 1], self.end_token_id))
        return tf.concat(parts, axis=1)

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int `RaggedTensor`, padded tensor or nested list `(B, T)`; `(T,)` for one
                text.

        Returns:
            string tensor `(B,)`; for one text, a string scalar. Incomplete UTF-8 sequences (a
            translation can end inside a character) become U+FFFD.
        """
        pieces = tf.gather(self._pieces, self._text_ids(token_ids))
        text = self._sentencepiece.detokenize(pieces)
        if self.has_other_pieces:  # SentencePiece leaves the space symbol of unknown pieces
            text = tf.strings.strip(tf.strings.regex_replace(text, SPACE_SYMBOL, " "))
        return text

    def tokens(
        self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns tokens as strings, such as `▁cat`, `s`, `<0xC3>` or `</s>`.

        Args:
            token_ids: int tensor, `RaggedTensor` or nested list of any shape.

        Returns:
            string tensor or `RaggedTensor` of the same shape.
        """
        return tf.gather(self._pieces, ints_of(token_ids))

    def _processor(self, out_type=tf.int32):
        """Returns a SentencePiece processor of the model, to ids or to strings."""
        tensorflow_text = import_tensorflow_text()
        made = tensorflow_text.SentencepieceTokenizer(model=self.model_bytes, out_type=out_type)
        made._model_resource = _NamedModelResource(self.model_bytes)
        return made

    def _ids_of_text(self, text):
        """Returns the ids of prepared text, without start and end tokens."""
        return tf.gather(self._ids, self._sentencepiece.tokenize(text))

    def _text_ids(self, token_ids):
        """Returns the ids that `detokenize` turns into text."""
        return text_ids_of(token_ids, self)

    def _prepare(self, text):
        """Changes text before SentencePiece reads it."""
        return text

    def __reduce__(self):
        """For `pickle` and `copy`: tables belong to a process, so they are made anew."""
        names = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id", "vocabulary_size"
        given = {name: getattr(self, name) for name in names}
        given["vocabulary"] = json.loads(self._vocabulary) if self._vocabulary else None
        return functools.partial(type(self), **given), (self.model_bytes,)

    def __repr__(self):
        return f"{type(self).__name__}(vocabulary_size={self.vocabulary_size})"


class _NamedModelResource(tf.saved_model.experimental.TrackableResource):
    """The SentencePiece model as a resource that lives as long as the process.

    The resource of tensorflow-text belongs to a cached kernel, and `keras.utils.set_random_seed`
    clears that cache, which would break existing tokenizers. A named resource belongs to no
    kernel. The name is a hash of the model, so that equal models share one resource.
    """

    def __init__(self, model_bytes):
        super().__init__()
        self._model_bytes = model_bytes
        _ = self.resource_handle  # creates the resource now

    def _create_resource(self):
        from tensorflow_text.python.ops import sentencepiece_tokenizer

        digest = hashlib.sha256(self._model_bytes).hexdigest()
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model_bytes, shared_name=f"sentencepiece_{digest}"
        )


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


def _special_id(name, token_id, piece, others, text_ids):
    """Returns the id of a special token; raises unless it is its own, and no text has it."""
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
    for other, other_id in others.items():
        if token_id == other_id:
            raise ValueError(
                f"`{name}` must differ from `{other}`. Received: {token_id}. Give one of them an "
                "id after the last one of the vocabulary."
            )
    return operator.index(token_id)


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


def text_ids_of(token_ids, tokenizer):
    """Returns token ids as int32 without the pad, start and end tokens of a tokenizer."""
    token_ids = ints_of(token_ids)
    pad, start, end = tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id
    is_text = (token_ids != pad) & (token_ids != start) & (token_ids != end)
    return tf.ragged.boolean_mask(token_ids, is_text)


def ints_of(token_ids):
    """Returns token ids as an int32 tensor, or a `RaggedTensor` of nested lists."""
    if isinstance(token_ids, list | tuple):
        return tf.ragged.constant(token_ids, tf.int32)
    return tf.cast(token_ids, tf.int32)


def import_tensorflow_text():
    """Returns the module; raises an `ImportError` that says how to install it."""
    try:
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            "A tokenizer needs tensorflow-text, in the version of TensorFlow: install "
            "`tensorflow-text` (Linux and macOS; on Windows use WSL2)."
        ) from error
    return tensorflow_text
