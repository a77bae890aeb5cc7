"""`Corpora`: the sentence pairs of a split, from one or several corpora, counted when read.

Pure Python.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_transformer.data.cleaning import Cleaner, CleaningSettings
from keras_transformer.data.corpus import FileStream
from keras_transformer.data.pairs import Pairs, PlainPairs
from keras_transformer.data.placeholders import add_placeholders
from keras_transformer.data.readers import ReadLog
from keras_transformer.texts import shown_pairs


@dataclass(frozen=True)
class Corpus:
    """One corpus of a split.

    Attributes:
        name: what reports call it.
        pairs: (source, target) strings that can be iterated over more than once.
        weight: how often an epoch passes over the corpus. 0: the corpus is not read.
        tag: the first token of every source, which is not in the text of `pairs`. Optional.
        languages: codes of source and target, for a tokenizer with tokens of languages. Optional.

    Raises:
        ValueError: if `languages` are not two.
    """

    name: str
    pairs: Iterable[tuple[str, str]]
    weight: int = 1
    tag: str | None = None
    languages: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.languages is None:
            return
        if isinstance(self.languages, str) or len(self.languages) != 2:
            raise ValueError(
                "`languages` must be two codes, of source and target. "
                f"Received: languages={self.languages!r}"
            )


class Corpora(Pairs):
    """The sentence pairs of a split: those of its corpora in order, without tags.

    Weights repeat no pairs, but a corpus of weight 0 is left out. Every iteration reads the files
    again.

    Args:
        parts: the corpora.
        cleaning: which pairs are left out. Optional.
        held_out: {name: other split}: `overlaps` counts how many pairs are also in them. Optional.

    Attributes:
        parts: the corpora.
        counts: what the last whole iteration found, as plain values for JSON, or `None` before it:
            `{"pairs": [number of pairs of each part], "left_out": {reason: [number of pairs,
            examples]}, "read_as": ...}`, see `ReadLog`; with `held_out` also `overlaps` and the
            `fingerprints` of the other splits. May be set to what was stored with the tokens of the
            same pairs.
        placeholders: `count`, `rate` and `seed` of `add_placeholders`, which changes the pairs, or
            `None`. May be set.
    """

    def __init__(
        self,
        parts: Sequence[Corpus],
        cleaning: CleaningSettings | None = None,
        held_out: Mapping[str, "Corpora"] | None = None,
    ) -> None:
        self.parts, self._cleaning, self._held_out = parts, cleaning, held_out or {}
        self._pairs_of_parts = [_as_plain(part.pairs) for part in parts]
        self.counts: dict[str, Any] | None = None
        self.placeholders: tuple[int, float, int] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if self.placeholders is None:
            return self._pairs()
        count, rate, seed = self.placeholders
        return add_placeholders(self._pairs(), count, rate, seed, lambda: self.part)

    def _pairs(self):
        """Yields the pairs without placeholders; sets `part` before each, `counts` at the end."""
        log = ReadLog()
        cleaner = self._cleaning and Cleaner(self._cleaning)
        overlaps = {name: {"sources": 0, "pairs": 0} for name in self._held_out}
        other_splits = []
        for name, split in self._held_out.items():
            split_pairs = {*split}
            split_sources = {pair[0] for pair in split_pairs}
            other_splits.append((overlaps[name], split_sources, split_pairs))
        num_pairs = [0] * len(self.parts)
        for index, (part, pairs_of_part) in enumerate(
            zip(self.parts, self._pairs_of_parts, strict=True)
        ):
            if not part.weight:
                continue
            pairs = pairs_of_part.read(log)
            for pair in cleaner.clean(pairs, log.skip) if cleaner else pairs:
                num_pairs[index] += 1
                for overlap, split_sources, split_pairs in other_splits:
                    overlap["sources"] += pair[0] in split_sources
                    overlap["pairs"] += pair in split_pairs
                self.part = index
                yield pair
        self.counts = {"pairs": num_pairs, **vars(log)}
        if self._held_out:
            self.counts |= {"overlaps": overlaps, "fingerprints": self._held_out_fingerprints()}

    def _held_out_fingerprints(self):
        return {name: pairs.fingerprint() for name, pairs in self._held_out.items()}

    @property
    def overlaps(self) -> dict[str, dict[str, int]]:
        """How many pairs are also in other splits: `{name: {"sources": number, "pairs": number}}`.

        `"sources"` is the number of pairs whose source is there, with any target. The pairs are
        read again unless `counts` are of these splits; those of an older token store may not be.
        """
        if not self._held_out:
            return {}
        if (self.counts or {}).get("fingerprints") != self._held_out_fingerprints():
            for _ in self._pairs():
                pass
        return (self.counts or {})["overlaps"]

    @property
    def num_bytes(self) -> int:
        """Size of the files, as they are on disk."""
        sizes = zip(self.parts, self._pairs_of_parts, strict=True)
        return sum(pairs.num_bytes for part, pairs in sizes if part.weight)

    def fingerprint(self) -> str | None:
        """Returns a hash of all that decides which pairs there are, in which order, with which tag.

        It depends on the contents of the files, and on how they are read and cleaned. `None` if a
        part has no hash, such as a pipe.
        """
        # Parts of weight 0 keep their place: `counts`, stored under this hash, lists all parts.
        parts = [
            [_fingerprint(pairs) if part.weight else "", part.tag]
            for part, pairs in zip(self.parts, self._pairs_of_parts, strict=True)
        ]
        cleaning = self._cleaning and self._cleaning.to_dict()
        facts = [parts, cleaning, *(self.placeholders or ())]
        return None if any(digest is None for digest, _ in parts) else hash_of(facts)

    def notes(self) -> list[str]:
        """Returns the lines of a report on the last whole iteration, and on `overlaps`."""
        counts = self.counts or {"pairs": [], **vars(ReadLog())}
        lines = []
        if len(self.parts) > 1 or any(part.tag or part.weight != 1 for part in self.parts):
            for part, number in zip(self.parts, counts["pairs"], strict=False):
                passes = "left out, its weight is 0"
                if part.weight:
                    passes = f"{number:,} pairs, {part.weight} times an epoch"
                tag = f", tag {part.tag}" if part.tag else ""
                lines.append(f"{part.name}: {passes}{tag}")
        lines += read_notes(counts["read_as"], counts["left_out"])
        for name, overlap in self.overlaps.items():
            if overlap["sources"]:
                lines.append(
                    f"also in `{name}`: the source of {overlap['sources']:,} pairs, and "
                    f"{overlap['pairs']:,} pairs"
                )
        return lines

    def __repr__(self):
        return ", ".join(part.name for part in self.parts)


def read_notes(read_as: Mapping[str, Any], left_out: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a report on what a `ReadLog` has counted."""
    for sides, (number, examples) in read_as.items():
        yield f"read as {sides}: {number:,} pairs, such as {shown_pairs(examples)}"
    for reason, (number, examples) in left_out.items():
        yield f"left out, {reason}: {number:,}, such as {shown_pairs(examples)}"


def as_pairs(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Returns any pairs as `Pairs`.

    The files of `read_parallel` become `Corpora`, which report how they were read.
    """
    is_files = isinstance(pairs, FileStream)
    return Corpora([Corpus(repr(pairs), pairs)]) if is_files else _as_plain(pairs)


def _as_plain(pairs):
    return pairs if isinstance(pairs, Pairs) else PlainPairs(pairs)


def _fingerprint(pairs):
    return hash_of(list(pairs)) if isinstance(pairs, PlainPairs) else pairs.fingerprint()


def hash_of(values: Any) -> str:
    """Returns the SHA-256, in hexadecimal digits, of values that JSON can hold."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
