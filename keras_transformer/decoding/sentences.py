"""Splits lines into sentences, and cuts them around protected text.

`RULES` say where a sentence ends, for every language. Letters: B lines, N sentences.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.piece_tokenizer import SPACES
from keras_transformer.decoding.languages import split_tag
from keras_transformer.decoding.long_lines import Pieces
from keras_transformer.decoding.protected_text import MARK, Mask, cut, with_symbols

BORDER = "\ufdd0"  # before and behind the white space between two sentences; is no character
# Latin, Greek, Cyrillic and Armenian: other scripts have no lower case, or no upper case.
_LOWER = "".join(filter(str.islower, map(chr, [*range(0x590), *range(0x1E00, 0x2000)])))
_MARKS, _UNSPACED_MARKS = ".!?…։؟۔।॥።", "。｡！？။។"
_CLOSING = "\"'”’“»«)\\]」』）"
# Those that often stand before a capital letter, and have a vowel: without one, as "Mr", a word is
# an abbreviation anyway.
_ABBREVIATIONS = (
    "adm|asst|capt|co|col|gen|gov|hon|lieut|maj|messrs|prof|rep|rev|sen|supt|abt|allg|ca|dipl|ehem|"
    "evtl|exkl|geb|ing|inkl|mio|sog|tel|av|env|mlle|mme|mmes|avda|dra|ee|exma|exmo|sra|srta|ud|uds|"
    "arch|avv|dott|sig|drs|ir|mevr|al|inż|np|płk|św|ul|např|акад|гг|гл|гр|им|обл|проф|св|см|ст|тов|ул"
)
_ABBREVIATION = (
    f"[^{SPACES}.{MARK}]|[0-9]{{2}}|[A-Zb-df-hj-np-tv-xz][b-df-hj-np-tv-xz]{{1,3}}"
    f"|(?i:{_ABBREVIATIONS})|(?:[^{SPACES}.]{{1,3}}\\.){{1,4}}[^{SPACES}.]{{1,3}}"
)
_SHORT = f"[^{SPACES}{BORDER}]{{1,4}}"
_NOT_ENDED = (
    f'((?:^|[{SPACES}{BORDER}(\\["„“«/])(?:{_ABBREVIATION})\\.){BORDER}([{SPACES}]+){BORDER}',
    "\\1\\2",
)
# Expressions and rewrites, one after the other, for Python and for RE2 in a SavedModel: the first
# find borders, the others remove some. All take time in proportion to the text. A match cannot
# begin in the one before: hence one rule twice.
RULES = (
    (BORDER, "\ufffd"),
    (
        f"([{_MARKS}][{_CLOSING}]*)([{SPACES}]+)([^{SPACES}{_LOWER}{_MARKS}0-9,;:)»”’–—-])",
        f"\\1{BORDER}\\2{BORDER}\\3",
    ),
    (
        f"([{_UNSPACED_MARKS}][”’」』）)]*)([{SPACES}]*)([^{SPACES}{_UNSPACED_MARKS}”’」』）)])",
        f"\\1{BORDER}\\2{BORDER}\\3",
    ),
    _NOT_ENDED,
    _NOT_ENDED,
    (f"(^|{BORDER})({_SHORT}|[0-9]+\\.){BORDER}([{SPACES}]*){BORDER}", "\\1\\2\\3"),
    (f"{BORDER}([{SPACES}]*){BORDER}({_SHORT}[{SPACES}]*)$", "\\1\\2"),
)
_COMPILED = [(re.compile(pattern), rewrite) for pattern, rewrite in RULES]


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
        gaps = [self.gaps[s] if last else "" for s, last in zip(sentences, is_last, strict=True)]
        dropped = np.bincount(self.lines, pieces.dropped).astype(int)
        too_long = np.bincount(self.lines, np.bincount(sentences) > 1) + dropped > 0
        lines = self.lines[sentences]
        return Pieces(pieces.token_ids, lines, dropped, gaps, self.spans, too_long=too_long)


def split_lines(
    lines: list[str],
    split: str,
    has_tags: bool,
    mask: Mask | None = None,
    most_symbols: int = 0,
) -> Sentences:
    """Splits lines into their sentences, or takes each as one sentence.

    Args:
        lines: list of strings.
        split: `"lines"` or `"sentences"`.
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
        sentences = split_sentences(text) if split == "sentences" else [(text, "")]
        rest = iter(spans)
        for sentence, gap in sentences:
            *parts, (part, kept) = cut(sentence, rest)
            for one, behind in (*parts, (part, kept + gap)):
                found.texts.append(tag + one)
                found.lines.append(number)
                found.gaps.append(behind)
    return found._replace(lines=np.array(found.lines, int))


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Returns the sentences of a text, at least one, each with the white space behind it.

    Joined, they are the text. An abbreviation, a number, a mark or one short word alone is no
    sentence. In doubt, as after an abbreviation that may end a sentence, the text is not split.

    Args:
        text: str. U+FDD0, which is no character, becomes U+FFFD.
    """
    for number, (pattern, rewrite) in enumerate(_COMPILED):
        if number < 3 or BORDER in text:
            text = pattern.sub(rewrite, text)
    parts = [*text.split(BORDER), ""]
    return list(zip(parts[::2], parts[1::2], strict=True))
