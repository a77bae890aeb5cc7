"""`TokenizerLike`: the interface of every tokenizer, and the checks of what a user passes.

The package uses tokenizers only through this interface, so any object that has it can take the
place of `Tokenizer`.
"""

from typing import Any, Protocol

import tensorflow as tf

from keras_transformer.types import Tensor

# How `tokens` spells a space, as SentencePiece does.
SPACE_SYMBOL = "\u2581"
SPECIAL_TOKENS = ("pad_token_id", "start_token_id", "end_token_id")
METHODS = ("tokenize", "detokenize", "tokens")


class TokenizerLike(Protocol):
    """What `make_dataset`, `Translator` and `export_saved_model` need of a tokenizer.

    `Tokenizer`, `SentencePieceTokenizer` and `KerasHubTokenizer` have it. A class of your own needs
    these members and no base class. To be exported, it must be a `tf.Module`, so that the
    SavedModel contains its tables. The methods of a `tf.Module` must consist of TensorFlow
    operations: they are traced.

    Attributes:
        vocabulary_size: int, number of token ids. The ids are 0 to `vocabulary_size - 1`.
        pad_token_id: int, fills the rows of a batch.
        start_token_id: int, the first token that the decoder reads.
        end_token_id: int, the last token of every sentence.

    `tokenize` must return none of the three special ids.
    """

    vocabulary_size: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int

    def tokenize(self, text: tf.Tensor, /) -> tf.RaggedTensor:
        """Returns the token ids of text, without start and end tokens.

        Args:
            text: string tensor `(B,)`.

        Returns:
            int32 `RaggedTensor` `(B, None)`. An empty text has no tokens.
        """

    def detokenize(self, token_ids: Tensor, /) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int32 tensor `(B, T)`, padded.

        Returns:
            string tensor `(B,)`, valid UTF-8.
        """

    def tokens(self, token_ids: Tensor, /) -> tf.Tensor:
        """Returns tokens as strings, for reports and for the places where long lines are split.

        Args:
            token_ids: int32 tensor of any shape.

        Returns:
            string tensor of the same shape. A token that begins a word begins with U+2581, as in
            `▁cat`; otherwise long lines are split inside words.
        """


def check_tokenizers(
    tokenizer: Any, target_tokenizer: Any | None
) -> tuple[TokenizerLike, TokenizerLike]:
    """Returns the tokenizers of source and target, or raises a `TypeError` if one is none.

    Args:
        tokenizer: `TokenizerLike` of the source.
        target_tokenizer: `TokenizerLike` of the target. Defaults to `tokenizer`.
    """
    if target_tokenizer is None:
        target_tokenizer = tokenizer
    _check("tokenizer", tokenizer)
    _check("target_tokenizer", target_tokenizer)
    return tokenizer, target_tokenizer


def _check(argument, tokenizer):
    missing = [
        f"the integer `{name}`"
        for name in ("vocabulary_size", *SPECIAL_TOKENS)
        if not hasattr(getattr(tokenizer, name, None), "__index__")
    ]
    missing += [f"`{name}()`" for name in METHODS if not callable(getattr(tokenizer, name, None))]
    if missing:
        raise TypeError(
            f"`{argument}` must be a `Tokenizer` or have the members of `TokenizerLike`. Received: "
            f"{type(tokenizer).__name__} without {', '.join(missing)}. Wrap KerasHub's tokenizers "
            "in `KerasHubTokenizer`; load a SentencePiece model as `SentencePieceTokenizer`."
        )


def require_matching_vocabularies(
    config: Any, tokenizer: TokenizerLike, target_tokenizer: TokenizerLike
) -> None:
    """Raises a `ValueError` if a tokenizer's vocabulary size or special tokens are not the model's.

    Args:
        config: `TransformerConfig` of the model.
        tokenizer, target_tokenizer: `TokenizerLike` of the source and of the target.
    """
    sizes = config.source_vocabulary_size, config.vocabulary_size
    tokenizers = tokenizer, target_tokenizer
    for side, each, size in zip(("source", "target"), tokenizers, sizes, strict=True):
        if each.vocabulary_size != size:
            raise ValueError(
                f"The {side} tokenizer must have the {size} tokens of the model's vocabulary. "
                f"Received: a tokenizer of {each.vocabulary_size} tokens"
            )
        for name in SPECIAL_TOKENS:
            expected, received = getattr(config, name), getattr(each, name)
            if expected != received:
                raise ValueError(
                    f"The {side} tokenizer must have the model's `{name}`, {expected}. "
                    f"Received: {received}"
                )


def tokenize(tokenizer: TokenizerLike, text: tf.Tensor) -> tf.RaggedTensor:
    """Returns the token ids of text `(B,)`; raises a `TypeError` if they are of another type."""
    token_ids = tokenizer.tokenize(text)
    if not isinstance(token_ids, tf.RaggedTensor) or token_ids.dtype != tf.int32:
        raise TypeError(
            f"`{type(tokenizer).__name__}.tokenize` must return an int32 `RaggedTensor`. "
            f"Received: {token_ids!r}"
        )
    return token_ids


def append_token(token_ids: tf.RaggedTensor, token_id: int) -> tf.RaggedTensor:
    """Returns ragged rows with one more token at their ends."""
    column = tf.fill([token_ids.nrows(tf.int32), 1], tf.constant(token_id, token_ids.dtype))
    return tf.concat([token_ids, column], axis=1)
