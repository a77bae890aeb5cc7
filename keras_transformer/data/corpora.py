"""`Corpora`: the sentence pairs of a split, from one or several corpora, counted as they are read.

Pure Python.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

EXAMPLES = 3


@dataclass(frozen=True)
class Corpus:
    """One corpus of a split.

    Attributes:
        pairs: (source, target) strings that can be iterated over more than once.
        weight: how often an epoch passes over the corpus. 0: the corpus is not read.
        tag: the first token of every source, which is not in the text of `pairs`. Optional.
    """

    pairs: Iterable[tuple[str, str]]
    weight: int = 1
    tag: str | None = None


class Corpora:
    """The sentence pairs of a split: those of its corpora in order, each pair once, without tags.

    Every iteration reads the files again.

    Args:
        parts: the corpora.

    Attributes:
        parts: the corpora.
        counts: what the last whole iteration found, as plain values for JSON, or `None`:
            `{"pairs": [number of pairs of each part], "left_out": {reason: [number of pairs,
            examples]}}`. May be set, to what was stored with the tokens of the same pairs.
    """

    def __init__(self, parts: Sequence[Corpus]) -> None:
        self.parts = parts
        self.counts: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        left_out: dict[str, list[Any]] = {}

        def skip(reason, source, target):
            found = left_out.setdefault(reason, [0, []])
            found[0] += 1
            found[1] += [[source, target]] * (found[0] <= EXAMPLES)

        numbers = []
        for part in self.parts:
            numbers.append(0)
            for pair in _read(part, skip):
                numbers[-1] += 1
                yield pair
        self.counts = {"pairs": numbers, "left_out": left_out}

    @property
    def num_bytes(self) -> int:
        """Size of the files, as they are on disk."""
        return sum(getattr(part.pairs, "num_bytes", 0) for part in self.parts if part.weight)

    def fingerprint(self) -> str | None:
        """Returns a hash of all that decides which pairs there are, in which order, with which tag.

        It holds the contents of the files, and how they are read. `None` if a file is a pipe.
        """
        parts = [[_fingerprint(part.pairs), part.tag] for part in self.parts if part.weight]
        if any(fingerprint is None for fingerprint, _ in parts):
            return None
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def __repr__(self):
        return ", ".join(repr(part.pairs) for part in self.parts)


def _read(part, skip):
    if not part.weight:
        return ()
    return part.pairs.read(skip) if hasattr(part.pairs, "read") else part.pairs


def _fingerprint(pairs):
    if hasattr(pairs, "fingerprint"):
        return pairs.fingerprint()
    return hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()
