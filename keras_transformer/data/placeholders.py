"""Symbols that take the place of protected text, and training pairs with them.

Pure Python.
"""

import hashlib
import itertools
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

SYMBOL = re.compile("\u27e6\\d+\u27e7")
_LONGEST = 200  # maximum characters of the sources of joined pairs
_NO_PLAIN_WORD = re.compile(r"\d|[A-Z]|\w[@/:]\S")  # a number, a name, an address
# What may stand between symbols and the text before and behind them, the same in both languages.
_BEFORE, _BEHIND = (" ", "", ": "), (" ", "", ": ", ". ")


def symbols(count: int) -> list[str]:
    """Returns the first symbols: `⟦1⟧`, `⟦2⟧`, ..."""
    return [f"\u27e6{number}\u27e7" for number in range(1, count + 1)]


def count_symbols(*vocabularies: Sequence[str]) -> int:
    """Returns the largest n such that all vocabularies hold the first n symbols."""
    count = 0
    while all(symbols(count + 1)[-1] in vocabulary for vocabulary in vocabularies):
        count += 1
    return count


def add_placeholders(
    pairs: Iterable[tuple[str, str]],
    count: int,
    rate: float = 0.02,
    seed: int = 0,
    find_part: Callable[[], int] = lambda: 0,
) -> Iterator[tuple[str, str]]:
    """Yields pairs, a fraction of them with symbols that are the same in source and target.

    A symbol takes the place of a number, name or address that both sides have. If there is none,
    symbols stand at the ends of the pair, or join it with pairs before it of the same part. A pair
    with a blank side stays as it is, and is joined with none. The same arguments give the same
    pairs.

    Args:
        pairs: iterable of (source, target) strings.
        count: int, at least 2: the number of symbols that the vocabulary holds, see
            `Tokenizer.train_on_lines`.
        rate: float, the fraction of the pairs. Defaults to `0.02`.
        seed: int. Defaults to `0`.
        find_part: returns the part of the corpus that the last of `pairs` is from. By default there
            is one part.
    """
    names = symbols(count)
    last: deque[tuple[str, str]] = deque(maxlen=count + 1)
    part = 0
    for number, pair in enumerate(pairs):
        if not all(map(str.strip, pair)):
            yield pair
            continue
        if (new_part := find_part()) != part:
            part = new_part
            last.clear()
        last.append(pair)
        key = f"{seed} {number}"
        drawn = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest())
        is_chosen = drawn < rate * 2**32
        yield _with_symbols(random.Random(key), names, [*last]) if is_chosen else pair


def _with_symbols(rng, names, pairs):
    """Returns the last pair with a symbol in place of a word, or with symbols around it."""
    source_words, target_words = (set(text.split()) for text in pairs[-1])
    if shared := sorted(filter(_NO_PLAIN_WORD.search, source_words & target_words)):
        word = re.compile(rf"(?<!\S){re.escape(rng.choice(shared))}(?!\S)")
        return tuple(word.sub(names[0], text, count=1) for text in pairs[-1])
    # Else join the pair with up to `len(names)` pairs before it, to at most `_LONGEST` characters.
    names = names[: rng.randint(1, len(names))]
    pairs = pairs[-rng.randint(1, len(names) + 1) :]
    while len(pairs) > 1 and sum(len(source) for source, _ in pairs) > _LONGEST:
        pairs = pairs[1:]
    return _joined(rng, names, pairs)


def _joined(rng, names, pairs):
    """Returns one pair, all of `pairs` in their order, with all symbols between or around them."""
    # Place n is in front of pair n, the last place behind all pairs. At least one symbol is between
    # any two pairs; the others are anywhere.
    places = [*range(1, len(pairs)), *rng.choices(range(len(pairs) + 1), k=len(names))]
    places = places[: len(names)]
    remaining = iter(names)
    sides = ["", ""]
    for place, texts in enumerate([*pairs, ("", "")]):
        inserted = " ".join(itertools.islice(remaining, places.count(place)))
        if inserted:
            before = rng.choice(_BEFORE if sides[0] else ("",))
            inserted = before + inserted + rng.choice(_BEHIND)
        sides = [side + inserted + text for side, text in zip(sides, texts, strict=True)]
    return tuple(side.strip() for side in sides)
