"""`Pairs`: sentence pairs, and the facts about them that data sets use. Pure Python."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.data.readers import ReadLog
from keras_transformer.texts import checked_pair, require_pairs


class Pairs:
    """Sentence pairs that can be iterated over more than once.

    A subclass defines `__iter__`; the other members have defaults.

    Attributes:
        parts: the corpora that the pairs are from, as `Corpus`. Defaults to none.
        counts: what the last whole iteration found, for JSON, or `None`. May be set.
        num_bytes: int, size of the files on disk. Defaults to `0`.
        overlaps: `{split: {"sources": number, "pairs": number}}`, how many pairs are also in other
            splits. Defaults to nothing.
        kind: str, what errors call them. Defaults to the name of the class.
        part: int, the index in `parts` of the corpus of the last pair that an iteration yielded.
    """

    parts: Sequence[Any] = ()
    counts: dict[str, Any] | None = None
    part: int = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        return 0

    @property
    def overlaps(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    @property
    def kind(self) -> str:
        return type(self).__name__

    def read(self, log: ReadLog) -> Iterator[tuple[str, str]]:
        """Yields the pairs; the log counts the entries of files that are not pairs."""
        return iter(self)

    def fingerprint(self) -> str | None:
        """Returns a hash of all that decides the pairs and their order; `None`: there is none."""
        return None

    def notes(self) -> list[str]:
        """Returns the lines of a report on the last whole iteration."""
        return []


class PlainPairs(Pairs):
    """Any other iterable of pairs, such as a list.

    Args:
        pairs: iterable of (source, target) strings.

    Raises:
        ValueError: if `pairs` is not iterable; later, when it is read, if an item is not a pair.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        require_pairs(pairs)
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, pair in enumerate(self._pairs, 1):
            source, target = checked_pair(number, pair)
            yield source, target

    @property
    def kind(self) -> str:
        return type(self._pairs).__name__
