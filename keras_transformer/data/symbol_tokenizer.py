"""Tokenizers of symbols: a token is a character, or what stands between white space."""

import collections
import json
import os
import pathlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Self

import regex

from keras_transformer.atomic_file import write_text
from keras_transformer.data.base_tokenizer import (
    SPECIAL,
    BaseTokenizer,
    check_choice,
    training_lines,
)
from keras_transformer.data.piece_tokenizer import SYMBOL_NORMALIZATIONS, SymbolPieces, any_of
from keras_transformer.texts import checked_lines, shown_symbol
from keras_transformer.types import Path


class SymbolTokenizer(BaseTokenizer):
    """Base class of `CharacterTokenizer` and `WordTokenizer`."""

    kind: str
    _graph_class = "GraphSymbolTokenizer"

    def __init__(self, symbols: Sequence[str], normalization: str = "identity") -> None:
        if isinstance(symbols, str | os.PathLike):
            name = type(self).__name__
            raise TypeError(f"`symbols` must be a list. To read a file: {name}.load({symbols!r})")
        symbols = checked_lines(symbols, "symbols")
        check_choice("normalization", normalization, SYMBOL_NORMALIZATIONS)
        self.normalization = normalization
        self.rules = {"kind": self.kind, "normalization": normalization, "symbols": [*symbols]}
        self._pieces = SymbolPieces(**self.rules)
        self.joiner, self.pattern = self._pieces.joiner, self._pieces.pattern
        self.pad_token_id, self.start_token_id, self.end_token_id, self.unk_token_id = range(4)
        self.vocabulary = self._pieces.vocabulary
        self.vocabulary_size = len(self.vocabulary)
        self.ids = range(self.vocabulary_size)
        counts = collections.Counter(self.vocabulary)
        for name, symbol in zip(self.vocabulary[len(SPECIAL) :], symbols, strict=True):
            if counts[name] > 1 or self._pieces.split(symbol) != [symbol]:
                raise ValueError(
                    "`symbols` must be different, not empty, in the form of `normalization`, and "
                    f"as words without white space. Received: {symbol!r}"
                )

    @classmethod
    def train_on_lines(
        cls,
        lines: Iterable[str],
        path: Path,
        vocabulary_size: int | None = None,
        *,
        normalization: str = "identity",
    ) -> Self:
        """Collects the symbols of lines of text, writes them to `path`, returns the tokenizer.

        Args:
            lines: iterable of strings.
            path: path of the vocabulary file, which is written atomically.
            vocabulary_size: the most tokens, 4 special ones included. If there are more symbols,
                the most frequent ones are kept, and a warning says so. Optional.
            normalization: `"nfc"`, `"nfd"` or `"identity"`.

        Raises:
            TypeError: if `lines` is not an iterable of strings.
            ValueError: if there is no symbol.
        """
        split = cls([], normalization)._pieces.split
        return cls._train(lines, split, path, vocabulary_size, normalization)

    @classmethod
    def _train(cls, lines, split, path, vocabulary_size, normalization):
        counts: collections.Counter[str] = collections.Counter()
        for symbols in training_lines(lines, split):
            counts.update(symbols)
        ordered = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        kept = len(ordered) if vocabulary_size is None else max(1, vocabulary_size - len(SPECIAL))
        if lost := ordered[kept:]:
            number = sum(counts[symbol] for symbol in lost)
            warnings.warn(
                f"{len(lost):,} of {len(ordered):,} symbols have no token and become <unk>, "
                f"{number:,} times in the text: {', '.join(map(shown_symbol, lost[:3]))}. Raise "
                f"`vocabulary_size` (`size`), now {vocabulary_size}.",
                stacklevel=3,
            )
        tokenizer = cls(ordered[:kept], normalization)
        tokenizer.save(path)
        return tokenizer

    @classmethod
    def load(cls, path: Path) -> Self:
        """Returns the tokenizer of a file that `save` wrote, or that was written by hand."""
        try:
            rules = json.loads(pathlib.Path(path).read_text("utf-8-sig"))
            kinds = {each.kind: each for each in (CharacterTokenizer, WordTokenizer)}
            made = kinds[rules.pop("kind")](**rules)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path} must be a vocabulary of symbols: JSON with `kind` (characters or words), "
                f"`normalization` and `symbols`, a list of texts. {error}"
            ) from None
        if not isinstance(made, cls):
            raise ValueError(f"{path} must be of kind {cls.kind}. Received: {made.kind}")
        return made

    def save(self, path: Path) -> None:
        """Writes the vocabulary atomically as JSON that `load` reads. Creates missing folders."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.rules, ensure_ascii=False, indent=0) + "\n", unique=True)

    def normalize(self, text: str) -> str:
        """Returns what is restored of a text whose symbols are all known."""
        return self._pieces.restore(self._pieces.split(text))

    def unknown(self, texts: Iterable[str]) -> "collections.Counter[str]":
        """Counts the symbols of texts that have no token."""
        return self._pieces.unknown(texts)


class CharacterTokenizer(SymbolTokenizer):
    """A token for each character of a text, also for white space; some symbols may be longer.

    A text is read from the left: the longest symbol of the vocabulary that it goes on with, else
    one code point. What the vocabulary lacks becomes one `<unk>` each. If all is known,
    `decode(encode(text)) == normalize(text)`:

    - `"identity"`: the text as it is;
    - `"nfc"`: `unicodedata.normalize("NFC", text)`;
    - `"nfd"`: the same text, but its tokens are those of NFD: a letter and its accents, or the
      parts of a Hangul syllable, are several.

    Args:
        symbols: list of texts: the characters and longer symbols in the order of their ids, which
            begin behind four special tokens. `load` reads them from a file.
        normalization: `"nfc"`, `"nfd"` or `"identity"`. Defaults to `"identity"`.

    Attributes:
        vocabulary_size: number of tokens, special tokens included.
        pad_token_id, start_token_id, end_token_id, unk_token_id: 0, 1, 2, 3.
        vocabulary: list of the tokens in the order of their ids. A symbol that is spelled like a
            special token, such as `</s>`, has a space behind it.
        normalization: `"nfc"`, `"nfd"` or `"identity"`.

    Raises:
        ValueError: if two symbols are equal, or one can never be read.

    Example:

    >>> lines = ["walk V;PST", "talk V;PST"]
    >>> tokenizer = CharacterTokenizer.train_on_lines(lines, "letters.json", symbols=["V;PST"])
    >>> [tokenizer.vocabulary[i] for i in tokenizer.encode("talk V;PST!")]
    ['t', 'a', 'l', 'k', ' ', 'V;PST', '<unk>']
    """

    kind = "characters"

    @classmethod
    def train_on_lines(
        cls,
        lines: Iterable[str],
        path: Path,
        vocabulary_size: int | None = None,
        *,
        normalization: str = "identity",
        symbols: Iterable[str] = (),
        graphemes: bool = False,
    ) -> Self:
        """Collects the symbols of lines of text, writes them to `path`, returns the tokenizer.

        Args:
            lines, path, vocabulary_size, normalization: as in `WordTokenizer.train_on_lines`.
            symbols: texts of several characters that are one symbol wherever they stand, such as
                `V;PST` or `<en>`. Defaults to none.
            graphemes: whether each grapheme cluster of the text is a symbol, such as a letter with
                its accents or a flag. Defaults to `False`: each code point.

        Raises:
            TypeError, ValueError: as in `WordTokenizer.train_on_lines`.
        """
        read = cls([], normalization)._pieces.split
        whole = ["".join(read(symbol)) for symbol in checked_lines(symbols, "symbols")]
        find = regex.compile(any_of(whole, r"\X" if graphemes else ".")).findall
        options = path, vocabulary_size, normalization
        return cls._train(lines, lambda line: find("".join(read(line))), *options)


class WordTokenizer(SymbolTokenizer):
    """A token for each word: what stands between white space, such as phones or actions.

    Words that the vocabulary lacks become `<unk>`. If all is known, `decode(encode(text))` is
    `" ".join(text.split())`, in NFC unless `normalization` is `"identity"`.

    Args:
        symbols: list of words in the order of their ids, which begin behind four special tokens.
            `load` reads them from a file.
        normalization: `"nfc"`, `"nfd"` or `"identity"`. Defaults to `"identity"`.

    Attributes:
        vocabulary_size, pad_token_id, start_token_id, end_token_id, unk_token_id, vocabulary,
            normalization: as in `CharacterTokenizer`.

    Raises:
        ValueError: if two symbols are equal, or one can never be read.

    Example:

    >>> tokenizer = WordTokenizer.train_on_lines(["k æ t", "h æ t"], "phones.json")
    >>> tokenizer.vocabulary[4:], tokenizer.decode(tokenizer.encode(["t  æ k"]))
    (['t', 'æ', 'h', 'k'], ['t æ k'])
    """

    kind = "words"
