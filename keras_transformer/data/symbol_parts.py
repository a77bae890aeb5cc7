"""Symbols as the parts of a `Tokenizer`: pieces and a vocabulary of characters, or of words."""

import collections
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import regex

from keras_transformer.data.pieces import (
    CHARACTERS,
    SYMBOL_NORMALIZATIONS,
    WORDS,
    SymbolPieces,
    any_of,
)
from keras_transformer.data.training_lines import check_choice, training_lines
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.texts import checked_lines, shown_symbol

Parts = tuple[SymbolPieces, Vocabulary]


def symbol_parts(kind: str, symbols: Iterable[str], normalization: str) -> Parts:
    """Returns the pieces of some symbols, in the order of their ids, and their vocabulary.

    Raises:
        TypeError: if a symbol is not a string.
        ValueError: if two symbols are equal, or one can never be read.
    """
    symbols = checked_lines(symbols, "symbols")
    check_choice("normalization", normalization, SYMBOL_NORMALIZATIONS)
    pieces = SymbolPieces(kind, normalization, symbols)
    names = pieces.names()
    counts = collections.Counter(names)
    for name, symbol in zip(names[len(pieces.special) :], symbols, strict=True):
        if counts[name] > 1 or pieces.split(symbol) != [symbol] or symbol[:-1] in pieces.special:
            raise ValueError(
                "`symbols` must be different and not empty, in the form of `normalization`. None "
                "may be a special token with a space behind it; words are without white space. "
                f"Received: {symbol!r}"
            )
    return pieces, Vocabulary(names)


def learn_words(lines: Iterable[str], size: int | None, normalization: str) -> Parts:
    """Returns the parts for the words of lines; see `Tokenizer.words`."""
    split = _without_symbols(WORDS, normalization).split
    return _learn(WORDS, lines, split, size, normalization)


def learn_characters(
    lines: Iterable[str],
    size: int | None,
    normalization: str,
    symbols: Iterable[str],
    graphemes: bool,
) -> Parts:
    """Returns the parts for the characters of lines; see `Tokenizer.characters`."""
    # Without symbols, `split` gives the code points of a text, in the form of `normalization`.
    split = _without_symbols(CHARACTERS, normalization).split
    normalized = ["".join(split(symbol)) for symbol in checked_lines(symbols, "symbols")]
    find = regex.compile(any_of(normalized, r"\X" if graphemes else ".")).findall

    def read(line: str) -> Any:
        return find("".join(split(line)))

    return _learn(CHARACTERS, lines, read, size, normalization)


def _without_symbols(kind, normalization):
    """Returns pieces that know no symbol; checks the normalization."""
    check_choice("normalization", normalization, SYMBOL_NORMALIZATIONS)
    return SymbolPieces(kind, normalization, [])


def _learn(kind: str, lines: Any, read: Callable, size: int | None, normalization: str) -> Parts:
    """Returns the parts for the most frequent symbols of lines; `read` gives those of a line."""
    least = len(SymbolPieces.special) + 1
    if size is not None and size < least:
        raise ValueError(
            f"`vocabulary_size` must be at least {least}: special tokens and a symbol. Received: "
            f"vocabulary_size={size}"
        )
    counts: collections.Counter[str] = collections.Counter()
    for symbols in training_lines(lines, read):
        counts.update(symbols)
    ordered = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    limit = len(ordered) if size is None else size - len(SymbolPieces.special)
    if lost := ordered[limit:]:
        number = sum(counts[symbol] for symbol in lost)
        warnings.warn(
            f"{len(lost):,} of {len(ordered):,} symbols have no token and become <unk>, "
            f"{number:,} times in the text: {', '.join(map(shown_symbol, lost[:3]))}. Raise "
            f"`vocabulary_size` (`size`), now {size}.",
            stacklevel=4,
        )
    return symbol_parts(kind, ordered[:limit], normalization)
