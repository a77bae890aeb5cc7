"""`MarianTokenizer`: the tokenizer of one side of a Marian model, such as OPUS-MT's."""

import json
import pathlib
import re
import reprlib
from collections.abc import Mapping

from keras_transformer.atomic_file import write_text
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.types import Path

SPECIAL_PIECES = ("</s>", "<unk>", "<pad>")


def checked_vocabulary(vocabulary, source):
    """Returns the vocabulary; raises unless it maps each piece to an id of 0, 1, 2, ..."""
    is_valid = isinstance(vocabulary, Mapping) and all(
        isinstance(piece, str) and type(i) is int for piece, i in vocabulary.items()
    )
    if not is_valid or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError(
            f"{source} must map each piece to its id, and the ids must be 0, 1, 2, ... Received: "
            f"{reprlib.repr(vocabulary)}"
        )
    if halves := [piece for piece in vocabulary if re.search("[\ud800-\udfff]", piece)]:
        raise ValueError(f"{source} must hold whole characters. Received: {halves[0]!r}")
    if missing := [piece for piece in SPECIAL_PIECES if piece not in vocabulary]:
        raise ValueError(f"{source} must have the pieces {', '.join(missing)}.")
    return vocabulary


def vocabulary_file(model: Path) -> pathlib.Path:
    """Returns the path of the vocabulary that belongs to a SentencePiece model."""
    return pathlib.Path(model).with_suffix(".vocabulary.json")


def is_tag_piece(piece):
    return piece.startswith(">>") and piece.endswith("<<")


class MarianTokenizer(SentencePieceTokenizer):
    """The tokenizer of one side of a Marian model, such as OPUS-MT's.

    The pieces are those of a SentencePiece model; the ids are those of a vocabulary, which both
    sides may share. Pieces that are not in it become the unknown token. A text may begin with the
    tag of a language, `>>fra<<`, which becomes one token. Decoding leaves out unknown tokens,
    as `transformers.MarianTokenizer` does with `skip_special_tokens=True`.

    The decoder of these models starts with padding, so `start_token_id` is `pad_token_id`. The
    texts `</s>`, `<unk>` and `<pad>` are ordinary text; `transformers.MarianTokenizer` makes
    special tokens of them.

    Args:
        model: path of the SentencePiece model of this side, or its bytes.
        vocabulary: `{piece: id}`, with `</s>`, `<unk>` and `<pad>`.

    Attributes:
        vocabulary_size, pad_token_id, start_token_id, end_token_id, unk_token_id, vocabulary,
            model_bytes: as in `SentencePieceTokenizer`.
        languages: list of the codes that have a tag in the vocabulary.

    Raises:
        FileNotFoundError, ValueError: as `SentencePieceTokenizer`.

    Example:

    >>> lines = ["a cat", "a mat"]
    >>> model = keras_transformer.Tokenizer.train_on_lines(lines, 265, "cats.model").model_bytes
    >>> pieces = ["</s>", "<unk>", "\u2581", "a", ">>fra<<", "<pad>"]
    >>> tokenizer = MarianTokenizer(model, {piece: i for i, piece in enumerate(pieces)})
    >>> tokenizer.languages, tokenizer.encode([">>fra<< a"])
    (['fra'], [[4, 2, 3]])

    Reference:
        [Tiedemann and Thottingal, 2020](https://aclanthology.org/2020.eamt-1.61), OPUS-MT.
    """

    _is_marian = True
    _graph_class = "GraphMarianTokenizer"

    def __init__(self, model: Path | bytes, vocabulary: Mapping[str, int]) -> None:
        checked_vocabulary(vocabulary, "`vocabulary`")
        super().__init__(
            model,
            pad_token_id=vocabulary["<pad>"],
            start_token_id=vocabulary["<pad>"],
            end_token_id=vocabulary["</s>"],
            unk_token_id=vocabulary["<unk>"],
            vocabulary=vocabulary,
        )
        tags = sorted(filter(is_tag_piece, vocabulary))
        self.languages = [tag[2:-2] for tag in tags]
        self.tag_ids = [vocabulary[tag] for tag in tags]

    @classmethod
    def load(cls, model: Path) -> "MarianTokenizer":
        """Returns the tokenizer of the files that `save` wrote.

        Args:
            model: path of the SentencePiece model.
        """
        path = vocabulary_file(model)
        try:
            pieces = json.loads(path.read_text("utf-8"), strict=False)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        return cls(model, checked_vocabulary(pieces, path))

    def save(self, path: Path) -> None:
        """Writes the SentencePiece model to `path`, and the vocabulary beside it.

        That of `source.model` is `source.vocabulary.json`.
        """
        super().save(path)
        write_text(vocabulary_file(path), json.dumps(self._given, ensure_ascii=False))

    def _encode(self, texts):
        # Strings, not ids: a piece that only the other side's model has is in the vocabulary too.
        rows, unk = self._pieces.encode(texts), self.unk_token_id
        return [[self._given.get(piece, unk) for piece in row] for row in rows]
