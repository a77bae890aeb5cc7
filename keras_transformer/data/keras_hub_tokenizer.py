"""`KerasHubTokenizer`: the tokenizers of KerasHub, with the interface of this package.

KerasHub is not a requirement: only who has one of its tokenizers imports it.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.data.graph_tokenizer import ints_of, without_ids
from keras_transformer.data.piece_tokenizer import SPACE_SYMBOL
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer, ids_of, texts_of
from keras_transformer.texts import checked_lines


class KerasHubTokenizer:
    """A WordPiece, byte-pair or SentencePiece tokenizer of KerasHub.

    It gives what the tokenizer gives in a `tf.data` pipeline. It needs TensorFlow, as KerasHub's
    tokenizers do. Special tokens of the tokenizer's own packers play no role: the package adds
    start and end tokens itself.

    Args:
        tokenizer: `keras_hub.tokenizers.WordPieceTokenizer`, `BytePairTokenizer`,
            `SentencePieceTokenizer` or a subclass, such as `keras_hub.models.BertTokenizer`,
            without `sequence_length`.
        pad_token, start_token, end_token: tokens of its vocabulary, such as `"[PAD]"`.

    Attributes:
        vocabulary_size: number of token ids.
        pad_token_id, start_token_id, end_token_id: ids of the special tokens.
        vocabulary: list of the tokens in the order of their ids, as SentencePiece spells them:
            `▁cat` begins a word, `s` continues it.
        graph: the same tokenizer for TensorFlow graphs, a `tf.Module`; see `TokenizerLike`.

    Raises:
        TypeError: if `tokenizer` is none of the three.
        ValueError: if a special token is not in the vocabulary, the tokenizer pads its output or
            returns strings, or a byte-pair vocabulary lacks a byte.

    Example:

    >>> import keras_hub
    >>> vocabulary = ["[PAD]", "[START]", "[END]", "[UNK]", "a", "cat", "##s"]
    >>> tokenizer = KerasHubTokenizer(
    ...     keras_hub.tokenizers.WordPieceTokenizer(vocabulary),
    ...     pad_token="[PAD]",
    ...     start_token="[START]",
    ...     end_token="[END]",
    ... )
    >>> tokenizer.encode(["a cat", "cats"])
    [[4, 5], [5, 6]]
    >>> tokenizer.decode([[4, 5], [5, 6]])
    ['a cat', 'cats']
    """

    def __init__(self, tokenizer: Any, *, pad_token: str, start_token: str, end_token: str) -> None:
        self._kind = _kind_of(tokenizer)
        special = {"pad_token": pad_token, "start_token": start_token, "end_token": end_token}
        self._made_of = functools.partial(type(self), **special), (tokenizer,)
        is_sentencepiece = self._kind == "SentencePieceTokenizer"
        ids = ids_of(tokenizer.get_vocabulary() if is_sentencepiece else tokenizer.vocabulary)
        for name, token in special.items():
            if token not in ids:
                raise ValueError(
                    f"`{name}` must be a token of the vocabulary. Received: {name}={token!r}"
                )
        special_ids = {f"{name}_id": ids[token] for name, token in special.items()}
        self.vocabulary_size = 1 + max(ids.values())
        self.pad_token_id, self.start_token_id, self.end_token_id = special_ids.values()
        self.graph: Any
        if is_sentencepiece:
            # KerasHub's own is broken by `keras.utils.set_random_seed`.
            made = SentencePieceTokenizer(tokenizer.proto, vocabulary=ids, **special_ids)
            self.graph = made.graph
        else:
            self.graph = _GraphTokenizer(tokenizer, ids, special.values())
        tokens = self.graph.tokens(tf.range(self.vocabulary_size)).numpy()
        self.vocabulary = [token.decode() for token in tokens]

    def encode(self, texts: Any) -> Any:
        """Returns the token ids of texts.

        Args:
            texts: list of strings, or one string.

        Returns:
            list of lists of int; for one string, a list of int. An empty text has no tokens.
        """
        if isinstance(texts, str):
            return self.encode([texts])[0]
        texts = tf.constant(checked_lines(list(texts), "texts"), tf.string)
        return self.graph.tokenize(texts).to_list()

    def decode(self, rows: Any) -> Any:
        """Returns the texts of token ids, without pad, start and end tokens.

        Args:
            rows: lists or arrays of ints, or a padded int array `(B, T)`; or the ids of one text.
                `[]` is no rows.

        Returns:
            list of strings; for one text, a string. Incomplete UTF-8 sequences become U+FFFD.
        """
        rows = [np.asarray(row).tolist() for row in rows]
        if rows and not isinstance(rows[0], list):
            return self.decode([rows])[0]
        texts = self.graph.detokenize(tf.ragged.constant(rows, tf.int32, ragged_rank=1))
        return [text.decode() for text in texts.numpy()]

    def __reduce__(self):
        return self._made_of

    def __repr__(self):
        return f"KerasHubTokenizer({self._kind}, vocabulary_size={self.vocabulary_size})"


class _GraphTokenizer(tf.Module):
    """A WordPiece or byte-pair layer, called in graphs only: its eager methods return lists."""

    def __init__(self, layer, ids, special_tokens):
        super().__init__(name="tokenizer")
        self._layer = layer  # tracked: it holds the tables
        text = tf.TensorSpec([None], tf.string)
        token_ids = tf.RaggedTensorSpec([None, None], tf.int32)
        self._tokenize = tf.function(layer.tokenize, [text], autograph=False)
        self._detokenize = tf.function(layer.detokenize, [token_ids], autograph=False)
        tokens = texts_of(ids, 1 + max(ids.values()))
        if hasattr(layer, "suffix_indicator"):
            suffix = layer.suffix_indicator
            texts = [t[len(suffix) :] if t.startswith(suffix) else SPACE_SYMBOL + t for t in tokens]
        else:
            texts = self._byte_pair_texts(len(tokens))
        for token in special_tokens:
            texts[ids[token]] = token
        self._without_text = tuple(ids[token] for token in special_tokens)
        self._texts = tf.constant(texts)

    def tokenize(self, text):
        return tf.cast(self._tokenize(text), tf.int32)

    def detokenize(self, token_ids):
        text = self._detokenize(without_ids(token_ids, self._without_text))
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

    def tokens(self, token_ids):
        return tf.gather(self._texts, ints_of(token_ids))

    def _byte_pair_texts(self, vocabulary_size):
        """Returns tokens as SentencePiece spells them; raises if a byte has no token."""
        ids = tf.range(vocabulary_size)[:, None]
        contents = self._detokenize(tf.RaggedTensor.from_tensor(ids)).numpy().tolist()
        missing = {bytes([byte]) for byte in range(256)} - set(contents)
        if missing:
            raise ValueError(
                "A byte-pair vocabulary must have a token for each of the 256 bytes, so that every "
                f"text has tokens. Received: a vocabulary without {sorted(missing)[0]!r} and "
                f"{len(missing) - 1} others"
            )
        return [_spelled(content) for content in contents]


def _spelled(content):
    """Returns the bytes of a token as SentencePiece spells them."""
    try:
        return content.decode().replace(" ", SPACE_SYMBOL)
    except UnicodeDecodeError:
        return f"<0x{content[0]:02X}>" if len(content) == 1 else content.decode(errors="replace")


def _kind_of(tokenizer):
    """Returns the name of the class of KerasHub; raises if it is none that can be used."""
    import keras_hub

    kinds = "WordPieceTokenizer", "BytePairTokenizer", "SentencePieceTokenizer"
    found = [kind for kind in kinds if isinstance(tokenizer, getattr(keras_hub.tokenizers, kind))]
    if not found:
        raise TypeError(
            "`tokenizer` must be a WordPiece, byte-pair or SentencePiece tokenizer of KerasHub. "
            f"Received: {tokenizer!r}"
        )
    length, dtype = tokenizer.sequence_length, tokenizer.compute_dtype
    if length is not None or not dtype.startswith("int"):
        raise ValueError(
            "`tokenizer` must return token ids without padding. Received: a tokenizer with "
            f"sequence_length={length}, dtype={dtype!r}"
        )
    return found[0]
