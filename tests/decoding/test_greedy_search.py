"""Greedy search against the same search written in plain Python, on models made of tables."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding.greedy_search import StepOutput, greedy_search

pytestmark = pytest.mark.tensorflow_only
PAD, START, END, V = 0, 1, 2, 6


def prefix_logits(prefix, seed):
    """Logits that depend on the whole prefix; integers, so that ties occur."""
    rng = np.random.default_rng([seed, *prefix])
    return rng.integers(0, 4, V).astype("float32")


def plain_search(seed, max_length):
    tokens = []
    while len(tokens) < max_length:
        token = int(np.argmax(prefix_logits([START, *tokens], seed)))  # ties: the lowest id
        tokens.append(token)
        if token == END:
            break
    return tokens


def search(seeds, max_lengths):
    """The step function knows the prefix only through the cache it is handed."""

    def step_fn(token_ids, parents, cache, index):
        prefix = tf.concat([cache["prefix"], token_ids[:, :, None]], axis=1)

        def logits(prefix, seeds):
            rows = zip(prefix, seeds, strict=True)
            return np.stack([prefix_logits(row[:, 0], seed) for row, seed in rows])

        values = tf.numpy_function(logits, [prefix, cache["seeds"]], tf.float32)
        values = tf.ensure_shape(values[:, None], [None, 1, V])
        return StepOutput(values, {"prefix": prefix, "seeds": cache["seeds"]})

    cache = {
        "prefix": tf.zeros([len(seeds), 0, 1], tf.int32),
        "seeds": tf.constant(seeds, tf.int32),
    }
    return greedy_search(step_fn, cache, tf.constant(max_lengths), START, END, PAD)


@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_search_is_plain_greedy_search_for_each_sentence(compiled):
    seeds = list(range(40))
    max_lengths = [seed % 9 for seed in seeds]  # 0 stays empty
    tokens = (tf.function(search) if compiled else search)(seeds, max_lengths).numpy()
    assert tokens.dtype == np.int32
    expected = [plain_search(*both) for both in zip(seeds, max_lengths, strict=True)]
    assert tokens.shape[1] == max(map(len, expected))
    for row, sentence in zip(tokens, expected, strict=True):
        np.testing.assert_array_equal(row, np.pad(sentence, (0, len(row) - len(sentence))))
    # Both ends must occur, or this would prove little.
    assert {END in sentence for sentence in expected if sentence} == {True, False}


def test_greedy_search_of_nothing_takes_no_step():
    assert search([3, 4], [0, 0]).shape == (2, 0)
