"""Text <-> pieces of a SentencePiece model, or symbols, in plain Python: no TensorFlow, no Keras.

Exports copy this file into their folders as `folder_tokenizer.py`, so it imports nothing of this
package. A SentencePiece model needs `sentencepiece`. Normalising needs `unicodedata2` where the
Unicode of Python is not version 16.0: without it, characters that differ between both versions are
not normalised as in training.
"""

import collections
import contextlib
import functools
import hashlib
import itertools
import json
import pathlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

SUBWORDS, SENTENCEPIECE, MARIAN = SENTENCEPIECE_KINDS = "subwords", "sentencepiece", "marian"
SYMBOL_KINDS = CHARACTERS, WORDS = "characters", "words"
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
    """Returns a text by a rule of `Tokenizer.train`: `"nfc"`, `"nfkc"` or `"identity"`."""
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
    """Returns the root and the length of each piece whose root another piece has too.

    The root is the shortest text whose repetition is the piece: `.` for `..` and `...`. So `..`
    `...` and `...` `..` are the same text.
    """
    pieces_of_root = collections.defaultdict(list)
    for piece in filter(None, pieces):
        root = piece[: (piece + piece).find(piece, 1)]
        pieces_of_root[root].append(piece)
    tied: dict[Any, tuple[str, int]] = {}
    for root, same_root in pieces_of_root.items():
        if len(same_root) > 1:
            tied.update((piece, (root, len(piece))) for piece in same_root)
    return tied


class SentencePieces:
    """Text <-> pieces of a SentencePiece model.

    Args:
        model: bytes of a SentencePiece model.
        kind: `"subwords"`: `Tokenizer.train` made the model; `"marian"`: a text may begin with the
            tag of a language, which is one piece, and `encode` may return pieces that the model
            does not have; `"sentencepiece"`: any other model.
        normalization: the rule of subwords, see `normalize`. `None`: that of the model.
        has_other_pieces: whether `decode` gets pieces that the model does not have.
        dropped_pieces: pieces that `decode` leaves out.
        sorts_ties: whether neighbours that repeat the same text are put into the order of their
            lengths. In a unigram model `..` `...` has the score of `...` `..`, and versions of
            SentencePiece choose differently, because they round differently.
        tag: what `encode` puts before every text that is not empty. Optional.
        added_language: code of the language whose texts are read with the whole model; see
            `for_language`. Optional.
        old_bytes: with `added_language`: the first `old_bytes` bytes of `model` are the model that
            reads all other texts. The bytes behind them add pieces to it.

    Attributes:
        model_bytes: the model.
        rules: the arguments except `model`, `kind` and `tag`, as plain values for JSON.
        read_bytes: the model that reads texts: the whole one, or its first `old_bytes`.
        reads_tags: whether a text may begin with a tag. `encode_numbers` cannot read such texts.
        joiner: what joins the translations of a line's pieces if nothing stood between them.
        unknown: `None`: unknown symbols are not counted.

    Raises:
        ImportError: if `sentencepiece` is not installed.
    """

    joiner, unknown = " ", None

    def __init__(
        self,
        model: bytes,
        kind: str,
        normalization: str | None = None,
        has_other_pieces: bool = False,
        dropped_pieces: Iterable[str] = (),
        sorts_ties: bool = False,
        tag: str | None = None,
        added_language: str | None = None,
        old_bytes: int | None = None,
    ) -> None:
        import sentencepiece

        self.model_bytes, self.kind, self.normalization, self.tag = model, kind, normalization, tag
        self.reads_tags, self._has_other_pieces = kind == MARIAN, has_other_pieces
        dropped = [*dropped_pieces]
        self._dropped = frozenset(dropped)
        self.sorts_ties = sorts_ties
        self.rules: dict[str, Any] = {
            "normalization": normalization,
            "has_other_pieces": has_other_pieces,
            "dropped_pieces": dropped,
            "sorts_ties": sorts_ties,
        }
        self.added_language = added_language
        # By default each call starts and ends a thread for each core, also for a few short texts.
        load = functools.partial(sentencepiece.SentencePieceProcessor, num_threads=1)
        self._whole = self._processor = load(model_proto=model)
        self.read_bytes = model
        if added_language is not None:
            self.rules |= {"added_language": added_language, "old_bytes": old_bytes}
            self.read_bytes = model[:old_bytes]
            self._processor = load(model_proto=self.read_bytes)
        # The root and the length of each tied piece, by its text and by its number.
        self._tied = {}
        if sorts_ties:
            names = self.names()
            self._tied = tied_pieces(names)
            self._tied |= {n: self._tied[p] for n, p in enumerate(names) if p in self._tied}

    def for_language(self, code: str) -> "SentencePieces":
        """Returns the pieces of texts in a language: the same, unless pieces were added for it."""
        if code != self.added_language:
            return self
        added = ("added_language", "old_bytes")
        rules = {name: value for name, value in self.rules.items() if name not in added}
        return SentencePieces(self.model_bytes, self.kind, **rules, tag=self.tag)

    def names(self) -> list[str]:
        """Returns the pieces of the model, in the order of their numbers."""
        return self._whole.id_to_piece(list(range(self._whole.get_piece_size())))

    def ids_by_number(self, ids: dict[str, int], unknown: Any) -> list[int] | None:
        """Returns the id of each piece of the model in a vocabulary, in the order of their numbers.

        `None` if each id is the piece's number.

        Args:
            ids: `{piece: id}` of the vocabulary.
            unknown: id of the pieces that are not in it.
        """
        ids_of_pieces = [ids.get(name, unknown) for name in self.names()]
        ids_of_pieces[self._processor.unk_id()] = unknown
        is_same = ids_of_pieces == list(range(len(ids_of_pieces)))
        return None if is_same else ids_of_pieces

    def encode_numbers(self, texts: list[str]) -> list[list[int]]:
        """Returns the numbers of the pieces of texts without tags. An empty text has none."""
        prepared = [prepare(text, self.normalization) for text in texts]
        return self._sort_ties(self._processor.encode(prepared, out_type=int))

    def encode(self, texts: list[str]) -> list[list[str]]:
        """Returns the pieces of texts, without end tokens. An empty text has none."""
        if self.reads_tags:
            rows = self._encode_tagged(texts)
        else:
            rows = map(self._processor.id_to_piece, self.encode_numbers(texts))
        return _with_tag(self.tag, rows)

    def _encode_tagged(self, texts):
        """Returns the pieces of texts that may begin with the tag of a language."""
        tags = [_TAG.match(text) for text in texts]
        untagged = [
            text[tag.end() :] if tag else text for tag, text in zip(tags, texts, strict=True)
        ]
        rows = self._sort_ties(self._processor.encode(untagged, out_type=str))
        return [[tag[0], *row] if tag else row for tag, row in zip(tags, rows, strict=True)]

    def decode(self, rows: list[list[str]]) -> list[str]:
        """Returns the texts of lists of pieces."""
        rows = [[piece for piece in row if piece not in self._dropped] for row in rows]
        # Without empty rows: SentencePiece 0.2.0 tells pieces from ids by the first row alone.
        texts = iter(self._whole.decode([row for row in rows if row]))
        return [self._restore(next(texts)) if row else "" for row in rows]

    def normalize(self, text: str) -> str:
        """Returns the text that the model reads; a `ValueError` if `normalization` is `None`."""
        if self.normalization is None:
            raise ValueError(
                "The SentencePiece model normalises texts by its own rule, which this method does "
                f"not know. Received: kind={self.kind!r}"
            )
        return normalize(text, self.normalization)

    def _sort_ties(self, rows):
        """Sorts neighbours with the same root by their lengths, in rows of pieces or of numbers."""
        tied, untied = self._tied, ("", 0)

        def root_of(piece):
            return tied.get(piece, untied)[0]

        def length_of(piece):
            return tied.get(piece, untied)[1]

        for index, row in enumerate(rows):
            if not tied.keys().isdisjoint(row):
                runs = itertools.groupby(row, root_of)
                rows[index] = [p for _, run in runs for p in sorted(run, key=length_of)]
        return rows

    def _restore(self, text):
        if self.normalization == "identity":
            return text.removeprefix(" ")
        if self._has_other_pieces:  # SentencePiece leaves the space symbol in them
            return text.replace(SPACE_SYMBOL, " ").strip()
        return text


class SymbolPieces:
    """Symbols of texts: characters, or words between white space. Others are `<unk>`.

    Args:
        kind: `"characters"`: the next symbol is the longest of `symbols` that the rest of the text
            begins with, else a code point; or `"words"`: a symbol stands between white space.
        normalization: `"nfc"` or `"nfd"`, by which texts are read; `"identity"`: as they are.
        symbols: the known symbols in the order of their numbers, which begin after those of the 4
            special tokens.

    Attributes:
        symbols: list of the texts of all pieces, special tokens included.
        pattern: regular expression of one symbol, for Python and RE2.
        joiner: what stands between symbols.
        rules: the normalization, as a dict for JSON.
        tag: what `encode` puts before every text that is not empty. `None`, but may be set.
        model_bytes: empty.
    """

    special = "<pad>", "<s>", "</s>", "<unk>"
    model_bytes, reads_tags, added_language = b"", False, None
    tag: str | None = None

    def __init__(self, kind: str, normalization: str, symbols: Iterable[str]) -> None:
        self.kind, self.normalization = kind, normalization
        self.rules = {"normalization": normalization}
        self.symbols = [*self.special, *symbols]
        self.joiner = " " if kind == WORDS else ""
        first = len(self.special)
        self.pattern = f"[^{SPACES}]+" if kind == WORDS else any_of(self.symbols[first:], ".")
        self._find = re.compile(self.pattern).findall
        self._numbers = {symbol: n for n, symbol in enumerate(self.symbols[first:], first)}
        # What `decode` writes for each name: for `<unk>`, the last special token, and all symbols.
        self._texts = dict(zip(self.names()[first - 1 :], self.symbols[first - 1 :], strict=True))

    @classmethod
    def of_names(cls, kind: str, names: list[str], normalization: str) -> "SymbolPieces":
        """Returns the pieces that have these `names()`."""
        symbol_of_name = {f"{token} ": token for token in cls.special}
        symbols = (symbol_of_name.get(name, name) for name in names[len(cls.special) :])
        return cls(kind, normalization, symbols)

    def names(self) -> list[str]:
        """Returns the names of all pieces, in the order of their numbers.

        The name of a symbol that is spelled like a special token has a space behind it.
        """
        symbols = self.symbols[len(self.special) :]
        return [*self.special, *(f"{s} " if s in self.special else s for s in symbols)]

    def ids_by_number(self, ids: dict[str, int], unknown: Any) -> None:
        """Returns `None`: the numbers are the ids."""

    def split(self, text: str) -> list[str]:
        """Returns the symbols of a text, known or not."""
        return self._find(_in_form(text, self.normalization))

    def normalize(self, text: str) -> str:
        """Returns the text that `decode` restores if all symbols of this text are known."""
        return self._restore(self.split(text))

    def unknown(self, texts: Iterable[str]) -> "collections.Counter[str]":
        """Counts the symbols of texts that are not known."""
        symbols = (symbol for text in texts for symbol in self.split(text))
        return collections.Counter(symbol for symbol in symbols if symbol not in self._numbers)

    def encode_numbers(self, texts: list[str]) -> list[list[int]]:
        """Returns the numbers of the symbols of texts."""
        numbers, unknown = self._numbers, self.special.index("<unk>")
        return [[numbers.get(symbol, unknown) for symbol in self.split(text)] for text in texts]

    def encode(self, texts: list[str]) -> list[list[str]]:
        """Returns the names of the symbols of texts, as `SentencePieces` does."""
        names = self.names()
        rows = ([names[number] for number in row] for row in self.encode_numbers(texts))
        return _with_tag(self.tag, rows)

    def decode(self, rows: list[list[str]]) -> list[str]:
        """Returns the texts of lists of names."""
        texts, dropped = self._texts, self.special[:3]  # padding, start and end
        return [self._restore(texts[name] for name in row if name not in dropped) for row in rows]

    def _restore(self, symbols):
        text = self.joiner.join(symbols)
        return text if self.normalization == "identity" else _in_form(text, "nfc")


def any_of(symbols: Iterable[str], character: str) -> str:
    """Returns the regular expression of the longest of some symbols, else of one character.

    Args:
        symbols: texts. Those of one character are left out: `character` matches them.
        character: regular expression of any character, such as `"."`.
    """
    longest_first = sorted((s for s in symbols if len(s) > 1), key=len, reverse=True)
    return "(?s)" + "|".join([*map(re.escape, longest_first), character])


def _with_tag(tag, rows):
    """Returns rows of pieces as a list, with a tag, if there is one, before all but empty rows."""
    first = [] if tag is None else [tag]
    return [[*first, *row] if row else row for row in rows]


def _in_form(text, normalization):
    is_same = normalization == "identity" or text.isascii()
    return text if is_same else UNICODE.normalize(normalization.upper(), text)


def load_pieces(path: "str | pathlib.Path") -> Any:
    """Returns the pieces of a tokenizer that `Tokenizer.save` or an export wrote.

    Their `encode` gives the pieces of a list of texts, without end tokens, and `decode` the texts
    of lists of pieces.

    Args:
        path: path of the JSON file; a SentencePiece model is beside it, as `*.spm`.

    Raises:
        ImportError: if `sentencepiece` is not installed, and needed.
        OSError: if a file is missing.
    """
    entries = json.loads(pathlib.Path(path).read_text("utf-8"))
    pieces = pieces_of(entries, path)
    pieces.tag = entries["tag"]
    return pieces


def pieces_of(entries: dict[str, Any], path: "str | pathlib.Path") -> Any:
    """Returns the pieces that the entries of a tokenizer's JSON file describe."""
    kind, rules = entries["kind"], entries["rules"]
    if kind in SYMBOL_KINDS:
        return SymbolPieces.of_names(kind, entries["vocabulary"], **rules)
    if kind not in SENTENCEPIECE_KINDS:
        raise ValueError(f"`kind` must be one that has pieces. Received: kind={kind!r}")
    model = model_file(path).read_bytes()
    if hashlib.sha256(model).hexdigest() != entries["model"]:
        must = f"{model_file(path)} must be the model that was saved with {pathlib.Path(path).name}"
        raise ValueError(f"{must}. It is another one: copy both files together")
    return SentencePieces(model, kind, **rules)


def model_file(path: "str | pathlib.Path") -> pathlib.Path:
    """Returns the path of the SentencePiece model beside the JSON file of a tokenizer."""
    return pathlib.Path(path).with_suffix(".spm")
