"""Limits of length that are learned from pairs, against a count of the pairs within them."""

import numpy as np
import pytest

from keras_transformer.decoding.lines import learned_limits, longest_target
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.models.config import TransformerConfig

RNG = np.random.default_rng(3)
SOURCE = RNG.integers(1, 40, 5000)
# {name: tokens of sources and targets, without end tokens}
PAIRS = {
    "words to characters": (np.ones(3000, int), RNG.integers(4, 140, 3000)),
    "subwords": (SOURCE, SOURCE + RNG.integers(0, 40, 5000)),
    "many times as long": (SOURCE, SOURCE * RNG.integers(1, 30, 5000)),
    "one of 1,000 is longer": (SOURCE[:1000], np.append(SOURCE[:999], 900)),
    "two of 1,000 are longer": (SOURCE[:1000], np.append(SOURCE[:998], [900, 900])),
    "shorter": (SOURCE * 9, SOURCE),
    "far beyond": (np.ones(9, int), np.full(9, 4000)),
}


def within(source, target, search):
    """The fraction of the pairs whose target may be as long as it is."""
    settings, config = SearchSettings(**search), TransformerConfig.tiny(50)
    pairs = zip(source.tolist(), target.tolist(), strict=True)
    return np.mean([t + 1 <= longest_target(s + 1, settings, config) for s, t in pairs])


@pytest.mark.parametrize(
    "own", [{}, {"extra_length": 0}, {"length_ratio": 2.0}, {"max_length": 10}], ids=str
)
@pytest.mark.parametrize("name", PAIRS)
def test_learned_limits_are_the_least_that_999_of_1000_pairs_need(name, own):
    source, target = PAIRS[name]
    learned = learned_limits(np.stack([source + 1, target + 1], axis=1), own)
    assert not learned.keys() & own.keys()
    own = {key: value for key, value in own.items() if key != "max_length"}  # it wins anyway
    if not learned:
        assert within(source, target, own) >= 0.999
        return
    ((key, value),) = learned.items()
    assert within(source, target, own) < 0.999 and SearchSettings(**learned)
    if name != "far beyond" or value < 1000:
        assert within(source, target, own | learned) >= 0.999
        assert within(source, target, own | {key: value - (0.5 if "ratio" in key else 1)}) < 0.999


def test_user_who_sets_both_limits_has_them():
    lengths = np.array([[2, 500]] * 9)
    assert learned_limits(lengths, {"length_ratio": 1.0, "extra_length": 3}) == {}
    assert learned_limits(lengths, {}) == {"length_ratio": 450.0}
