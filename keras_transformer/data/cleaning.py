"""Cleaning of training pairs: what is left out, and why.

A few rules that cost little; OpusFilter has more.
"""

import collections
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from keras_transformer.data.piece_tokenizer import UNICODE
from keras_transformer.settings import Settings
from keras_transformer.texts import UNSPACED

CHECKED_AT_ONCE = 1 << 16  # pairs
MIN_SHARE = 0.05  # of the letters: the scripts of a side


@dataclass(frozen=True, kw_only=True)
class CleaningSettings(Settings):
    """Which training pairs are left out. All rules are off by default.

    Args:
        duplicates: bool. Pairs that are equal to an earlier one, also of another corpus.
        identical: bool. Pairs with equal sides.
        max_word_length: int. Pairs with a longer word, in characters. A character of a script
            without spaces is a word. Optional.
        max_character_ratio: float. Pairs with a side of more than so many times the characters of
            the other. Optional.
        max_other_script: float. Pairs with a side that has a larger share of letters of another
            script than its language. The scripts of a language are those of at least 5% of the
            letters in the first 65,536 pairs. Optional.
    """

    duplicates: bool = False
    identical: bool = False
    max_word_length: int | None = None
    max_character_ratio: float | None = None
    max_other_script: float | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("max_word_length", "max_character_ratio"):
            self._require(name, (getattr(self, name) or 1) >= 1, "at least 1")
        self._require("max_other_script", 0 <= (self.max_other_script or 0) <= 1, "from 0 to 1")


class Cleaner:
    """Leaves out pairs of one or several corpora.

    Memory: 16 bytes a pair if duplicates are left out, for its hash of 64 bits and a copy.
    """

    def __init__(self, settings: CleaningSettings) -> None:
        self._settings = settings
        # Sorted hashes of the pairs so far. The last one keeps `searchsorted` in range.
        self._hashes: Any = [2**64 - 1]
        self._rules: dict[str, Callable[[str, str], bool]] | None = None

    def clean(
        self, pairs: Iterable[tuple[str, str]], skip: Callable[[str, str, str], object]
    ) -> Iterator[tuple[str, str]]:
        """Yields the pairs that no rule leaves out; calls `skip` with a reason and the others."""
        rows = iter(pairs)
        while chunk := list(itertools.islice(rows, CHECKED_AT_ONCE)):
            rules = self._rules = self._rules or _rules(self._settings, chunk)
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


def _rules(settings, chunk):
    """Returns {reason: function of source and target}."""
    rules = {}
    if settings.identical:
        rules["identical sides"] = lambda source, target: source.strip() == target.strip() != ""
    if settings.max_word_length:
        long = re.compile(rf"[^\s{UNSPACED}]{{{settings.max_word_length + 1}}}").search
        rules["long word"] = lambda *pair: any(map(long, pair))
    if ratio := settings.max_character_ratio:
        rules["character ratio"] = lambda *pair: max(map(len, pair)) > ratio * min(map(len, pair))
    if (share := settings.max_other_script) is not None:
        scripts = [_scripts("".join(texts)) for texts in zip(*chunk, strict=True)]
        own = [{s for s in each if each[s] >= MIN_SHARE * each.total()} for each in scripts]
        rules["other script"] = lambda *pair: any(
            sum(found[script] for script in found.keys() - known) > share * found.total()
            for found, known in zip(map(_scripts, pair), own, strict=True)
        )
    return rules


def _scripts(text):
    """Returns the number of letters of each script: the first words of their names in Unicode."""
    return collections.Counter(map(_script, filter(str.isalpha, text)))


@functools.cache
def _script(character):
    return UNICODE.name(character, "").partition(" ")[0]
