"""Splits lines into sentences, by the same `RULES` for every language."""

import re

from keras_transformer.data.pieces import SPACES
from keras_transformer.decoding.protected_text import MARK

BORDER = "\ufdd0"  # stands before and behind the white space between two sentences
# The lower case of Latin, Greek, Cyrillic and Armenian.
_LOWER = "".join(filter(str.islower, map(chr, [*range(0x590), *range(0x1E00, 0x2000)])))
_MARKS, _UNSPACED_MARKS = ".!?…։؟۔।॥።", "。｡！？။។"
SENTENCE_MARKS = frozenset(_MARKS + _UNSPACED_MARKS)
_CLOSING = "\"'”’“»«)\\]」』）"
# Abbreviations that often stand before a capital letter. The next expression finds those of ASCII
# consonants, such as "Mr", so few of them are here.
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
_NOT_ENDED = (  # removes the borders behind an abbreviation
    f'((?:^|[{SPACES}{BORDER}(\\["„“«/])(?:{_ABBREVIATION})\\.){BORDER}([{SPACES}]+){BORDER}',
    "\\1\\2",
)
# Expressions and rewrites, in the order in which they are applied. The first removes borders that
# the text itself has, the next two insert borders, and the others remove some of these. All take
# time in proportion to the text. One rule is there twice, because matches do not overlap:
# the second pass finds those that begin inside a match of the first.
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


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Returns the sentences of a text, at least one, each with the white space behind it.

    Joined, they are the text. An abbreviation, a number, a mark or one short word alone is no
    sentence. In doubt, as after an abbreviation that may end a sentence, the text is not split.

    Args:
        text: str. U+FDD0, which is no character, becomes U+FFFD.
    """
    for number, (pattern, rewrite) in enumerate(_COMPILED):
        if number < 3 or BORDER in text:  # faster: without a border, the later rules find nothing
            text = pattern.sub(rewrite, text)
    parts = [*text.split(BORDER), ""]
    return list(zip(parts[::2], parts[1::2], strict=True))
