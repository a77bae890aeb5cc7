"""The embedded corpus: the names of numbers, English -> German, from 0 to 999,999.

First station of the data flow, for tours, tests and the quickstart: needs no files. Pure Python.
The paper has no such task; it asks for another word order and for long compounds
(`twenty-one` -> `einundzwanzig`).
"""

import random

LARGEST = 999_999
DIGITS = range(1, 7)
HELD_OUT_FRACTION = 0.1
SPLITS = ("train", "held_out")


def number_names(split="train", size=10_000, seed=0):
    """Pairs (English number name, German number name).

    A tenth of all numbers is held out, told by a fixed hash of the number: whatever the sizes and
    seeds, no held-out number is in a train split. Both splits hold numbers of 1 to 6 digits:

    - `"train"`: numbers of d digits are drawn with a weight of d, with repetition. Drawn uniformly,
      90% would have six digits and hardly any one or two.
    - `"held_out"`: distinct numbers, equally many of each number of digits as far as there are any
      (about 1 of one digit, 10 of two, 100 of three), in random order.

    Zero, whose name is part of no other, is always in the train split.

    Args:
        split: `"train"` or `"held_out"`.
        size: int. Number of pairs.
        seed: int. Which numbers are drawn, and their order.

    Returns:
        list of `(english, german)` pairs of strings.

    Raises:
        ValueError: if `split` is unknown, or `size` is not positive or is more than the held-out
            numbers there are (about 100,000).

    Example:

    >>> number_names("held_out", size=2, seed=1)[0][0].isascii()
    True
    """
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {SPLITS}. Received: split={split!r}")
    if size < 1:
        raise ValueError(f"`size` must be a positive integer. Received: size={size}")
    draw = _draw_train if split == "train" else _draw_held_out
    return [_names(number) for number in draw(size, random.Random(seed))]


def is_held_out(number):
    """Whether a number belongs to the held-out split: a fixed hash, uniform over any range."""
    # Fibonacci hashing: the fractional part of number / golden ratio.
    return number > 0 and number * 2654435769 % 2**32 < HELD_OUT_FRACTION * 2**32


def _draw_train(size, rng):
    numbers = []
    while len(numbers) < size:
        (digits,) = rng.choices(DIGITS, weights=DIGITS)
        number = rng.randrange(*_range_of(digits))
        if not is_held_out(number):
            numbers.append(number)
    return numbers


def _draw_held_out(size, rng):
    numbers = []
    for digits in DIGITS:
        members = list(filter(is_held_out, range(*_range_of(digits))))
        # What the short numbers could not give falls to the longer ones.
        share = -(-(size - len(numbers)) // (len(DIGITS) + 1 - digits))
        numbers += rng.sample(members, min(share, len(members)))
    if len(numbers) < size:
        raise ValueError(f"`size` must be at most {len(numbers)} to hold out. Received: {size=}")
    rng.shuffle(numbers)
    return numbers


def _range_of(digits):
    """First number of so many digits, and the first of one more; zero has one digit."""
    return (0 if digits == 1 else 10 ** (digits - 1)), 10**digits


def _names(number):
    from num2words import num2words

    # num2words says "hunderteinstausend" for 101,000; German has no s there.
    german = num2words(number, lang="de").replace("einstausend", "eintausend")
    return num2words(number), german
