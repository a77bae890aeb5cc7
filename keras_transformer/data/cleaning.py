"""Cleaning of training pairs: what is left out, and why.

A few rules that cost little; OpusFilter has more.
"""

import collections
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import regex

from keras_transformer.settings import Settings, setting
from keras_transformer.texts import UNSPACED

CHECKED_AT_ONCE = 1 << 16  # pairs
# A side uses a script that at least this fraction of the side's letters belongs to.
MIN_SHARE = 0.05
# A pattern for each script that Unicode recommends (UAX 31, table 5). `Zyyy` and `Zinh` match
# letters without a script, such as `µ`; `further` matches the other scripts. A letter may match
# several patterns.
_SCRIPTS = {
    code: rf"\p{{Script_Extensions={code}}}"
    for code in "Zyyy Zinh Latn Cyrl Hani Hira Kana Hang Arab Grek Hebr Deva Thai Armn Beng Bopo "
    "Ethi Geor Gujr Guru Khmr Knda Laoo Mlym Mymr Orya Sinh Taml Telu Thaa Tibt".split()
}
_SCRIPTS["further"] = f"[^{''.join(_SCRIPTS.values())}]"
_JAPANESE = {"Hani", "Hira", "Kana"}  # written together


@dataclass(frozen=True, kw_only=True)
class CleaningSettings(Settings):
    """Which training pairs are left out. All rules are off by default."""

    duplicates: bool = setting(
        False, "Pairs that are equal to an earlier one, also of another corpus."
    )
    identical: bool = setting(False, "Pairs with equal sides.")
    max_word_length: int | None = setting(
        None,
        "Pairs with a word of more characters than this. In a script without spaces, each "
        "character is a word.",
        at_least=1,
    )
    max_character_ratio: float | None = setting(
        None,
        "Pairs with a side that has more than this many times the characters of the other.",
        at_least=1,
    )
    max_other_script: float | None = setting(
        None,
        "Pairs with a side that has more than this fraction of its letters in scripts that its "
        "language does not use. A language uses a script if at least 5% of the letters so far, on "
        "its side of the corpus, are of this script; the corpus is read once, in chunks of 65,536 "
        "pairs. A letter that Unicode gives to several scripts, such as `ー`, counts for each of "
        "them. Japanese uses three scripts.",
        at_least=0,
        at_most=1,
    )


class Cleaner:
    """Leaves out pairs of one or several corpora.

    Leaving out duplicates takes up to 16 bytes of memory for each pair: a hash of 64 bits, and its
    copy while hashes are added.
    """

    def __init__(self, settings: CleaningSettings) -> None:
        self._settings = settings
        # Sorted hashes of the pairs so far. The last one keeps `searchsorted` in range.
        self._hashes: Any = [2**64 - 1]

    def clean(
        self, pairs: Iterable[tuple[str, str]], skip: Callable[[str, str, str], object]
    ) -> Iterator[tuple[str, str]]:
        """Yields the pairs of a corpus that no rule leaves out.

        Calls `skip` with the reason and the sides of each pair that is left out.
        """
        rules = _rules(self._settings)
        max_share = self._settings.max_other_script
        # How often each side has had each character so far.
        character_counts = collections.Counter[str](), collections.Counter[str]()
        rows = iter(pairs)
        while chunk := list(itertools.islice(rows, CHECKED_AT_ONCE)):
            if max_share is not None:
                for counts, texts in zip(character_counts, zip(*chunk, strict=True), strict=True):
                    counts.update("".join(texts))
                rules["other script"] = _script_rule(max_share, character_counts)
            is_repeated = [False] * len(chunk)
            if self._settings.duplicates:
                is_repeated = self._are_repeated(chunk)
            for pair, is_duplicate in zip(chunk, is_repeated, strict=True):
                reasons = (reason for reason, is_broken in rules.items() if is_broken(*pair))
                reason = "duplicate" if is_duplicate else next(reasons, None)
                if reason is None:
                    yield pair
                else:
                    skip(reason, *pair)

    def _are_repeated(self, pairs):
        """Returns for each pair whether it equals an earlier one, and adds the new hashes."""
        import numpy as np  # not at the top: recipes are read without it

        texts = ("\0".join(pair).encode(errors="surrogatepass") for pair in pairs)
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(digests, np.uint64)
        known_hashes = np.asarray(self._hashes, np.uint64)
        _, first_places = np.unique(hashes, return_index=True)
        is_new = np.zeros(len(hashes), bool)
        is_new[first_places] = True
        is_new &= known_hashes[np.searchsorted(known_hashes, hashes)] != hashes
        new_hashes = np.sort(hashes[is_new])
        places = np.searchsorted(known_hashes, new_hashes)
        self._hashes = np.insert(known_hashes, places, new_hashes)
        return ~is_new


def _rules(settings):
    """Returns {reason: function that tells whether a pair is left out}, without the script rule."""
    rules = {}
    if settings.identical:
        rules["identical sides"] = lambda source, target: source.strip() == target.strip() != ""
    if settings.max_word_length:
        find_long = re.compile(rf"[^\s{UNSPACED}]{{{settings.max_word_length + 1}}}").search
        rules["long word"] = lambda *pair: any(map(find_long, pair))
    if ratio := settings.max_character_ratio:
        rules["character ratio"] = lambda *pair: max(map(len, pair)) > ratio * min(map(len, pair))
    return rules


def _script_rule(max_share, character_counts):
    """Returns the function that tells whether a pair has too many letters of other scripts.

    Args:
        max_share: maximum fraction of a text's letters in scripts that its side does not use.
        character_counts: how often each side has had each character.
    """
    other_letters = [
        regex.compile(rf"(?V1)[\p{{L}}--[{''.join(map(_SCRIPTS.get, _usual_scripts(counts)))}]]")
        for counts in character_counts
    ]

    def is_broken(*pair):
        for pattern, text in zip(other_letters, pair, strict=True):
            count = len(pattern.findall(text))
            if count and count > max_share * len(regex.findall(r"\p{L}", text)):
                return True
        return False

    return is_broken


def _usual_scripts(character_counts):
    """Returns the scripts that a side uses, and those of letters without a script.

    Args:
        character_counts: how often the side has had each character.
    """

    def count_letters(pattern):
        letters = regex.findall(rf"(?=\p{{L}}){pattern}", "".join(character_counts))
        return sum(character_counts[letter] for letter in letters)

    min_count = MIN_SHARE * count_letters(".")
    usual = {code for code, pattern in _SCRIPTS.items() if count_letters(pattern) >= min_count}
    return {"Zyyy", "Zinh"} | usual | (_JAPANESE if usual & {"Hira", "Kana"} else set())
