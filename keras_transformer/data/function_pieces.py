"""`FunctionPieces`: token ids by two functions of TensorFlow, such as methods of a layer."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.data.tokenizer_file import FUNCTIONS


class FunctionPieces(tf.Module):
    """Text <-> token ids by two functions, in graphs and in plain Python.

    The pieces are the ids themselves. A tokenizer with such pieces cannot be saved.

    Args:
        tokenize: string tensor `(B,)` -> int `RaggedTensor` `(B, None)`.
        detokenize: int32 `RaggedTensor` `(B, None)` -> string tensor `(B,)`.
        tracked: object that holds the tables of the functions, which a SavedModel needs. Optional.
        made_by: function without arguments that makes these pieces again, for `pickle`. Optional.
    """

    kind, joiner, unknown, normalization, model_bytes = FUNCTIONS, " ", None, None, b""
    rules: dict[str, Any] = {}
    reads_tags, added_language = False, None

    def __init__(
        self,
        tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
        detokenize: Callable[[tf.RaggedTensor], tf.Tensor],
        tracked: Any = None,
        made_by: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(name="pieces")
        self._made_by = made_by
        self._tokenize, self._detokenize, self._tracked = tokenize, detokenize, tracked

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of text `(B,)`, an int32 `RaggedTensor` `(B, None)`."""
        return tf.cast(self._tokenize(text), tf.int32)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the text of token ids, a string tensor `(B,)`."""
        text = self._detokenize(token_ids)
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

    def encode_numbers(self, texts: list[str]) -> list[list[int]]:
        """Returns the token ids of texts."""
        return self.tokenize(tf.constant(texts, tf.string)).to_list()

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Returns the texts of rows of token ids."""
        texts = self.detokenize(tf.ragged.constant(rows, tf.int32, ragged_rank=1))
        return [text.decode() for text in texts.numpy()]

    def ids_by_number(self, ids: dict[str, int], unknown: Any) -> None:
        """Returns `None`: the numbers are the token ids already."""

    def normalize(self, text: str) -> str:
        """Returns a text after encoding and decoding."""
        return self.decode(self.encode_numbers([text]))[0]

    def __reduce__(self) -> Any:
        return super().__reduce__() if self._made_by is None else (self._made_by, ())
