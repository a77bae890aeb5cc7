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
    """

    name: str
    pairs: Iterable[tuple[str, str]]
    weight: int = 1
    tag: str | None = None
    languages: Sequence[str] | None = None


class Corpora(Pairs):
    """The sentence pairs of a split: those of its corpora in order, each pair once, without tags.

    Every iteration reads the files again.

    Args:
        parts: the corpora.
        cleaning: which pairs are left out. Optional.
        held_out: {name: other split}, whose sentences are counted in this one.

    Attributes:
        parts: the corpora.
        counts: what the last whole iteration found, as plain values for JSON, or `None`:
            `{"pairs": [number of pairs of each part], "left_out": {reason: [number of pairs,
            examples]}, "read_as": ...}`, see `ReadLog`, and with `held_out` its `overlaps` and the
            `fingerprints` of its splits. May be set, to what was stored with the tokens of the same
            pairs.
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
        pairs, how = self._pairs(), self.placeholders
        return pairs if how is None else add_placeholders(pairs, *how)

    def _pairs(self):
        log = ReadLog()
        held_out = {
            name: ({pair[0] for pair in pairs}, {*pairs}) for name, pairs in self._held_out.items()
        }
        overlaps = {name: {"sources": 0, "pairs": 0} for name in held_out}

        numbers, cleaner = [0] * len(self.parts), self._cleaning and Cleaner(self._cleaning)
        for number, of_part in enumerate(self._pairs_of_parts):
            if not self.parts[number].weight:
                continue
            pairs = of_part.read(log)
            for pair in cleaner.clean(pairs, log.skip) if cleaner else pairs:
                numbers[number] += 1
                for name, (sources, known) in held_out.items():
                    overlaps[name]["sources"] += pair[0] in sources
                    overlaps[name]["pairs"] += pair in known
                self.part = number
                yield pair
        self.counts = {"pairs": numbers, **vars(log)}
        if held_out:
            self.counts |= {"overlaps": overlaps, "fingerprints": self._held_out_fingerprints()}

    def _held_out_fingerprints(self):
        return {name: pairs.fingerprint() for name, pairs in self._held_out.items()}

    @property
    def overlaps(self) -> dict[str, dict[str, int]]:
        """How many pairs stand in other splits too: `{name: {"sources": number, "pairs": number}}`.

        `"sources"` are the pairs whose source stands there. If `counts` are of other splits, as
        those of an older token store may be, the pairs are read again.
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

        It holds the contents of the files, and how they are read and cleaned. `None` if there is no
        such hash, as of a pipe.
        """
        # `counts`, which are stored by this hash, have a number for each part.
        parts = [
            [_fingerprint(pairs) if part.weight else "", part.tag]
            for part, pairs in zip(self.parts, self._pairs_of_parts, strict=True)
        ]
        cleaning = self._cleaning and self._cleaning.to_dict()
        facts = [parts, cleaning, *(self.placeholders or ())]
        return None if any(digest is None for digest, _ in parts) else hash_of(facts)

    def notes(self) -> list[str]:
        """Returns the lines of a report on the last whole iteration, and on `overlaps`."""
        lines, counts = [], self.counts or {"pairs": [], **vars(ReadLog())}
        if len(self.parts) > 1 or any(part.tag or part.weight != 1 for part in self.parts):
            for part, number in zip(self.parts, counts["pairs"], strict=False):
                passes = f"{number:,} pairs, {part.weight} times an epoch"
                passes = passes if part.weight else "left out, its weight is 0"
                lines.append(f"{part.name}: {passes}{f', tag {part.tag}' if part.tag else ''}")
        return [*lines, *read_notes(counts["read_as"], counts["left_out"])] + [
            f"also in `{name}`: the source of {number['sources']:,} pairs, and "
            f"{number['pairs']:,} pairs"
            for name, number in self.overlaps.items()
            if number["sources"]
        ]

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
    """Returns the hash of values of JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
