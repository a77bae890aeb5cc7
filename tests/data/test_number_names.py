"""The number corpora: correct names, disjoint splits, every number of digits, deterministic."""

import re

import pytest

from keras_transformer.data.number_corpus import (
    english_name,
    german_name,
    is_held_out,
    number_names,
    roman_numerals,
)

# One for each rule of the two languages.
KNOWN = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    12: ("twelve", "zwölf"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    36: ("thirty-six", "sechsunddreißig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred and one", "einhunderteins"),
    1000: ("one thousand", "eintausend"),
    1100: ("one thousand, one hundred", "eintausendeinhundert"),
    6016: ("six thousand and sixteen", "sechstausendsechzehn"),
    21_021: ("twenty-one thousand and twenty-one", "einundzwanzigtausendeinundzwanzig"),
    301_201: (
        "three hundred and one thousand, two hundred and one",
        "dreihunderteintausendzweihunderteins",
    ),
}


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_names_are_the_known_ones_and_no_two_are_equal(count):
    assert {number: (english_name(number), german_name(number)) for number in KNOWN} == KNOWN
    assert len(set(map(german_name, range(count)))) == count


def english_value(name):
    """The number of an English name, by the values of its words."""
    values = {english_name(number): number for number in [*range(20), *range(20, 100, 10)]}
    total = part = 0
    for word in name.replace(",", "").replace("-", " ").split():
        if word == "thousand":
            total, part = part * 1000, 0
        elif word == "hundred":
            part *= 100
        elif word != "and":
            part += values[word]
    return total + part


def digits(pairs):
    return [len(str(english_value(source))) for source, _ in pairs]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_pairs_are_the_names_of_one_number_drawn_by_the_seed(split):
    pairs = number_names(split, size=1000)
    assert pairs == number_names(split, size=1000) != number_names(split, size=1000, seed=4)
    assert all(german_name(english_value(source)) == target for source, target in pairs)


def test_no_held_out_number_is_in_a_train_split():
    held_out = {english_value(source) for source, _ in number_names("held_out", 2000, seed=1)}
    for seed in range(3):
        train = {english_value(source) for source, _ in number_names(size=1000, seed=seed)}
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


# The letters of thousands, hundreds, tens and ones.
NUMERAL = re.compile("M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
LETTERS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman_value(numeral):
    """A letter that stands before a larger one is subtracted."""
    values = [LETTERS[letter] for letter in numeral]
    return sum(-v if v < max(values[i:]) else v for i, v in enumerate(values))


def test_roman_numerals_are_all_and_each_is_in_one_split():
    train, held_out = set(roman_numerals(size=100_000)), set(roman_numerals("held_out", 399))
    assert not train & held_out and len(held_out) == 399
    assert sorted(int(number) for _, number in train | held_out) == [*range(1, 4000)]
    for numeral, number in train | held_out:
        assert NUMERAL.fullmatch(numeral) and roman_value(numeral) == int(number)


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
