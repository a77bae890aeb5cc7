"""Text <-> pieces of a SentencePiece model, or symbols, in plain Python: no TensorFlow, no Keras.

`export_ctranslate2` copies this file into its folder as `folder_tokenizer.py`, so it imports
nothing of this package. A SentencePiece model needs `sentencepiece`; and normalising needs
`unicodedata2` where Python's own Unicode is not version 16.0, otherwise characters that are newer
or older than Python's are not normalised as in training.
"""

import collections
import contextlib
import itertools
import json
import pathlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

SETTINGS_FILE = "tokenizers.json"
# How pieces spell a space.
SPACE_SYMBOL = "\u2581"
NORMALIZATIONS = ("nfc", "nfkc", "identity")
SYMBOL_NORMALIZATIONS = ("nfc", "nfd", "identity")
UNICODE_VERSION = "16.0.0"  # that of tensorflow-text
# The white space of Python's `str.split()`, inside brackets.
SPACES = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# The tag of a language at the beginning of a text, such as `>>fra<<`.
_TAG = re.compile(r">>.*?<<", re.DOTALL)


def _unicode_module() -> Any:
    """Returns the module of Unicode 16.0, or Python's own if there is none."""
    if unicodedata.unidata_version != UNICODE_VERSION:
        with contextlib.suppress(ImportError):
            import unicodedata2

            return unicodedata2
    return unicodedata


UNICODE = _unicode_module()


def normalize(text: str, normalization: str) -> str:
    """Returns a text by a rule of `Tokenizer`: `"nfc"`, `"nfkc"` or `"identity"`."""
    text = _in_form(text, normalization).replace(SPACE_SYMBOL, " ")
    return text if normalization == "identity" else " ".join(text.split())


def prepare(text: str, normalization: str | None) -> str:
    """Returns what SentencePiece must read of a text, so that `decode` can restore it."""
    if normalization is None:  # the SentencePiece model does it
        return text
    text = normalize(text, normalization)
    # A leading space makes a word the same token at the start of a line and inside it. When
    # decoding, SentencePiece strips all leading spaces, so we add and remove exactly one ourselves.
    return f" {text}" if text and normalization == "identity" else text


def tied_pieces(pieces: Iterable[str]) -> dict[Any, tuple[str, int]]:
    """Returns the root and the length of each piece that repeats the same text as another one.

    `..` and `...` repeat `.`: they are its root, and both of their orders are the same text.
    """
    of_root = collections.defaultdict(list)
    for piece in filter(None, pieces):
        of_root[piece[: (piece + piece).find(piece, 1)]].append(piece)
    tied = {root: each for root, each in of_root.items() if len(each) > 1}
    return {piece: (root, len(piece)) for root, each in tied.items() for piece in each}


class PieceTokenizer:
    """The pieces of a SentencePiece model, by the rules of one of our tokenizers.

    Args:
        model: bytes of a SentencePiece model.
        normalization: the rule of a `Tokenizer`, see `normalize`. `None`: that of the model.
        has_tags: whether a text may begin with the tag of a language, which is one piece.
        has_other_pieces: whether `decode` gets pieces that the model does not have.
        dropped_pieces: pieces that have no text.
        sorts_ties: whether `encode` puts neighbours that repeat the same text into the order of
            their lengths. In a unigram model `..` `...` has the score of `...` `..`, and versions
            of SentencePiece choose differently, by how they round.
        tag: the first piece of every text that is not empty, one of the model. Optional.

    Raises:
        ImportError: if `sentencepiece` is not installed.
    """

    def __init__(
        self,
        model: bytes,
        normalization: str | None,
        has_tags: bool,
        has_other_pieces: bool,
        dropped_pieces: Iterable[str],
        sorts_ties: bool,
        tag: str | None = None,
    ) -> None:
        import sentencepiece

        self._normalization = normalization
        self._has_tags, self._has_other_pieces = has_tags, has_other_pieces
        self.dropped = frozenset(dropped_pieces)
        # By default each call starts and ends a thread for each core, also for a few short texts.
        made = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)
        self._processor = made
        self.tag = tag
        self._first = [] if tag is None else [self._processor.piece_to_id(tag)]
        # By piece and by id.
        self._tied = {}
        if sorts_ties:
            pieces = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
            self._tied = tied_pieces(pieces)
            self._tied |= {i: self._tied[p] for i, p in enumerate(pieces) if p in self._tied}

    def encode_ids(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids that the SentencePiece model gives the pieces of texts without tags."""
        prepared = [prepare(text, self._normalization) for text in texts]
        rows = self._sort_ties(self._processor.encode(prepared, out_type=int))
        return [[*self._first, *row] if row else row for row in rows] if self._first else rows

    def encode(self, texts: list[str]) -> list[list[str]]:
        """Returns the pieces of texts, without end tokens. An empty text has none."""
        if not self._has_tags:
            return [self._processor.id_to_piece(row) for row in self.encode_ids(texts)]
        tags = [_TAG.match(text) for text in texts]
        rest = [text[tag.end() :] if tag else text for tag, text in zip(tags, texts, strict=True)]
        rows = self._sort_ties(self._processor.encode(rest, out_type=str))
        return [[tag[0], *row] if tag else row for tag, row in zip(tags, rows, strict=True)]

    def decode(self, rows: list[list[str]]) -> list[str]:
        """Returns the texts of lists of pieces."""
        rows = [[piece for piece in row if piece not in self.dropped] for row in rows]
        # SentencePiece 0.2.0 looks at the first row only to see what rows are.
        texts = iter(self._processor.decode([row for row in rows if row]))
        return [self._restore(next(texts)) if row else "" for row in rows]

    def _sort_ties(self, rows):
        tied, alone = self._tied, ("", 0)
        for number, row in enumerate(rows):
            if not tied.keys().isdisjoint(row):
                runs = itertools.groupby(row, lambda each: tied.get(each, alone)[0])
                runs = (sorted(run, key=lambda each: tied.get(each, alone)[1]) for _, run in runs)
                rows[number] = [each for run in runs for each in run]
        return rows

    def _restore(self, text):
        if self._normalization == "identity":
            return text.removeprefix(" ")
        if self._has_other_pieces:  # SentencePiece leaves their symbols of spaces
            return text.replace(SPACE_SYMBOL, " ").strip()
        return text


class SymbolPieces:
    """Symbols of texts: characters, or words between white space. Others are `<unk>`.

    Args:
        kind: `"characters"`: a symbol is the longest of `symbols` that the text goes on with, else
            a code point; or `"words"`: a symbol is what stands between white space.
        normalization: `"nfc"` or `"nfd"`, by which texts are read; `"identity"`: as they are.
        symbols: those that are known, in the order of their ids, which begin behind special tokens.

    Attributes:
        pattern: expression of one symbol, for Python and RE2.
        joiner: what stands between symbols.
        vocabulary: the names of all pieces, in the order of their ids. A symbol that is spelled
            like a special token has a space behind it.
    """

    special = "<pad>", "<s>", "</s>", "<unk>"
    tag, dropped = None, frozenset(special[:3])

    def __init__(self, kind: str, normalization: str, symbols: Iterable[str]) -> None:
        self._normalization, symbols = normalization, list(symbols)
        self.joiner = " " if kind == "words" else ""
        self.pattern = f"[^{SPACES}]+" if kind == "words" else any_of(symbols, ".")
        self._find = re.compile(self.pattern).findall
        names = [symbol + " " * (symbol in self.special) for symbol in symbols]
        self.vocabulary = [*self.special, *names]
        self._ids = {symbol: i for i, symbol in enumerate(symbols, len(self.special))}
        self._texts = dict(zip(names, symbols, strict=True)) | {"<unk>": "<unk>"}

    def split(self, text: str) -> list[str]:
        """Returns the symbols of a text, known or not."""
        return self._find(_in_form(text, self._normalization))

    def restore(self, symbols: Iterable[str]) -> str:
        """Returns the text of symbols."""
        text = self.joiner.join(symbols)
        return text if self._normalization == "identity" else _in_form(text, "nfc")

    def unknown(self, texts: Iterable[str]) -> "collections.Counter[str]":
        """Counts the symbols of texts that are not known."""
        symbols = (symbol for text in texts for symbol in self.split(text))
        return collections.Counter(symbol for symbol in symbols if symbol not in self._ids)

    def encode_ids(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of the symbols of texts."""
        ids, unk = self._ids, self.special.index("<unk>")
        return [[ids.get(symbol, unk) for symbol in self.split(text)] for text in texts]

    def encode(self, texts: list[str]) -> list[list[str]]:
        """Returns the pieces of texts, as `PieceTokenizer` does."""
        return [[self.vocabulary[i] for i in row] for row in self.encode_ids(texts)]

    def decode(self, rows: list[list[str]]) -> list[str]:
        """Returns the texts of lists of pieces."""
        texts, dropped = self._texts, self.dropped
        return [self.restore(texts[p] for p in row if p not in dropped) for row in rows]


def any_of(symbols: Iterable[str], one: str) -> str:
    """Returns the expression of the longest of some symbols, or else of `one`."""
    longest = sorted((s for s in symbols if len(s) > 1), key=len, reverse=True)
    return "(?s)" + "|".join([*map(re.escape, longest), one])


def _in_form(text, normalization):
    is_same = normalization == "identity" or text.isascii()
    return text if is_same else UNICODE.normalize(normalization.upper(), text)


class FolderTokenizer:
    """The tokenizer of one side of an exported model: the pieces that its model was trained with.

    Args:
        folder: path of the folder.
        side: `"source"` or `"target"`.

    Raises:
        ImportError: if `sentencepiece` is not installed, and needed.
        OSError: if the folder does not have the tokenizer.
    """

    def __init__(self, folder: "str | pathlib.Path", side: str) -> None:
        folder = pathlib.Path(folder)
        rules = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))[side]
        model = folder / f"{side}.spm"
        if "symbols" in rules:
            self.pieces: Any = SymbolPieces(**rules)
        else:
            self.pieces = PieceTokenizer(model.read_bytes(), **rules)

    def encode(self, texts: Any) -> Any:
        """Returns the pieces of a text or of a list of texts, without end tokens."""
        is_one = isinstance(texts, str)
        return self.pieces.encode([texts])[0] if is_one else self.pieces.encode(texts)

    def decode(self, rows: Any) -> Any:
        """Returns the text of a list of pieces, which may be empty; or texts of a list of lists."""
        is_one = not rows or isinstance(rows[0], str)
        return self.pieces.decode([rows])[0] if is_one else self.pieces.decode(rows)
