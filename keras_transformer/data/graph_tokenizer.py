"""Tokenizers inside TensorFlow graphs: what a SavedModel contains. The property `graph` makes them.

They give the ids and texts of the plain tokenizers, for tensors of strings.
"""

import functools
import hashlib
import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.data.piece_tokenizer import SPACE_SYMBOL, tied_pieces
from keras_transformer.data.sentencepiece_tokenizer import read_model
from keras_transformer.data.tokenizer_like import SPECIAL_TOKENS
from keras_transformer.texts import import_extra

# The white space of Python's `str.split()`, and the space symbol.
WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\p{Z}\x{2581}]+"
# The tag of a language at the beginning of a text, up to the first "<<"; and what follows.
_TAG, _TAG_AND_TEXT = r"(?s)^>>.*?<<", r"(?s)^(>>.*?<<)?.*$"


class BaseGraphTokenizer(tf.Module):
    """Base class of the tokenizers for graphs.

    Args:
        tokenizer: the plain tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(name="tokenizer")
        self._normalization = tokenizer.normalization
        self._without_text = tuple(getattr(tokenizer, name) for name in SPECIAL_TOKENS)
        self._pieces = tf.constant(tokenizer.vocabulary)

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


class GraphTokenizer(BaseGraphTokenizer):
    """A `SentencePieceTokenizer` or `Tokenizer` for graphs.

    All methods give the same values and types eagerly and inside a `tf.function`. Bytes that are
    not UTF-8 become U+FFFD.

    Args:
        tokenizer: `SentencePieceTokenizer`.

    Raises:
        ImportError: if tensorflow-text is missing (it has no build for Windows).
    """

    _out_type = tf.int32

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._has_other_pieces = tokenizer.rules["has_other_pieces"]
        self._ids, self._tags = tf.constant(tokenizer.ids), tf.constant(tokenizer.tag_ids, tf.int32)
        kind = _import_tensorflow_text().SentencepieceTokenizer
        self._sentencepiece = kind(model=tokenizer.model_bytes, out_type=self._out_type)
        self._sentencepiece._model_resource = _NamedModelResource(tokenizer.model_bytes)
        self._tag = None if tokenizer.tag is None else tokenizer.vocabulary.index(tokenizer.tag)
        self._ties = _ties_of(tokenizer.vocabulary) if tokenizer.rules["sorts_ties"] else None
        spec = read_model(tokenizer.model_bytes)[1].normalizer_spec
        self._keeps_spaces = spec.add_dummy_prefix and not spec.remove_extra_whitespaces

    def tokenize(self, text: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of text.

        Args:
            text: string tensor `(B,)`, or list of strings.

        Returns:
            int32 `RaggedTensor` `(B, None)`. An empty text has no tokens.
        """
        text = tf.convert_to_tensor(text, tf.string)
        token_ids = self._ids_of_text(_prepare(text, self._normalization))
        token_ids = token_ids if self._ties is None else _sort_ties(token_ids, self._ties)
        if self._tag is None:
            return token_ids
        has_tag = tf.cast(token_ids.row_lengths() > 0, tf.int64)
        tags = tf.fill([tf.reduce_sum(has_tag)], self._tag)
        return tf.concat([tf.RaggedTensor.from_row_lengths(tags, has_tag), token_ids], axis=1)

    def is_tag(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns which token ids are a tag at the beginning of texts, as a bool tensor."""
        return tf.reduce_any(tf.expand_dims(token_ids, -1) == self._tags, axis=-1)

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int `RaggedTensor`, padded tensor or nested list `(B, T)`.

        Returns:
            string tensor `(B,)`. Incomplete UTF-8 sequences (a translation can end inside a
            character) become U+FFFD.
        """
        pieces = tf.gather(self._pieces, without_ids(token_ids, self._without_text))
        if self._keeps_spaces:
            text = self._keep_spaces(pieces)
        else:
            text = self._sentencepiece.detokenize(pieces)
        if self._normalization == "identity":  # remove the space that `_prepare` added
            return tf.strings.regex_replace(text, "^ ", "", replace_global=False)
        if self._has_other_pieces:  # SentencePiece leaves the space symbol of unknown pieces
            return tf.strings.strip(tf.strings.regex_replace(text, SPACE_SYMBOL, " "))
        return text

    def _keep_spaces(self, pieces):
        """Detokenizes without the first space only; tensorflow-text leaves out all in front."""
        first = pieces[:, :1]
        first = first.with_values(tf.strings.regex_replace(first.values, "^" + SPACE_SYMBOL, ""))
        stop = tf.fill([pieces.nrows(), 1], ".")
        text = self._sentencepiece.detokenize(tf.concat([stop, first, pieces[:, 1:]], axis=1))
        return tf.strings.regex_replace(text, r"^\.", "")

    def _ids_of_text(self, text):
        """Returns the ids of prepared text, without start and end tokens."""
        return tf.gather(self._ids, self._sentencepiece.tokenize(text))


class GraphMarianTokenizer(GraphTokenizer):
    """A `MarianTokenizer` for graphs.

    Memory: a hash table of the pieces, some 13 MB for 58,101 of them.

    Args:
        tokenizer: `MarianTokenizer`.
    """

    # Strings, not ids: a piece that only the other side's model has is in the vocabulary too.
    _out_type = tf.string

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._without_text += (tokenizer.unk_token_id,)
        ids = range(tokenizer.vocabulary_size)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(self._pieces, tf.constant(ids, tf.int32)),
            default_value=tokenizer.unk_token_id,
        )

    def _ids_of_text(self, text):
        is_tagged = tf.strings.regex_full_match(text, _TAG + ".*")
        tag = tf.strings.regex_replace(text, _TAG_AND_TEXT, r"\1")
        tags = tf.ragged.boolean_mask(tag[:, None], is_tagged[:, None])
        pieces = self._sentencepiece.tokenize(tf.strings.regex_replace(text, _TAG, ""))
        pieces = tf.concat([tags, pieces], axis=1)
        return pieces.with_flat_values(self._table.lookup(pieces.flat_values))


class GraphSymbolTokenizer(BaseGraphTokenizer):
    """A `CharacterTokenizer` or `WordTokenizer` for graphs. Only normalising needs tensorflow-text.

    Args:
        tokenizer: one of them.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._pattern, self._joiner = tokenizer.pattern, tokenizer.joiner
        first = tokenizer.vocabulary_size - len(tokenizer.rules["symbols"])
        texts = [*tokenizer.vocabulary[:first], *tokenizer.rules["symbols"]]
        self._texts = tf.constant(texts)
        ids = tf.range(first, tokenizer.vocabulary_size)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(self._texts[first:], ids),
            default_value=tokenizer.unk_token_id,
        )

    def tokenize(self, text: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of text `(B,)`, an int32 `RaggedTensor` `(B, None)`."""
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        text = _in_form(text, self._normalization)
        # No UTF-8 has this byte. What stands between two symbols is in the even places.
        text = tf.strings.regex_replace(text, self._pattern, b"\xff\\0\xff")
        symbols = tf.strings.split(text, b"\xff")[:, 1::2]
        return symbols.with_flat_values(self._table.lookup(symbols.flat_values))

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids `(B, T)`, without pad, start and end tokens."""
        symbols = tf.gather(self._texts, without_ids(token_ids, self._without_text))
        text = tf.strings.reduce_join(symbols, axis=1, separator=self._joiner)
        return text if self._normalization == "identity" else _in_form(text, "nfc")


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


def _prepare(text, normalization):
    """Normalises text as `prepare` of the plain tokenizer does."""
    if normalization is None:
        return text
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    if normalization != "identity":
        text = _in_form(text, normalization)
        return tf.strings.strip(tf.strings.regex_replace(text, WHITE_SPACE, " "))
    return tf.where(text == "", "", tf.strings.join([" ", text]))


def _in_form(text, normalization):
    if normalization == "identity":
        return text
    return _import_tensorflow_text().normalize_utf8(text, normalization.upper())


def _ties_of(vocabulary):
    """Returns, for each id, the number of the text that it repeats, or -1, and its length."""
    tied = tied_pieces(vocabulary)
    numbers = {root: number for number, (root, _) in enumerate(tied.values())}
    ties = [tied.get(piece, ("", 0)) for piece in vocabulary]
    return tf.constant([(numbers.get(root, -1), length) for root, length in ties], tf.int64)


def _sort_ties(token_ids, ties):
    """Sorts neighbours that repeat the same text by their lengths, as `PieceTokenizer` does.

    Args:
        token_ids: int32 `RaggedTensor` `(B, None)`.
        ties: int64 tensor `(V, 2)`, see `_ties_of`.
    """
    values, rows = token_ids.flat_values, token_ids.value_rowids()
    root, length = tf.unstack(tf.gather(ties, values), axis=1)
    goes_on = (root[1:] == root[:-1]) & (rows[1:] == rows[:-1]) & (root[1:] >= 0)
    run = tf.cumsum(tf.concat([rows[:1] * 0, 1 - tf.cast(goes_on, tf.int64)], axis=0))
    order = tf.argsort(run * (1 + tf.reduce_max(ties[:, 1])) + length, stable=True)
    return token_ids.with_flat_values(tf.gather(values, order))


def _import_tensorflow_text():
    requirement = "tensorflow-text, of TensorFlow's version (Linux and macOS; on Windows use WSL2)"
    return import_extra(["tensorflow_text"], "A tokenizer in a TensorFlow graph needs", requirement)


def without_ids(token_ids, left_out):
    """Returns token ids as int32, as a `RaggedTensor` without some ids."""
    token_ids = ints_of(token_ids)
    is_kept = functools.reduce(operator.and_, [token_ids != each for each in left_out])
    return tf.ragged.boolean_mask(token_ids, is_kept)


def ints_of(token_ids):
    """Returns token ids as an int32 tensor, or a `RaggedTensor` of nested lists."""
    if isinstance(token_ids, list | tuple):
        return tf.ragged.constant(token_ids, tf.int32)
    return tf.cast(token_ids, tf.int32)


def append_token(token_ids: tf.RaggedTensor, token_id: int) -> tf.RaggedTensor:
    """Returns ragged rows with one more token at their ends."""
    column = tf.fill([token_ids.nrows(tf.int32), 1], tf.constant(token_id, token_ids.dtype))
    return tf.concat([token_ids, column], axis=1)
