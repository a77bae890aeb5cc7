"""`Corpora`: the sentence pairs of a split, from one or several corpora, counted when read."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_transformer.data.cleaning import Cleaner, CleaningSettings
from keras_transformer.data.placeholders import add_placeholders
from keras_transformer.data.report import EXAMPLES, shown_pairs
from keras_transformer.data.tokenizer_like import TokenizerLike


@dataclass(frozen=True)
class Corpus:
    """One corpus of a split.

    Attributes:
        name: what reports call it.
        pairs: (source, target) strings that can be iterated over more than once.
        weight: how often an epoch passes over the corpus. 0: the corpus is not read.
        tag: the first token of every source, which is not in the text of `pairs`. Optional.
    """

    name: str
    pairs: Iterable[tuple[str, str]]
    weight: int = 1
    tag: str | None = None


class Corpora:
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
            examples]}}`. May be set, to what was stored with the tokens of the same pairs.
        overlaps: {name of a split: the numbers of pairs whose source, and of pairs which the last
            whole iteration found in it}.
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
        self.counts: dict[str, Any] | None = None
        self.overlaps: dict[str, list[int]] = {}
        self.placeholders: tuple[int, float, int] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        pairs, how = self._pairs(), self.placeholders
        return pairs if how is None else add_placeholders(pairs, *how)

    def _pairs(self):
        left_out: dict[str, list[Any]] = {}
        held_out = {
            name: ({pair[0] for pair in pairs}, {*pairs}) for name, pairs in self._held_out.items()
        }
        overlaps = {name: [0, 0] for name in held_out}

        def skip(reason, source, target):
            found = left_out.setdefault(reason, [0, []])
            found[0] += 1
            found[1] += [[source, target]] * (found[0] <= EXAMPLES)

        numbers, cleaner = [0] * len(self.parts), self._cleaning and Cleaner(self._cleaning)
        for number, part in enumerate(self.parts):
            pairs = _read(part, skip)
            for pair in cleaner.clean(pairs, skip) if cleaner else pairs:
                numbers[number] += 1
                for name, (sources, known) in held_out.items():
                    overlaps[name][0] += pair[0] in sources
                    overlaps[name][1] += pair in known
                yield pair
        self.counts, self.overlaps = {"pairs": numbers, "left_out": left_out}, overlaps

    @property
    def num_bytes(self) -> int:
        """Size of the files, as they are on disk."""
        return sum(getattr(part.pairs, "num_bytes", 0) for part in self.parts if part.weight)

    def fingerprint(self) -> str | None:
        """Returns a hash of all that decides which pairs there are, in which order, with which tag.

        It holds the contents of the files, and how they are read and cleaned. `None` if there is no
        such hash, as of a pipe.
        """
        # `counts`, which are stored by this hash, have a number for each part.
        parts = [[_fingerprint(p.pairs) if p.weight else "", p.tag] for p in self.parts]
        cleaning = self._cleaning and self._cleaning.to_dict()
        facts = [parts, cleaning, *(self.placeholders or ())]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return None if any(found is None for found, _ in parts) else digest

    def notes(self) -> list[str]:
        """Returns the lines of a report on the last whole iteration."""
        lines, counts = [], self.counts or {"pairs": [], "left_out": {}}
        if len(self.parts) > 1 or any(part.tag or part.weight != 1 for part in self.parts):
            for part, number in zip(self.parts, counts["pairs"], strict=False):
                passes = f"{number:,} pairs, {part.weight} times an epoch"
                passes = passes if part.weight else "left out, its weight is 0"
                lines.append(f"{part.name}: {passes}{f', tag {part.tag}' if part.tag else ''}")
        for reason, (number, examples) in counts["left_out"].items():
            lines.append(f"left out, {reason}: {number:,}, such as {shown_pairs(examples)}")
        return lines + [
            f"also in `{name}`: the source of {sources:,} pairs, and {pairs:,} pairs"
            for name, (sources, pairs) in self.overlaps.items()
            if sources
        ]

    def __repr__(self):
        return ", ".join(part.name for part in self.parts)


class Passes:
    """How often an epoch passes over the pairs of a corpus, and the tags of their sources.

    Args:
        pairs: the pairs. Only `Corpora` have weights and tags; they must have been read.
        tokenizer: that of the sources.

    Attributes:
        tag_ids: the tokens of the tags in use.
        key: what it changes in the batches, as text; empty if nothing.

    Raises:
        ValueError: if a tag is no token of the vocabulary.
    """

    def __init__(self, pairs: Any, tokenizer: TokenizerLike) -> None:
        parts = getattr(pairs, "parts", [])
        self._ends = np.cumsum(pairs.counts["pairs"] if parts else [0])
        self._weights = [part.weight for part in parts]
        ids = {token: token_id for token_id, token in enumerate(tokenizer.vocabulary)}
        if missing := [part.tag for part in parts if part.tag and part.tag not in ids]:
            raise ValueError(
                "`tag` must be one token of the vocabulary: train a vocabulary for these corpora. "
                f"Received: tag={missing[0]!r}"
            )
        self._tags = np.array([ids[part.tag] if part.tag else -1 for part in parts])
        self.tag_ids = [tag for tag in self._tags.tolist() if tag >= 0]
        is_plain = {*self._weights} <= {1} and not self.tag_ids
        self.key = (
            "" if is_plain else f"{self._ends.tolist()} {self._weights} {self._tags.tolist()}"
        )

    def repeat(self, rows: np.ndarray) -> np.ndarray:
        """Returns ascending numbers of pairs, each as often as an epoch passes over it."""
        if {*self._weights} <= {1}:
            return rows
        parts = np.split(rows, np.searchsorted(rows, self._ends[:-1]))
        return np.concatenate(list(map(np.repeat, parts, self._weights)))

    def lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the lengths `(pairs, 2)` with the tags; an empty source has none."""
        if not self.tag_ids:
            return lengths
        lengths = np.array(lengths)
        for source, tag in zip(np.split(lengths[:, 0], self._ends[:-1]), self._tags, strict=True):
            source += (tag >= 0) & (source > 1)
        return lengths

    def with_tags(self, rows: np.ndarray, sources: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the token ids of the sources of some pairs with their tags in front."""
        if not self.tag_ids:
            return sources
        tags = self._tags[np.searchsorted(self._ends, rows, side="right")]
        tagged = zip(tags, sources, strict=True)
        return [np.append(tag, ids) if tag >= 0 else ids for tag, ids in tagged]


def _read(part, skip):
    if not part.weight:
        return ()
    return part.pairs.read(skip) if hasattr(part.pairs, "read") else part.pairs


def _fingerprint(pairs):
    if hasattr(pairs, "fingerprint"):
        return pairs.fingerprint()
    return hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()
