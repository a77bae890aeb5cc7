"""`KerasHubTokenizer`: the tokenizers of KerasHub, with the interface of this package.

Import this module only if KerasHub is installed.
"""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.data.base_tokenizer import BaseTokenizer
from keras_transformer.data.graph_tokenizer import BaseGraphTokenizer, without_ids
from keras_transformer.data.piece_tokenizer import SPACE_SYMBOL
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer, ids_of, texts_of


class KerasHubTokenizer(BaseTokenizer):
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
        ValueError: if a special token is not in the vocabulary, or the tokenizer pads its output or
            returns strings.

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
        kind = _kind_of(tokenizer)
        special = {"pad_token": pad_token, "start_token": start_token, "end_token": end_token}
        self._made_of = functools.partial(type(self), **special), (tokenizer,)
        is_sentencepiece = kind == "SentencePieceTokenizer"
        ids = ids_of(tokenizer.get_vocabulary() if is_sentencepiece else tokenizer.vocabulary)
        for name, token in special.items():
            if token not in ids:
                raise ValueError(
                    f"`{name}` must be a token of the vocabulary. Received: {name}={token!r}"
                )
        special_ids = {f"{name}_id": ids[token] for name, token in special.items()}
        self.vocabulary_size = 1 + max(ids.values())
        self.pad_token_id, self.start_token_id, self.end_token_id = special_ids.values()
        if is_sentencepiece:
            # KerasHub's own is broken by `keras.utils.set_random_seed`.
            made = SentencePieceTokenizer(tokenizer.proto, vocabulary=ids, **special_ids)
            self.vocabulary, self.graph = made.vocabulary, made.graph
            return
        self.vocabulary = _spelled(tokenizer, texts_of(ids, self.vocabulary_size))
        for token in special.values():
            self.vocabulary[ids[token]] = token
        self.graph = _GraphTokenizer(self, tokenizer)

    def _encode(self, texts):
        return self.graph.tokenize(tf.constant(texts, tf.string)).to_list()

    def _decode(self, rows):
        texts = self.graph.detokenize(tf.ragged.constant(rows, tf.int32, ragged_rank=1))
        return [text.decode() for text in texts.numpy()]

    def __reduce__(self):
        return self._made_of


class _GraphTokenizer(BaseGraphTokenizer):
    """A WordPiece or byte-pair layer, called in graphs only: its eager methods return lists."""

    def __init__(self, tokenizer, layer):
        super().__init__(tokenizer)
        self._layer = layer  # tracked: it holds the tables
        text = tf.TensorSpec([None], tf.string)
        token_ids = tf.RaggedTensorSpec([None, None], tf.int32)
        self._tokenize = tf.function(layer.tokenize, [text], autograph=False)
        self._detokenize = tf.function(layer.detokenize, [token_ids], autograph=False)

    def tokenize(self, text):
        return tf.cast(self._tokenize(text), tf.int32)

    def detokenize(self, token_ids):
        text = self._detokenize(without_ids(token_ids, self._without_text))
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def _spelled(layer, tokens):
    """Returns the tokens of a WordPiece or byte-pair layer as SentencePiece spells them."""
    if hasattr(layer, "suffix_indicator"):
        suffix = layer.suffix_indicator
        return [t[len(suffix) :] if t.startswith(suffix) else SPACE_SYMBOL + t for t in tokens]
    ids = tf.RaggedTensor.from_tensor(tf.range(len(tokens))[:, None])
    contents = tf.function(layer.detokenize, autograph=False)(ids).numpy()
    return [_spelled_bytes(content) for content in contents]


def _spelled_bytes(content):
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
