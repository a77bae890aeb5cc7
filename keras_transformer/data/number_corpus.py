"""Embedded corpora that need no files: numbers in two notations.

For tours, tests and the quickstart. Pure Python. The paper has no such task. Number names exercise
word order and long compounds (`twenty-one` -> `einundzwanzig`), Roman numerals single characters.
"""

import random
from itertools import pairwise

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
ROMAN = dict(M=1000, CM=900, D=500, CD=400, C=100, XC=90, L=50, XL=40, X=10, IX=9, V=5, IV=4, I=1)


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
    return _pairs(range(1_000_000), (english_name, german_name), split, size, seed)


def roman_numerals(
    split: str = "train", size: int = 10_000, seed: int = 0
) -> list[tuple[str, str]]:
    """Returns pairs (Roman numeral, decimal number) of the numbers 1 to 3,999.

    Both splits are made as those of `number_names`; 399 numbers are held out.

    Args:
        split, size, seed: as for `number_names`.

    Raises:
        ValueError: as `number_names`.

    Example:

    >>> roman_numerals(size=2, seed=1)
    [('XVIII', '18'), ('LXXIII', '73')]
    """
    return _pairs(range(1, 4000), (roman_numeral, str), split, size, seed)


# The embedded corpora by their keys in a recipe.
EMBEDDED = {"number_names": number_names, "roman_numerals": roman_numerals}


def _pairs(numbers, notations, split, size, seed):
    """Returns pairs of random numbers from the range `numbers`, each in two notations."""
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {SPLITS}. Received: split={split!r}")
    if size < 1:
        raise ValueError(f"`size` must be a positive integer. Received: size={size}")
    draw = _draw_train if split == "train" else _draw_held_out
    powers = [10**digits for digits in range(1, len(str(numbers[-1])))]
    # The numbers of one digit (zero too), of two, and so on.
    by_digits = [range(*ends) for ends in pairwise([numbers.start, *powers, numbers.stop])]
    sample = draw(by_digits, size, random.Random(seed))
    source, target = notations
    return [(source(number), target(number)) for number in sample]


def is_held_out(number):
    """Whether a number belongs to the held-out split: a fixed hash, uniform over any range."""
    # Fibonacci hashing: the fractional part of number / golden ratio.
    return number > 0 and number * 2654435769 % 2**32 < HELD_OUT_FRACTION * 2**32


def _draw_train(by_digits, size, rng):
    numbers = []
    while len(numbers) < size:
        (members,) = rng.choices(by_digits, weights=range(1, len(by_digits) + 1))
        number = rng.choice(members)
        if not is_held_out(number):
            numbers.append(number)
    return numbers


def _draw_held_out(by_digits, size, rng):
    numbers = []
    for index, candidates in enumerate(by_digits):
        members = list(filter(is_held_out, candidates))
        # Rounded up; the longer numbers make up for the short ones that do not exist.
        share = -(-(size - len(numbers)) // (len(by_digits) - index))
        numbers += rng.sample(members, min(share, len(members)))
    if len(numbers) < size:
        raise ValueError(
            f"`size` must be at most {len(numbers)} for `held_out`. Received: size={size}"
        )
    rng.shuffle(numbers)
    return numbers


def english_name(number):
    """Returns the British English name of a number below a million."""
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[unit]}" if unit else "")
    size, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, remainder = divmod(number, size)
    name = f"{english_name(count)} {word}"
    if not remainder:
        return name
    return name + (", " if remainder >= 100 else " and ") + english_name(remainder)


def german_name(number):
    """Returns the German name of a number below a million."""
    if number < 20:
        return GERMAN[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return (f"{_german_count(unit)}und" if unit else "") + GERMAN_TENS[tens - 2]
    size, word = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, remainder = divmod(number, size)
    return _german_count(count) + word + (german_name(remainder) if remainder else "")


def _german_count(number):
    """Returns the name as the first part of a longer one: a final "eins" loses its s."""
    name = german_name(number)
    return name[:-1] if number % 100 == 1 else name


def roman_numeral(number):
    """Returns the Roman numeral of a number below 4,000; that of 0 is empty."""
    for letters, value in ROMAN.items():
        if number >= value:
            return letters + roman_numeral(number - value)
    return ""
