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
MIN_SHARE = 0.05  # of the letters: the scripts of a side
# Patterns of the letters of each script that Unicode recommends (UAX 31, table 5), of the letters
# without a script, such as `µ`, and of all other scripts together. A letter may be of several.
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
        "Pairs with a longer word, in characters. A character of a script without spaces is a "
        "word.",
        at_least=1,
    )
    max_character_ratio: float | None = setting(
        None,
        "Pairs with a side that has more than this many times the characters of the other.",
        at_least=1,
    )
    max_other_script: float | None = setting(
        None,
        "Pairs with a side that has a larger share of letters of other scripts than its "
        "language's. The scripts of a language are those of at least 5% of the letters that its "
        "side had so far in this corpus, which is read once, in chunks of 65,536 pairs. A letter "
        "of several scripts by Unicode, such as `ー`, is of each of them, and Japanese is written "
        "in three.",
        at_least=0,
        at_most=1,
    )


class Cleaner:
    """Leaves out pairs of one or several corpora.

    Memory: 16 bytes a pair if duplicates are left out, for its hash of 64 bits and a copy.
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
        rows, rules = iter(pairs), _rules(self._settings)
        # Characters of both sides so far.
        numbers = collections.Counter[str](), collections.Counter[str]()
        while chunk := list(itertools.islice(rows, CHECKED_AT_ONCE)):
            if (share := self._settings.max_other_script) is not None:
                for side, texts in zip(numbers, zip(*chunk, strict=True), strict=True):
                    side.update("".join(texts))
                rules["other script"] = _script_rule(share, numbers)
            is_old = self._repeated(chunk) if self._settings.duplicates else [False] * len(chunk)
            for pair, is_duplicate in zip(chunk, is_old, strict=True):
                broken = (reason for reason, holds in rules.items() if holds(*pair))
                if reason := "duplicate" if is_duplicate else next(broken, None):
                    skip(reason, *pair)
                else:
                    yield pair

    def _repeated(self, pairs):
        """Returns for each pair whether it is equal to an earlier one."""
        import numpy as np  # not at the top: recipes are read without it

        texts = ("\0".join(pair).encode(errors="surrogatepass") for pair in pairs)
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(digests, np.uint64)
        known = np.asarray(self._hashes, np.uint64)
        is_new = np.zeros(len(hashes), bool)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        is_new &= known[np.searchsorted(known, hashes)] != hashes
        new = np.sort(hashes[is_new])
        self._hashes = np.insert(known, np.searchsorted(known, new), new)
        return ~is_new


def _rules(settings):
    """Returns {reason: function of source and target} of the rules that look at a pair alone."""
    rules = {}
    if settings.identical:
        rules["identical sides"] = lambda source, target: source.strip() == target.strip() != ""
    if settings.max_word_length:
        long = re.compile(rf"[^\s{UNSPACED}]{{{settings.max_word_length + 1}}}").search
        rules["long word"] = lambda *pair: any(map(long, pair))
    if ratio := settings.max_character_ratio:
        rules["character ratio"] = lambda *pair: max(map(len, pair)) > ratio * min(map(len, pair))
    return rules


def _script_rule(share, numbers):
    """Returns the rule for scripts; `numbers` count the characters of each side."""
    others = [
        regex.compile(rf"(?V1)[\p{{L}}--[{''.join(map(_SCRIPTS.get, _usual_scripts(side)))}]]")
        for side in numbers
    ]

    def is_broken(*pair):
        shares = (len(other.findall(text)) for other, text in zip(others, pair, strict=True))
        return any(
            number > share * len(regex.findall(r"\p{L}", text))
            for number, text in zip(shares, pair, strict=True)
            if number
        )

    return is_broken


def _usual_scripts(numbers):
    """Returns the scripts of a side; the letters without a script belong to every side."""

    def count(pattern):
        letters = regex.findall(rf"(?=\p{{L}}){pattern}", "".join(numbers))
        return sum(numbers[letter] for letter in letters)

    least = MIN_SHARE * count(".")
    usual = {code for code, pattern in _SCRIPTS.items() if count(pattern) >= least}
    return {"Zyyy", "Zinh"} | usual | (_JAPANESE if usual & {"Hira", "Kana"} else set())
