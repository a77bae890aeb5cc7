"""Splits lines into sentences, with `sentencex`, and cuts them around protected text.

Letters: B lines, N sentences.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.decoding.languages import split_tag
from keras_transformer.decoding.long_lines import Pieces
from keras_transformer.decoding.protected_text import Mask, cut, with_symbols

_NO_LETTERS = re.compile(r"[\W\d_]+")


class Sentences(NamedTuple):
    """The sentences of lines, or their parts around protected text.

    Args:
        texts: list of N strings.
        lines: int array `(N,)`, ascending: the line of each sentence.
        gaps: list of N strings: the white space or the protected text behind each sentence.
        spans: list of B lists of strings: the text that symbols take the place of.
    """

    texts: list[str]
    lines: Any
    gaps: list[str]
    spans: list[list[str]]

    def of_lines(self, pieces: Pieces) -> Pieces:
        """Returns the pieces of sentences as pieces of the lines."""
        sentences = pieces.lines
        is_last = np.diff(sentences, append=len(self.texts)) > 0
        gaps = [self.gaps[s] if last else " " for s, last in zip(sentences, is_last, strict=True)]
        dropped = np.bincount(self.lines, pieces.dropped).astype(int)
        return Pieces(pieces.token_ids, self.lines[sentences], dropped, gaps, self.spans)


def split_lines(
    lines: list[str],
    split: str,
    language: str | None,
    has_tags: bool,
    mask: Mask | None = None,
    most_symbols: int = 0,
) -> Sentences:
    """Splits lines into their sentences, or takes each as one sentence.

    Args:
        lines: list of strings.
        split: `"lines"` or `"sentences"`.
        language: as in `split_sentences`.
        has_tags: whether a line may begin with the tag of a language; all its sentences get it.
        mask: finds the protected text that sentences are cut around. Optional.
        most_symbols: number of symbols that the vocabulary holds. Lines with so much protected text
            have symbols in place of it, and are not cut. Defaults to `0`.
    """
    if split == "lines" and mask is None:
        return Sentences(lines, np.arange(len(lines)), [""] * len(lines), [[]] * len(lines))
    found = Sentences([], [], [], [])
    for number, line in enumerate(lines):
        tag, text = split_tag(line) if has_tags else ("", line)
        text, spans = mask(text) if mask else (text, [])
        copied = with_symbols(text, spans, most_symbols)
        found.spans.append(spans if copied else [])
        text = copied or text
        sentences = split_sentences(text, language) if split == "sentences" else [(text, "")]
        rest = iter(spans)
        for sentence, gap in sentences:
            *parts, (part, kept) = cut(sentence, rest)
            for one, behind in (*parts, (part, kept + gap)):
                found.texts.append(tag + one)
                found.lines.append(number)
                found.gaps.append(behind)
    return found._replace(lines=np.array(found.lines, int))


def split_sentences(text: str, language: str | None) -> list[tuple[str, str]]:
    """Returns the sentences of a text, at least one, each with the white space behind it.

    Joined, they are the text. A number, a mark or one short word alone is no sentence.

    Args:
        text: str.
        language: code such as `"en"` or `"de-AT"`, whose abbreviations end no sentence. `None`:
            English.
    """
    parts, begun = [], ""
    for part in _segment(text, re.split("[-_]", (language or "en").lower())[0]):
        begun += part
        words = _NO_LETTERS.sub(" ", begun).split()
        if len(words) > 1 or any(len(word) > 3 for word in words):
            parts.append(begun)
            begun = ""
    parts[-1:] = ["".join([*parts[-1:], begun])]
    sentences = [part.rstrip() for part in parts]
    return [(one, part[len(one) :]) for one, part in zip(sentences, parts, strict=True)]


def _segment(text, language):
    try:
        import sentencex
    except ImportError as error:
        raise ImportError(
            '`split="sentences"` needs `sentencex`, which is not installed: '
            "pip install 'sentencex>=1.0,<2'"
        ) from error
    return sentencex.segment(language, text)
