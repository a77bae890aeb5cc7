"""Greedy search against the same search in plain Python, and sampling against probabilities."""

import math
from collections import Counter

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

from keras_transformer.decoding.beam import greedy_search
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.decoding.search import StepOutput
from tests.decoding.search_oracle import (
    END,
    PAD,
    START,
    RandomModels,
    are_close,
    assert_best,
    assert_same,
    hypotheses,
    penalties,
    plain_search,
    random_examples,
    search,
    search_every_way,
    small_models,
)

pytestmark = pytest.mark.tensorflow_only
RandomSampler, TopKSampler, TopPSampler = (
    keras_hub.samplers.RandomSampler,
    keras_hub.samplers.TopKSampler,
    keras_hub.samplers.TopPSampler,
)


@random_examples(60)
@given(small_models(), penalties)
def test_greedy_search_is_plain_greedy_search(case, penalty):
    models, max_lengths = case
    found = search_every_way(models, max_lengths, penalty, by=greedy_search)
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, penalty, beam_size=1)
        assert_best(found[sentence], complete, 1, strictly=True)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vocabulary_size", [6, pytest.param(200, marks=pytest.mark.long)])
def test_long_greedy_search_is_plain_greedy_search(vocabulary_size, compiled):
    """Some sentences end by the end token, some at the maximum length; some are empty."""
    models = RandomModels("grid", 1, 40, vocabulary_size, 30)
    max_lengths = [(11 * sentence) % 31 for sentence in range(40)]
    run = tf.function(search, autograph=False) if compiled else search
    found = hypotheses(run(models, max_lengths, ("gnmt", 0.6), by=greedy_search))
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, ("gnmt", 0.6), beam_size=1)
        assert_best(found[sentence], complete, 1, strictly=True)
    ends = Counter(END in tokens for ((_, tokens, _),) in found)
    assert min(ends[True], ends[False]) > 5, "both ends must occur"
    result = search(models, max_lengths, by=greedy_search)
    assert result.token_ids.shape[2] == max(len(tokens) for ((_, tokens, _),) in found)


def test_greedy_search_of_empty_sentences_takes_no_step():
    def step_fn(token_ids, parents, cache, index):
        raise AssertionError

    result = greedy_search(step_fn, (), tf.constant([0, 0]), START, END, PAD)
    assert result.token_ids.shape == (2, 1, 0)
    assert result.scores.numpy().tolist() == [[0.0], [0.0]]


def test_length_of_a_sentence_that_was_cut_counts_all_its_tokens():
    """Also if the end token follows, in steps that only another sentence needs."""
    answers = iter([[0.0, 0.0, 0.0, 1.0]] * 3 + [[0.0, 0.0, 9.0, 0.0]])

    def step_fn(token_ids, parents, cache, index):
        return StepOutput(tf.broadcast_to(next(answers), [*token_ids.shape, 4]), cache)

    penalty = {"length_penalty": "mean", "alpha": 1.0, "count_end_token": False}
    options = {"compaction": False, **penalty}
    result = greedy_search(step_fn, (), tf.constant([2, 4]), START, END, PAD, **options)
    assert result.token_ids.numpy().tolist() == [[[3, 3, PAD, PAD]], [[3, 3, 3, END]]]
    log_prob = 1.0 - math.log(3 + math.e)
    assert are_close(result.scores.numpy()[0, 0], log_prob)
    assert are_close(result.scores.numpy()[1, 0], log_prob - math.log1p(3 * math.exp(-9)) / 3)


@pytest.mark.parametrize("is_drawn", [False, True])
def test_sentence_without_a_possible_token_has_no_hypothesis(is_drawn):
    models, sampler = RandomModels("any", 0, 3, 4, 5), RandomSampler(seed=0) if is_drawn else None
    options = {"processors": (suppress_tokens(range(4)),), "sampler": sampler}
    assert hypotheses(search(models, [5, 1, 3], by=greedy_search, **options)) == [[], [], []]


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
    result = search(models, [2], by=greedy_search, sentences=[0] * count, sampler=make(1))
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == "top k" else pytest.param(name, marks=pytest.mark.long) for name in SAMPLERS],
)
def test_same_seed_draws_the_same_in_python_and_in_the_graph(name):
    make, _ = SAMPLERS[name]
    models, max_lengths = RandomModels("any", 7, 30, 40, 12), [12] * 30

    def drawn(seed, run=search):
        return run(models, max_lengths, by=greedy_search, sampler=make(seed))

    assert_same(drawn(5), drawn(5))
    assert hypotheses(drawn(5)) != hypotheses(drawn(6))
    sampler = make(5)
    in_graph = tf.function(
        lambda: search(models, max_lengths, by=greedy_search, sampler=sampler), autograph=False
    )
    assert_same(drawn(5), in_graph())


def test_top_1_is_greedy():
    models, max_lengths = RandomModels("any", 9, 30, 40, 12), [s % 13 for s in range(30)]
    drawn = search(models, max_lengths, by=greedy_search, sampler=TopKSampler(k=1, seed=2))
    assert_same(drawn, search(models, max_lengths, by=greedy_search))


@pytest.mark.slow
def test_forbidden_tokens_are_never_drawn():
    models = RandomModels("any", 11, 200, 6, 8).with_all_possible()
    options = {"by": greedy_search, "sampler": RandomSampler(seed=3)}
    free = hypotheses(search(models, [8] * 200, **options))
    bound = hypotheses(search(models, [8] * 200, processors=(suppress_tokens([3]),), **options))
    assert any(3 in tokens for ((_, tokens, _),) in free)
    assert not any(3 in tokens for ((_, tokens, _),) in bound)
