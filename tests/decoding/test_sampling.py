"""Sampled tokens against the probabilities of the model."""

import math
from collections import Counter

import keras_hub
import numpy as np
import pytest

from keras_transformer.decoding.processors import suppress_tokens
from tests.decoding.search_oracle import (
    BACKEND,
    END,
    RandomModels,
    are_close,
    assert_same,
    hypotheses,
    search,
)

RandomSampler, TopKSampler, TopPSampler = (
    keras_hub.samplers.RandomSampler,
    keras_hub.samplers.TopKSampler,
    keras_hub.samplers.TopPSampler,
)


def probabilities(models, prefix, change):
    """Probabilities of the next token, after `change` of the model's own (a float64 array)."""
    p = change(np.exp(models.next_log_probs(0)(prefix)))
    return p / p.sum()


def keep_top(k):
    return lambda p: np.where(p >= np.sort(p)[-k], p, 0.0)


def keep_nucleus(share):
    def change(p):
        best = np.argsort(-p)
        kept = best[: np.searchsorted(np.cumsum(p[best]), share, side="right") + 1]
        return np.where(np.isin(np.arange(len(p)), kept), p, 0.0)

    return change


SAMPLERS = {
    "random": (lambda seed: RandomSampler(seed=seed), lambda p: p),
    "warm": (lambda seed: RandomSampler(seed=seed, temperature=2.0), np.sqrt),
    "top k": (lambda seed: TopKSampler(k=2, seed=seed), keep_top(2)),
    "top p": (lambda seed: TopPSampler(p=0.7, seed=seed), keep_nucleus(0.7)),
}


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("name", SAMPLERS)
def test_drawn_tokens_have_the_probabilities_of_the_model(name):
    """20,000 draws of two tokens, of which the second depends on the first."""
    make, change = SAMPLERS[name]
    models = RandomModels("any", 194, 1, 5, 2)
    count = 20000
    expected = {}
    for first, p in enumerate(probabilities(models, (), change)):
        after = [1.0] if first == END else probabilities(models, (first,), change)
        for second, q in enumerate(after):
            expected[(first,) if first == END else (first, second)] = count * p * q
    result = search(models, [2], sentences=[0] * count, sampler=make(1))
    drawn = Counter()
    for ((_, tokens, log_probs),) in hypotheses(result):
        drawn[tokens] += 1
        model_log_probs = [models.next_log_probs(0)(tokens[:t])[x] for t, x in enumerate(tokens)]
        assert all(map(are_close, log_probs, model_log_probs))
    assert sum(drawn.values()) == count
    assert {tokens for tokens in drawn if not expected[tokens]} == set(), "impossible"
    likely = [tokens for tokens, number in expected.items() if number > 5.0]
    assert len(likely) >= 4, "too few outcomes for a test"
    chi_square = sum((drawn[t] - expected[t]) ** 2 / expected[t] for t in likely)
    assert chi_square < len(likely) + 6 * math.sqrt(2 * len(likely))


@pytest.mark.slow_on_jax
def test_same_seed_draws_the_same():
    make, _ = SAMPLERS["top k"]
    models, max_lengths = RandomModels("any", 7, 30, 40, 12), [12] * 30

    def drawn(seed):
        return search(models, max_lengths, sampler=make(seed))

    assert_same(drawn(5), drawn(5))
    assert hypotheses(drawn(5)) != hypotheses(drawn(6))


@pytest.mark.slow_on_jax
def test_top_1_is_greedy_and_forbidden_tokens_are_never_drawn():
    models, max_lengths = RandomModels("any", 9, 30, 40, 12), [s % 13 for s in range(30)]
    drawn = search(models, max_lengths, sampler=TopKSampler(k=1, seed=2))
    if BACKEND != "torch":  # whose `topk` has no order among ties
        assert_same(drawn, search(models, max_lengths, beam_size=1))
    models = RandomModels("any", 11, 100, 6, 8).with_all_possible()
    options = {"sampler": RandomSampler(seed=3), "max_lengths": [8] * 100}
    found = [
        hypotheses(search(models, processors=p, **options)) for p in ((), (suppress_tokens([3]),))
    ]
    free, bound = ({t for ((_, tokens, _),) in each for t in tokens} for each in found)
    assert 3 in free and 3 not in bound
    none = (suppress_tokens(range(6)),)
    assert hypotheses(search(models, processors=none, **options)) == [[]] * 100
