"""An embedded corpus that needs no files: the names of numbers, English -> German, 0 to 999,999.

For tours, tests and the quickstart. Pure Python. The paper has no such task; it exercises word
order and long compounds (`twenty-one` -> `einundzwanzig`).
"""

import random

DIGITS = range(1, 7)
HELD_OUT_FRACTION = 0.1
SPLITS = ("train", "held_out")
ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn"
).split()
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def number_names(split: str = "train", size: int = 10_000, seed: int = 0) -> list[tuple[str, str]]:
    """Returns pairs (English number name, German number name).

    A tenth of all numbers is held out, selected by a fixed hash of the number: for any sizes and
    seeds, no held-out number is in a train split. Both splits hold numbers of 1 to 6 digits:

    - `"train"`: the number of digits d is drawn with weight d, then a number, with repetition.
      (If numbers were drawn uniformly, 90% would have six digits and hardly any one or two.)
    - `"held_out"`: distinct numbers in random order, the same count for each number of digits as
      far as they exist (about 1 of one digit, 10 of two, 100 of three).

    Zero is always in the train split, because no other name contains its name.

    Args:
        split: `"train"` or `"held_out"`.
        size: number of pairs.
        seed: seed of the draw and of the order.

    Raises:
        ValueError: if `split` is unknown, or `size` is not positive or exceeds the number of
            held-out numbers (about 100,000).

    Example:

    >>> number_names("held_out", size=2, seed=1)[0][0].isascii()
    True
    """
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {SPLITS}. Received: split={split!r}")
    if size < 1:
        raise ValueError(f"`size` must be a positive integer. Received: size={size}")
    draw = _draw_train if split == "train" else _draw_held_out
    return [
        (english_name(number), german_name(number)) for number in draw(size, random.Random(seed))
    ]


def is_held_out(number):
    """Whether a number belongs to the held-out split: a fixed hash, uniform over any range."""
    # Fibonacci hashing: the fractional part of number / golden ratio.
    return number > 0 and number * 2654435769 % 2**32 < HELD_OUT_FRACTION * 2**32


def _draw_train(size, rng):
    numbers = []
    while len(numbers) < size:
        (digits,) = rng.choices(DIGITS, weights=DIGITS)
        number = rng.choice(_numbers_of(digits))
        if not is_held_out(number):
            numbers.append(number)
    return numbers


def _draw_held_out(size, rng):
    numbers = []
    for digits in DIGITS:
        members = list(filter(is_held_out, _numbers_of(digits)))
        # Rounded up; the longer numbers make up for the short ones that do not exist.
        share = -(-(size - len(numbers)) // (len(DIGITS) + 1 - digits))
        numbers += rng.sample(members, min(share, len(members)))
    if len(numbers) < size:
        raise ValueError(
            f"`size` must be at most {len(numbers)} for `held_out`. Received: size={size}"
        )
    rng.shuffle(numbers)
    return numbers


def _numbers_of(digits):
    """Returns the range of numbers with so many digits; zero has one digit."""
    return range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def english_name(number):
    """Returns the British English name of a number below a million."""
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[unit]}" if unit else "")
    size, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, size)
    join = ", " if rest >= 100 else " and "
    return f"{english_name(count)} {word}" + (join + english_name(rest) if rest else "")


def german_name(number):
    """Returns the German name of a number below a million."""
    if number < 20:
        return GERMAN[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return (f"{_german_count(unit)}und" if unit else "") + GERMAN_TENS[tens - 2]
    size, word = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, rest = divmod(number, size)
    return _german_count(count) + word + (german_name(rest) if rest else "")


def _german_count(number):
    """The name within another one: a final "eins" has no s there."""
    name = german_name(number)
    return name[:-1] if number % 100 == 1 else name
