"""Splits lines that are too long into pieces, and joins the translations of pieces."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.pieces import SPACE_SYMBOL
from keras_transformer.data.tokenizer_like import TokenizerLike
from keras_transformer.decoding.protected_text import UNSPACED

_WORD_BEGIN = re.compile("^" + SPACE_SYMBOL)
# Tokens that end a sentence; those of the first pattern only if a word begins after them.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*$")
_IDEOGRAPHIC_SENTENCE_END = re.compile(r"[。！？][」』”’）]*$")
# A text whose script puts no space after it, for Python's `re` and for RE2.
WITHOUT_SPACE = f"(?s).*[{UNSPACED}][”’]*"
_ASCII_BYTE = re.compile(r"<0x([0-7][0-9A-F])>")  # a byte of an unknown character
_INSIDE_CHARACTER = re.compile(r"^<0x[89AB][0-9A-F]>\Z")  # any but the first byte of a character


def token_kinds(vocabulary: Sequence[str]) -> np.ndarray:
    """Returns what decides where a line is cut, for each token of a vocabulary of V.

    Returns:
        bool array `(4, V)`: whether the token begins a word; ends a sentence if a word begins after
        it; ends a sentence in any case; is inside a character.
    """
    tokens = [_ASCII_BYTE.sub(lambda byte: chr(int(byte[1], 16)), token) for token in vocabulary]
    patterns = _WORD_BEGIN, _SENTENCE_END, _IDEOGRAPHIC_SENTENCE_END, _INSIDE_CHARACTER
    return np.array([[bool(p.search(token)) for token in tokens] for p in patterns])


class LineCutter:
    """Cuts lines that are too long into pieces, each at the best place within its bound.

    The best place is the end of the last sentence that fits, else of the last word, else of the
    last character. A character has up to four tokens, so a very short piece may end inside one. If
    a line begins with the tag of a language, each of its pieces does.

    Args:
        tokenizer: `TokenizerLike` of the lines.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._kinds = token_kinds(tokenizer.vocabulary)
        self._tag_ids = frozenset(tokenizer.tag_ids)

    def cut(self, row: Any, max_tokens: int, on_too_long: str) -> tuple[list[Any], int]:
        """Cuts a line into pieces of at most `max_tokens` tokens.

        Args:
            row: token ids, without the end token.
            max_tokens: int, at least 1.
            on_too_long: `"split"`: cuts a line into as many pieces as it needs; `"truncate"`: drops
                all but the first piece, which ends with a word if one fits.

        Returns:
            list of rows, at least one, and the number of tokens that were dropped.
        """
        tags = self._tag_length(row)
        if tags == len(row):
            pieces = [row[:0]]  # a tag alone is no text to translate
        elif len(row) <= max_tokens:
            pieces = [row]
        else:
            pieces = self._pieces(np.asarray(row), max_tokens, on_too_long)
        dropped = 0
        if on_too_long == "truncate":
            dropped = len(row) - max(len(pieces[0]), tags)
        return pieces, dropped

    def _tag_length(self, row):
        return int(len(row) > 0 and row[0] in self._tag_ids)

    def _pieces(self, row, max_tokens, on_too_long):
        """Returns the pieces of a line that is too long; the arguments are those of `cut`."""
        begin = self._tag_length(row)
        tag, text = row[:begin], row[begin:]
        pieces: list[np.ndarray] = []
        room, start = max(max_tokens - begin, 1), 0
        characters, words, sentences = self._places(text)
        # A line that is truncated keeps as much as fits, so it need not end with a sentence.
        is_truncated = on_too_long == "truncate"
        places_by_rank = (characters, words) if is_truncated else (characters, words, sentences)
        while start < len(text):
            end = min(start + room, len(text))
            if end < len(text):
                for places in places_by_rank:  # the last one that fits wins
                    last = places[np.searchsorted(places, start + room, side="right") - 1]
                    end = last if last > start else end
            pieces.append(np.concatenate([tag, text[start:end]]))
            start = end
            if is_truncated:
                break
        return pieces

    def _places(self, text):
        """Returns the indices, ascending, of tokens that begin a character, a word, a sentence."""
        begins_word, ends_sentence, ends_anyway, is_inside = self._kinds[:, text]
        begins_sentence = np.zeros_like(begins_word)
        begins_sentence[1:] = (ends_sentence[:-1] & begins_word[1:]) | ends_anyway[:-1]
        # -1 in front, so that `searchsorted` always finds a smaller index.
        return [
            np.concatenate([[-1], np.flatnonzero(is_place)])
            for is_place in (~is_inside, begins_word, begins_sentence)
        ]


def join_translations(texts: list[str], gaps: list[str], joiner: str = " ") -> str:
    """Joins the translations of a line's pieces, without the empty ones.

    Args:
        texts: list of strings.
        gaps: list of strings: what follows each of them. Protected text, a gap that is more than
            white space, is kept even beside an empty translation.
        joiner: str, what replaces an empty gap, unless the script before it has no spaces. Defaults
            to a space.
    """
    joined = ""
    gap: str | None = None  # before the next text; `None` at the beginning and after protected text
    for text, next_gap in zip(texts, gaps, strict=True):
        if text:
            joined += text if gap is None else gap + text
            gap = next_gap or ("" if re.fullmatch(WITHOUT_SPACE, text) else joiner)
        if next_gap.strip():
            joined, gap = joined + next_gap, None
    return joined
