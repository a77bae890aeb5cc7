"""`BaseTokenizer`: what the tokenizers of this package share. Pieces <-> token ids."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer_like import SPECIAL_TOKENS
from keras_transformer.texts import check_line, checked_lines, require_texts

SPECIAL = (*SPECIAL_TOKENS, "unk_token_id")


class BaseTokenizer:
    """Base class of all tokenizers of this package.

    A subclass sets the attributes. Without `_pieces` and what follows it, it has methods `_encode`
    and `_decode`.

    Attributes:
        pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens.
        vocabulary: list of the tokens in the order of their ids.
        vocabulary_size: number of token ids.
        normalization: the rule by which texts are read; `None`: another one.
        ids: the token ids, in the order of the ids that `_pieces` gives.
        _pieces: `PieceTokenizer` or `SymbolPieces`: text <-> pieces.
        rules: the arguments of `_pieces`, plain values for JSON; `None` without `_pieces`.
        model_bytes: the SentencePiece model, as in its file.
        tag: the first token of every text that is not empty; of a `Tokenizer` only.
    """

    pad_token_id: int
    start_token_id: int
    end_token_id: int
    unk_token_id: int
    vocabulary: list[str]
    vocabulary_size: int
    normalization: str | None = None
    ids: Any
    _pieces: Any
    rules: dict[str, Any] | None = None
    model_bytes = b""
    tag: str | None = None
    _graph_class: str

    def encode(self, texts: Any, add_start: bool = False, add_end: bool = False) -> Any:
        """Returns the token ids of texts.

        Args:
            texts: list of strings, or one string.
            add_start: prepend `start_token_id` to each row.
            add_end: append `end_token_id` to each row.

        Returns:
            list of lists of int; for one string, a list of int. An empty text has no tokens.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if UTF-8 cannot encode a text.
        """
        if isinstance(texts, str):
            return self.encode([texts], add_start, add_end)[0]
        rows = self._encode(checked_lines(texts, "texts"))
        start, end = [self.start_token_id] * add_start, [self.end_token_id] * add_end
        return [[*start, *row, *end] for row in rows]

    def decode(self, rows: Any) -> Any:
        """Returns the texts of token ids, without pad, start and end tokens.

        Args:
            rows: lists or arrays of ints, or a padded int array `(B, T)`; or the ids of one text.
                `[]` is no rows.

        Returns:
            list of strings; for one text, a string. Incomplete UTF-8 sequences (a translation can
            end inside a character) become U+FFFD.
        """
        rows = [np.asarray(row).tolist() for row in rows]
        if rows and not isinstance(rows[0], list):
            return self.decode([rows])[0]
        return self._decode(rows) if rows else []

    @functools.cached_property
    def graph(self) -> Any:
        """The same tokenizer for TensorFlow graphs, a `tf.Module`; see `TokenizerLike`.

        Raises an `ImportError` if TensorFlow or tensorflow-text is missing.
        """
        from keras_transformer.data import graph_tokenizer

        return getattr(graph_tokenizer, self._graph_class)(self)

    def fingerprint(self) -> str | None:
        """Hash of all that decides the ids of a text; `None` if the class cannot tell.

        A subclass may encode differently. Override the method there, and change its result with
        what the class does.
        """
        is_ours = type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
        if not is_ours or self.rules is None:
            return None
        special = [getattr(self, name) for name in SPECIAL]
        facts = repr((type(self).__name__, self.vocabulary, special, self.rules))
        return hashlib.sha256(self.model_bytes + facts.encode()).hexdigest()

    def _encode(self, texts):
        rows, ids = self._pieces.encode_ids(texts), self.ids
        return [[ids[i] for i in row] for row in rows]

    def _decode(self, rows):
        of_ids = self._pieces_of_ids
        try:
            return self._pieces.decode([[p for i in row for p in of_ids[i]] for row in rows])
        except KeyError as error:
            raise ValueError(
                f"`rows` must hold ids from 0 to {self.vocabulary_size - 1}, `vocabulary_size - 1`."
                f" Received: {error.args[0]}"
            ) from None

    @functools.cached_property
    def _pieces_of_ids(self):
        """The pieces of each id that have text."""
        special = [getattr(self, name) for name in SPECIAL_TOKENS]
        pieces = {i: (piece,) for i, piece in enumerate(self.vocabulary)}
        return pieces | dict.fromkeys(special, ())

    def __getstate__(self):
        """For `pickle` and `copy`: the tables of a TensorFlow graph are made anew."""
        return {name: value for name, value in vars(self).items() if name != "graph"}

    def __repr__(self):
        size, rule = self.vocabulary_size, self.normalization
        return f"{type(self).__name__}(vocabulary_size={size}, normalization={rule!r})"


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Raises a `ValueError` if a value is none of the choices."""
    if value not in choices:
        raise ValueError(f"`{argument}` must be one of {choices}. Received: {argument}={value!r}")


def training_lines(lines: Iterable[str], read: Callable[[str], Any]) -> Iterator[Any]:
    """Yields what `read` makes of lines to train a vocabulary on, where it is not empty.

    Raises:
        TypeError: if `lines` is not an iterable of strings.
        ValueError: if UTF-8 cannot encode a line, or all are empty.
    """
    require_texts(lines, "lines", "To train on files: `Tokenizer.train(files, ...)`")
    is_empty = True
    for number, line in enumerate(lines, 1):
        check_line(line, "lines", number)
        if found := read(line):
            is_empty = False
            yield found
    if is_empty:
        raise ValueError(f"There must be a line of text to train on. Received: {lines!r}")
