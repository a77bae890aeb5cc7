"""The number corpus: correct names, disjoint splits, every number of digits, deterministic."""

import pytest

from keras_transformer.data.number_corpus import is_held_out, number_names

UNITS = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
LARGEST = 999_999


def german(number, one="eins"):
    """The German name, restated from the grammar; `one` is the word for a final 1."""
    if number >= 1000:
        rest = german(number % 1000) if number % 1000 else ""
        return german(number // 1000, "ein") + "tausend" + rest
    if number >= 100:
        rest = german(number % 100, one) if number % 100 else ""
        return german(number // 100, "ein") + "hundert" + rest
    if number >= 20:
        unit = german(number % 10, "ein") + "und" if number % 10 else ""
        return unit + TENS[number // 10 - 2]
    if number > 12:
        return {16: "sech", 17: "sieb"}.get(number, UNITS[number - 10]) + "zehn"
    return one if number == 1 else UNITS[number]


NUMBERS = {german(number): number for number in range(LARGEST + 1)}


ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def english(number):
    """The British English name, restated from the grammar."""
    if number >= 1000:
        rest = number % 1000
        join = ", " if rest >= 100 else " and "
        return english(number // 1000) + " thousand" + (join + english(rest) if rest else "")
    if number >= 100:
        rest = " and " + english(number % 100) if number % 100 else ""
        return ENGLISH_UNITS[number // 100] + " hundred" + rest
    if number >= 20:
        unit = "-" + ENGLISH_UNITS[number % 10] if number % 10 else ""
        return ENGLISH_TENS[number // 10 - 2] + unit
    return ENGLISH_UNITS[number]


def digits(pairs):
    return [len(str(NUMBERS[target])) for _, target in pairs]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_pairs_are_the_names_of_one_number(split):
    pairs = number_names(split, size=1000)
    assert [source for source, _ in pairs] == [english(NUMBERS[target]) for _, target in pairs]


def test_no_held_out_number_is_in_a_train_split():
    held_out = {NUMBERS[target] for _, target in number_names("held_out", size=2000, seed=1)}
    for seed in range(3):
        train = {NUMBERS[target] for _, target in number_names(size=1000, seed=seed)}
        assert not train & held_out
        assert not any(map(is_held_out, train))
    assert all(map(is_held_out, held_out))


def test_a_tenth_of_every_magnitude_is_held_out():
    for magnitude in range(2, 7):
        members = range(10 ** (magnitude - 1), 10**magnitude)
        assert sum(map(is_held_out, members)) / len(members) == pytest.approx(0.1, abs=0.01)
    assert 1 <= sum(map(is_held_out, range(10))) <= 2
    assert not is_held_out(0)  # "null" is part of no other name


def test_train_draws_every_magnitude_by_its_number_of_digits():
    drawn = digits(number_names(size=10_000))
    for magnitude in range(1, 7):
        assert drawn.count(magnitude) / len(drawn) == pytest.approx(magnitude / 21, rel=0.2)


def test_held_out_is_distinct_and_holds_every_magnitude():
    pairs = number_names("held_out", size=1000)
    drawn = digits(pairs)
    assert len(set(pairs)) == len(pairs) == 1000
    assert drawn.count(1) >= 1
    assert drawn.count(2) >= 8
    assert all(drawn.count(magnitude) >= 80 for magnitude in range(3, 7))
    assert drawn != sorted(drawn)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_same_seed_same_pairs_other_seed_other_pairs(split):
    assert number_names(split, size=50, seed=3) == number_names(split, size=50, seed=3)
    assert number_names(split, size=50, seed=3) != number_names(split, size=50, seed=4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"split": "test"}, "`split`.*split='test'"),
        ({"size": 0}, "`size`.*size=0"),
        ({"split": "held_out", "size": 200_000}, "`size`.*size=200000"),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        number_names(**arguments)
