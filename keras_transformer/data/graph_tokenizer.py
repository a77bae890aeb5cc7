"""Tokenizers inside TensorFlow graphs: what a SavedModel contains. `Tokenizer.graph` makes them.

They give the ids and texts of the plain tokenizers, for tensors of strings.
"""

import functools
import hashlib
import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.data.pieces import SPACE_SYMBOL, SentencePieces, SymbolPieces, tied_pieces
from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.texts import import_extra

# The white space of Python's `str.split()`, and the space symbol.
WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\p{Z}\x{2581}]+"
# Both find the tag of a language at the beginning of a text, up to the first "<<". The first
# matches the tag alone, the second the whole text: its group is the tag, or empty.
_TAG, _TAG_AND_TEXT = r"(?s)^>>.*?<<", r"(?s)^(>>.*?<<)?.*$"


class GraphTokenizer(tf.Module):
    """A `Tokenizer` for graphs.

    All methods give the same values and types eagerly and inside a `tf.function`. Bytes that are
    not UTF-8 become U+FFFD.

    Args:
        pieces, vocabulary, tag: as for `Tokenizer`.

    Raises:
        ImportError: if tensorflow-text is needed and missing (it has no build for Windows).
    """

    def __init__(self, pieces: Any, vocabulary: Vocabulary, tag: str | None) -> None:
        super().__init__(name="tokenizer")
        self._tokens = tf.constant(vocabulary.tokens)
        if isinstance(pieces, SentencePieces):
            pieces = GraphSentencePieces(pieces, vocabulary, self._tokens)
        elif isinstance(pieces, SymbolPieces):
            pieces = GraphSymbolPieces(pieces)
        self._pieces = pieces
        self._tag = None if tag is None else vocabulary.ids[tag]
        self._without_text = vocabulary.ids_without_text

    def tokenize(self, text: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of text.

        Args:
            text: string tensor `(B,)`, or list of strings.

        Returns:
            int32 `RaggedTensor` `(B, None)`. An empty text has no tokens.
        """
        token_ids = self._pieces.tokenize(tf.convert_to_tensor(text, tf.string))
        if self._tag is None:
            return token_ids
        has_tag = tf.cast(token_ids.row_lengths() > 0, tf.int64)
        tags = tf.fill([tf.reduce_sum(has_tag)], self._tag)
        return tf.concat([tf.RaggedTensor.from_row_lengths(tags, has_tag), token_ids], axis=1)

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int `RaggedTensor`, padded tensor or nested list `(B, T)`.

        Returns:
            string tensor `(B,)`. Incomplete UTF-8 sequences (a translation can end inside a
            character) become U+FFFD.
        """
        return self._pieces.detokenize(_without_ids(token_ids, self._without_text))

    def tokens(
        self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns tokens as strings, such as `▁cat`, `s`, `<0xC3>` or `</s>`.

        Args:
            token_ids: int tensor, `RaggedTensor` or nested list of any shape.

        Returns:
            string tensor or `RaggedTensor` of the same shape.
        """
        return tf.gather(self._tokens, ints_of(token_ids))


class GraphSentencePieces(tf.Module):
    """`SentencePieces` for graphs, with the ids of a vocabulary.

    Memory: if texts may begin with tags, a hash table of the pieces, some 13 MB for 58,101 of them.

    Args:
        pieces: `SentencePieces`.
        vocabulary: `Vocabulary`.
        tokens: its tokens, a string tensor `(V,)`.
    """

    def __init__(self, pieces: SentencePieces, vocabulary: Vocabulary, tokens: tf.Tensor) -> None:
        super().__init__(name="pieces")
        self._normalization, self._reads_tags = pieces.normalization, pieces.reads_tags
        self._has_other_pieces = pieces.rules["has_other_pieces"]
        self._dropped = [vocabulary.ids[piece] for piece in pieces.rules["dropped_pieces"]]
        self._tokens = tokens
        # With tags, SentencePiece gives strings, and a table maps them to ids: the vocabulary also
        # has pieces of the other side's model, which have no number in this model.
        self._ids: Any = None
        if pieces.reads_tags:
            ids = tf.range(len(vocabulary.tokens))
            self._table = _table(self._tokens, ids, vocabulary.unk_token_id)
        else:
            ids = pieces.ids_by_number(vocabulary.text_ids, vocabulary.unk_token_id)
            self._ids = None if ids is None else tf.constant(ids)
        self._ties = _ties_of(vocabulary.tokens) if pieces.rules["sorts_ties"] else None
        out_type = tf.string if pieces.reads_tags else tf.int32
        self._sentencepiece = _sentencepiece(pieces.model_bytes, out_type)
        self._reader = self._sentencepiece
        if pieces.read_bytes != pieces.model_bytes:  # texts are read without the added pieces
            self._reader = _sentencepiece(pieces.read_bytes, out_type)
        spec = read_model(pieces.model_bytes)[1].normalizer_spec
        self._keeps_spaces = spec.add_dummy_prefix and not spec.remove_extra_whitespaces

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of text `(B,)`, an int32 `RaggedTensor` `(B, None)`."""
        text = _prepare(text, self._normalization)
        token_ids = self._ids_of_tagged(text) if self._reads_tags else self._ids_of_text(text)
        return token_ids if self._ties is None else _sort_ties(token_ids, self._ties)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the text of token ids, a string tensor `(B,)`."""
        if self._dropped:
            token_ids = _without_ids(token_ids, self._dropped)
        pieces = tf.gather(self._tokens, token_ids)
        if self._keeps_spaces:
            text = self._keep_spaces(pieces)
        else:
            text = self._sentencepiece.detokenize(pieces)
        if self._normalization == "identity":  # remove the space that `_prepare` added
            return tf.strings.regex_replace(text, "^ ", "", replace_global=False)
        if self._has_other_pieces:  # SentencePiece leaves the space symbol of unknown pieces
            text = tf.strings.regex_replace(text, SPACE_SYMBOL, " ")
            return tf.strings.regex_replace(text, f"^{WHITE_SPACE}|{WHITE_SPACE}$", "")
        return text

    def _keep_spaces(self, pieces):
        """Detokenizes, and removes one leading space.

        tensorflow-text removes all leading spaces of a text, so it gets a full stop in front.
        """
        first = pieces[:, :1]
        first = first.with_values(tf.strings.regex_replace(first.values, "^" + SPACE_SYMBOL, ""))
        stop = tf.fill([pieces.nrows(), 1], ".")
        text = self._sentencepiece.detokenize(tf.concat([stop, first, pieces[:, 1:]], axis=1))
        return tf.strings.regex_replace(text, r"^\.", "")

    def _ids_of_text(self, text):
        numbers = self._reader.tokenize(text)
        return numbers if self._ids is None else tf.gather(self._ids, numbers)

    def _ids_of_tagged(self, text):
        is_tagged = tf.strings.regex_full_match(text, _TAG + ".*")
        tag = tf.strings.regex_replace(text, _TAG_AND_TEXT, r"\1")
        tags = tf.ragged.boolean_mask(tag[:, None], is_tagged[:, None])
        pieces = self._reader.tokenize(tf.strings.regex_replace(text, _TAG, ""))
        pieces = tf.concat([tags, pieces], axis=1)
        return pieces.with_flat_values(self._table.lookup(pieces.flat_values))


class GraphSymbolPieces(tf.Module):
    """`SymbolPieces` for graphs. Only normalising needs tensorflow-text.

    Args:
        pieces: `SymbolPieces`.
    """

    def __init__(self, pieces: SymbolPieces) -> None:
        super().__init__(name="pieces")
        self._normalization = pieces.normalization
        self._pattern, self._joiner = pieces.pattern, pieces.joiner
        self._texts, first = tf.constant(pieces.symbols), len(pieces.special)
        ids = tf.range(first, len(pieces.symbols))
        self._table = _table(self._texts[first:], ids, pieces.special.index("<unk>"))

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of text `(B,)`, an int32 `RaggedTensor` `(B, None)`."""
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        text = _in_form(text, self._normalization)
        # No UTF-8 has this byte. After the split, symbols have odd indices, other text even ones.
        text = tf.strings.regex_replace(text, self._pattern, b"\xff\\0\xff")
        symbols = tf.strings.split(text, b"\xff")[:, 1::2]
        return symbols.with_flat_values(self._table.lookup(symbols.flat_values))

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the text of token ids, a string tensor `(B,)`."""
        symbols = tf.gather(self._texts, token_ids)
        text = tf.strings.reduce_join(symbols, axis=1, separator=self._joiner)
        return text if self._normalization == "identity" else _in_form(text, "nfc")


def _sentencepiece(model, out_type):
    """Returns the tokenizer of a SentencePiece model."""
    tokenizer = _import_tensorflow_text().SentencepieceTokenizer(model=model, out_type=out_type)
    tokenizer._model_resource = _NamedModelResource(model)
    return tokenizer


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


def _table(texts, ids, unknown):
    """Returns a hash table from texts to their ids; `unknown` is the id of other texts."""
    pairs = tf.lookup.KeyValueTensorInitializer(texts, ids)
    return tf.lookup.StaticHashTable(pairs, default_value=unknown)


def _ties_of(vocabulary):
    """Returns an int64 tensor `(V, 2)`: a number for the root of each token, and its length.

    They are -1 and 0 for a token without a root, see `tied_pieces`.
    """
    tied = tied_pieces(vocabulary)
    numbers = {root: number for number, (root, _) in enumerate(tied.values())}
    ties = [tied.get(piece, ("", 0)) for piece in vocabulary]
    return tf.constant([(numbers.get(root, -1), length) for root, length in ties], tf.int64)


def _sort_ties(token_ids, ties):
    """Sorts neighbours that repeat the same text by their lengths, as `SentencePieces` does.

    Args:
        token_ids: int32 `RaggedTensor` `(B, None)`.
        ties: int64 tensor `(V, 2)`, see `_ties_of`.
    """
    values, rows = token_ids.flat_values, token_ids.value_rowids()
    root, length = tf.unstack(tf.gather(ties, values), axis=1)
    is_tied = (root[1:] == root[:-1]) & (rows[1:] == rows[:-1]) & (root[1:] >= 0)
    # The number of the run of tied neighbours that each token is in.
    run = tf.cumsum(tf.concat([rows[:1] * 0, 1 - tf.cast(is_tied, tf.int64)], axis=0))
    # Orders by run, then by length: the factor of the run is larger than any length.
    order = tf.argsort(run * (1 + tf.reduce_max(ties[:, 1])) + length, stable=True)
    return token_ids.with_flat_values(tf.gather(values, order))


def _import_tensorflow_text():
    requirement = "tensorflow-text, of TensorFlow's version (Linux and macOS; on Windows use WSL2)"
    return import_extra(["tensorflow_text"], "A tokenizer in a TensorFlow graph needs", requirement)


def _without_ids(token_ids, dropped_ids):
    """Returns token ids without some of them, as an int32 `RaggedTensor`."""
    token_ids = ints_of(token_ids)
    is_kept = functools.reduce(operator.and_, [token_ids != token_id for token_id in dropped_ids])
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
