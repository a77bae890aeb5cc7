"""`KerasHubTokenizer`: the tokenizers of KerasHub, with the interface of this package.

KerasHub is not a requirement: only who has one of its tokenizers imports it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.data.sentencepiece_tokenizer import (
    SentencePieceTokenizer,
    ids_of,
    ints_of,
    text_ids_of,
    texts_of,
)
from keras_transformer.data.tokenizer_like import SPACE_SYMBOL


class KerasHubTokenizer(tf.Module):
    """A WordPiece, byte-pair or SentencePiece tokenizer of KerasHub.

    It gives what the tokenizer gives in a `tf.data` pipeline, eagerly too. Special tokens of the
    tokenizer's own packers play no role: the package adds start and end tokens itself.

    Args:
        tokenizer: `keras_hub.tokenizers.WordPieceTokenizer`, `BytePairTokenizer`,
            `SentencePieceTokenizer` or a subclass, such as `keras_hub.models.BertTokenizer`,
            without `sequence_length`.
        pad_token, start_token, end_token: tokens of its vocabulary, such as `"[PAD]"`.

    Attributes:
        vocabulary_size: number of token ids.
        pad_token_id, start_token_id, end_token_id: ids of the special tokens.

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
    >>> token_ids = tokenizer.tokenize(["a cat", "cats"])
    >>> token_ids.to_list()
    [[4, 5], [5, 6]]
    >>> tokenizer.detokenize(token_ids).numpy().tolist()
    [b'a cat', b'cats']
    """

    def __init__(self, tokenizer: Any, *, pad_token: str, start_token: str, end_token: str) -> None:
        super().__init__(name="tokenizer")
        self._kind = _kind_of(tokenizer)
        special = {"pad_token": pad_token, "start_token": start_token, "end_token": end_token}
        # For `pickle` and `copy`. A function, because a `tf.Module` tracks what it has, and the
        # resource of KerasHub's SentencePiece cannot be exported.
        self._made_of = lambda: (functools.partial(type(self), **special), (tokenizer,))
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
        self._reader: Any
        if is_sentencepiece:
            # KerasHub's own is broken by `keras.utils.set_random_seed`.
            self._reader = SentencePieceTokenizer(tokenizer.proto, vocabulary=ids, **special_ids)
        else:
            self._reader = _GraphTokenizer(tokenizer, ids, special.values())

    def tokenize(self, text: tf.Tensor | Sequence[str] | str) -> tf.RaggedTensor | tf.Tensor:
        """Returns the token ids of text.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.

        Returns:
            int32 `RaggedTensor` `(B, None)`; for one string, int32 tensor `(T,)`. An empty text
            has no tokens.
        """
        text = tf.convert_to_tensor(text, tf.string)
        return self.tokenize(text[None])[0] if text.shape.rank == 0 else self._reader.tokenize(text)

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int `RaggedTensor`, padded tensor or nested list `(B, T)`; `(T,)` for one
                text.

        Returns:
            string tensor `(B,)`; for one text, a string scalar. Incomplete UTF-8 sequences become
            U+FFFD.
        """
        token_ids = ints_of(token_ids)
        if token_ids.shape.rank == 1:
            return self.detokenize(token_ids[None])[0]
        text = self._reader.detokenize(text_ids_of(token_ids, self))
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

    def tokens(
        self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns tokens as SentencePiece spells them: `▁cat` begins a word, `s` continues it.

        Args:
            token_ids: int tensor, `RaggedTensor` or nested list of any shape.

        Returns:
            string tensor or `RaggedTensor` of the same shape.
        """
        return self._reader.tokens(token_ids)

    def __reduce__(self):
        return self._made_of()

    def __repr__(self):
        return f"KerasHubTokenizer({self._kind}, vocabulary_size={self.vocabulary_size})"


class _GraphTokenizer(tf.Module):
    """A WordPiece or byte-pair layer, called in graphs only: its eager methods return lists."""

    def __init__(self, layer, ids, special_tokens):
        super().__init__()
        self._layer = layer  # tracked: it holds the tables
        text = tf.TensorSpec([None], tf.string)
        token_ids = tf.RaggedTensorSpec([None, None], tf.int32)
        self._tokenize = tf.function(layer.tokenize, [text], autograph=False)
        self.detokenize = tf.function(layer.detokenize, [token_ids], autograph=False)
        tokens = texts_of(ids, 1 + max(ids.values()))
        if hasattr(layer, "suffix_indicator"):
            suffix = layer.suffix_indicator
            texts = [t[len(suffix) :] if t.startswith(suffix) else SPACE_SYMBOL + t for t in tokens]
        else:
            texts = self._byte_pair_texts(len(tokens))
        for token in special_tokens:
            texts[ids[token]] = token
        self._texts = tf.constant(texts)

    def tokenize(self, text):
        return tf.cast(self._tokenize(text), tf.int32)

    def tokens(self, token_ids):
        return tf.gather(self._texts, ints_of(token_ids))

    def _byte_pair_texts(self, vocabulary_size):
        """Returns tokens as SentencePiece spells them; raises if a byte has no token."""
        contents = self.detokenize(tf.RaggedTensor.from_tensor(tf.range(vocabulary_size)[:, None]))
        contents = contents.numpy().tolist()
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
