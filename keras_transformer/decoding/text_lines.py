"""Lines of text as trees: a line has parts, and a part has pieces of token ids.

A line is one part, or is split into several: its sentences, and the text around what is protected.
A part is one piece, or several if it is too long. The rows of a search are the pieces of all lines.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from keras_transformer.decoding.hypothesis import Hypothesis, ranks_of_whole
from keras_transformer.decoding.languages import split_tag
from keras_transformer.decoding.long_lines import join_translations
from keras_transformer.decoding.protected_text import Mask, cut, put_back, with_symbols
from keras_transformer.decoding.scores import IMPOSSIBLE, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.sentences import split_sentences


@dataclass
class Part:
    """A part of a line, which is translated by itself.

    Args:
        text: str, with the tag of its language if the line has one.
        behind: str, the white space or the protected text that follows in the line.
        pieces: list of rows of token ids, at least one, without end tokens.
        dropped: int, the number of tokens that were cut off because the part is too long.
    """

    text: str
    behind: str = ""
    pieces: list[Any] = field(default_factory=list)
    dropped: int = 0


@dataclass
class Line:
    """A line of text.

    Args:
        parts: list of `Part`, at least one.
        spans: list of strings: the protected text that symbols replace.
    """

    parts: list[Part]
    spans: list[str] = field(default_factory=list)

    @classmethod
    def read(
        cls, text: str, split: str, has_tags: bool, mask: Mask | None = None, symbols: int = 0
    ) -> "Line":
        """Returns a line in parts, without pieces.

        Args:
            text: str.
            split: `"lines"` or `"sentences"`: whether the line or each sentence is a part.
            has_tags: whether the line may begin with the tag of a language; all its parts get it.
            mask: finds the protected text that the line is cut around. Optional.
            symbols: number of symbols that the vocabulary holds. A line with at most this number of
                protected spans gets symbols in their place, see `with_symbols`, and is not cut
                around them. Defaults to `0`.
        """
        if split == "lines" and mask is None:
            return cls([Part(text)])
        tag, text = split_tag(text) if has_tags else ("", text)
        # `masked` has a mark in place of each span.
        masked, spans = mask(text) if mask else (text, [])
        symbol_spans: list[str] = []
        text_with_symbols = with_symbols(masked, spans, symbols)
        if text_with_symbols is not None:  # symbols replace all marks, so `cut` cuts nothing
            masked, symbol_spans = text_with_symbols, spans
        split_text = split_sentences if split == "sentences" else _as_one
        parts: list[Part] = []
        spans_left = iter(spans)  # `cut` takes those of its sentence
        for sentence, gap in split_text(masked):
            # Without spans, a mark is a character of the text.
            cut_text = cut(sentence, spans_left) if spans else _as_one(sentence)
            parts += [Part(tag + words, behind) for words, behind in cut_text]
            parts[-1].behind += gap
        return cls(parts, symbol_spans)

    @property
    def pieces(self) -> list[Any]:
        """The pieces of all parts."""
        return [piece for part in self.parts for piece in part.pieces]

    @property
    def gaps(self) -> list[str]:
        """What joins the translation of each piece to the next one."""
        gaps = []
        for part in self.parts:
            gaps += [""] * (len(part.pieces) - 1)
            gaps.append(part.behind)
        return gaps

    @property
    def dropped(self) -> int:
        """The number of tokens that were cut off."""
        return sum(part.dropped for part in self.parts)

    def join(
        self, ranks_of_pieces: list[list[Hypothesis]], joiner: str, settings: SearchSettings
    ) -> list[Hypothesis]:
        """Returns the hypotheses of the line.

        With several pieces, the first hypothesis joins the best ones of all pieces. The others
        follow by their scores: each joins the k-th hypothesis of every piece, or the best of a
        piece that has fewer. Only the first may lack protected text: others that lack some are left
        out.

        Args:
            ranks_of_pieces: the hypotheses of each piece, best first.
            joiner: what joins translations where nothing stood between; see `join_translations`.
            settings: `SearchSettings`, for the length penalty.
        """
        gaps = self.gaps
        if len(ranks_of_pieces) > 1:
            best, *others = [
                _joined(pieces, gaps, joiner, settings)
                for pieces in ranks_of_whole(ranks_of_pieces)
            ]
            ranks = [best, *sorted(others, key=lambda hypothesis: -hypothesis.score)]
        else:
            (ranks,) = ranks_of_pieces
            if gaps != [""]:
                ranks = [
                    replace(hypothesis, text=join_translations([hypothesis.text], gaps))
                    for hypothesis in ranks
                ]
        if self.spans:
            best, *others = [_with_spans(hypothesis, self.spans) for hypothesis in ranks]
            ranks = [best, *(hypothesis for hypothesis in others if not hypothesis.protected)]
        dropped = self.dropped
        # A part that is too long was cut off, or has several pieces.
        if dropped or len(ranks_of_pieces) > len(self.parts):
            ranks = [
                replace(hypothesis, too_long=True, dropped_tokens=dropped) for hypothesis in ranks
            ]
        return ranks


def _as_one(text):
    return [(text, "")]


def _with_spans(hypothesis, spans):
    """Returns a hypothesis with protected text in place of its symbols, and with what it lost."""
    text, lost = put_back(hypothesis.text, spans)
    return replace(hypothesis, text=text, protected=lost)


def _joined(pieces, gaps, joiner, settings):
    """Joins hypotheses, one for each piece of a line, to a hypothesis of the line."""

    def all_of(name):
        return [value for piece in pieces for value in getattr(piece, name)]

    tokens, log_probs = all_of("tokens"), all_of("log_probs")
    is_possible = all(piece.score > IMPOSSIBLE for piece in pieces)
    penalty = float(penalties_up_to(len(tokens), settings)[len(tokens)])
    return Hypothesis(
        text=join_translations([piece.text for piece in pieces], gaps, joiner),
        score=math.fsum(log_probs) / penalty if is_possible else IMPOSSIBLE,
        source_tokens=all_of("source_tokens"),
        tokens=tokens,
        log_probs=log_probs,
        pieces=len(pieces),
        unfinished=any(piece.unfinished for piece in pieces),
    )
