"""Processors and forced prefixes against plain Python, each alone and in searches."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding.beam import beam_search, greedy_search
from keras_transformer.decoding.processors import (
    force_end,
    min_length,
    no_repeat_ngram_size,
    repetition_penalty,
    suppress_tokens,
)
from tests.decoding.search_oracle import (
    END,
    PAD,
    RandomModels,
    assert_best,
    exhaustive_width,
    hypotheses,
    penalties,
    plain_search,
    random_examples,
    search,
    search_in_fixed_shapes,
    small_models,
)

pytestmark = pytest.mark.tensorflow_only


def forbidding(is_forbidden):
    """A constraint in plain Python, from `is_forbidden(token, tokens before it)`."""

    def constrain(log_probs, tokens):
        return [-math.inf if is_forbidden(t, tokens) else x for t, x in enumerate(log_probs)]

    return constrain


def plain_min_length(length):
    return forbidding(lambda token, before: token == END and len(before) < length)


def plain_suppress_tokens(token_ids):
    return forbidding(lambda token, before: token in token_ids)


def plain_no_repeat_ngram_size(size):
    def repeats(token, before):
        tokens = (*before, token)
        ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
        return ngrams[-1:] != [] and ngrams[-1] in ngrams[:-1]

    return forbidding(repeats)


def plain_prefix(prefix):
    def differs(token, before):
        return len(before) < len(prefix) and token != prefix[len(before)]

    return forbidding(differs)


def plain_repetition_penalty(penalty):
    def constrain(log_probs, tokens):
        return [x * penalty if token in tokens else x for token, x in enumerate(log_probs)]

    return constrain


def plain_force_end(max_length):
    def constrain(log_probs, tokens):
        forced = [0.0 if token == END else -math.inf for token in range(len(log_probs))]
        return forced if len(tokens) + 1 >= max_length else log_probs

    return constrain


# Penalties with few binary digits keep the sums of "grid" models exact.
PAIRS = {
    **{f"min_length({n})": (min_length(n, END), plain_min_length(n)) for n in (0, 1, 3)},
    **{
        f"no_repeat_ngram_size({n})": (no_repeat_ngram_size(n), plain_no_repeat_ngram_size(n))
        for n in (1, 2, 3)
    },
    **{
        f"repetition_penalty({x})": (repetition_penalty(x), plain_repetition_penalty(x))
        for x in (1, 1.25, 2.0)
    },
    **{f"force_end({n})": (force_end(n, END), plain_force_end(n)) for n in (1, 3)},
    **{
        f"suppress_tokens({ids})": (suppress_tokens(ids), plain_suppress_tokens(ids))
        for ids in ([], [1], [0, END])
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_processor_is_its_plain_statement(name):
    """On hypotheses of up to 7 tokens from a vocabulary of 4, so that they repeat themselves."""
    processor, constrain = PAIRS[name]
    shapes = [tf.TensorSpec([None] * 3), tf.TensorSpec([None] * 3, tf.int32)]
    specs = [*shapes, tf.TensorSpec([], tf.int32)]
    in_graph = tf.function(processor, specs, autograph=False)
    rng = np.random.default_rng(0)
    for length in range(8):
        token_ids = rng.integers(0, 4, (5, 3, length), "int32")
        log_probs = np.log(rng.random((5, 3, 4))).astype("float32")
        log_probs[rng.random(log_probs.shape) < 0.2] = -np.inf
        log_probs[rng.random(log_probs.shape) < 0.1] = 0.0
        expected = [
            [constrain(*both) for both in zip(rows.tolist(), map(tuple, ids), strict=True)]
            for rows, ids in zip(log_probs, token_ids.tolist(), strict=True)
        ]
        for process in (processor, in_graph):
            processed = process(tf.constant(log_probs), tf.constant(token_ids), tf.constant(length))
            assert processed.dtype == tf.float32
            np.testing.assert_allclose(processed, np.array(expected, "float32"), rtol=1e-6)


@random_examples(50)
@given(
    small_models(),
    penalties,
    st.lists(st.sampled_from(sorted(PAIRS)), min_size=1, max_size=3, unique=True),
    st.sampled_from([1, 2, 3, None]),
)
def test_search_under_processors_finds_the_best_of_what_they_leave(case, penalty, names, narrow):
    """Exhaustive if the beam is wide; no hypothesis if all tokens are forbidden."""
    models, max_lengths = case
    processors, constraints = zip(*(PAIRS[name] for name in names), strict=True)
    beam_size = narrow or max(exhaustive_width(models, max_lengths), 4)
    options = {"beam_size": beam_size, "n_best": min(beam_size, 4), "processors": processors}
    found = hypotheses(search(models, max_lengths, penalty, **options))
    for sentence, max_length in enumerate(max_lengths):
        complete, in_doubt = plain_search(
            models, sentence, max_length, penalty, narrow, constraints
        )
        if not in_doubt:
            assert_best(found[sentence], complete, options["n_best"])


@random_examples(50)
@given(
    small_models(),
    penalties,
    st.lists(st.integers(0, 4), max_size=2),
    st.booleans(),
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from([beam_search, search_in_fixed_shapes]),
)
def test_search_without_some_tokens_and_with_a_forced_end_finds_the_best_of_what_is_left(
    case, penalty, suppressed, forces_end, narrow, by
):
    """The end is forced at the maximum length of each sentence."""
    models, max_lengths = case
    beam_size = narrow or max(exhaustive_width(models, max_lengths), 4)
    options = {"beam_size": beam_size, "n_best": min(beam_size, 4), "by": by}
    options |= {"suppressed_tokens": tuple(suppressed), "force_end": forces_end}
    found = hypotheses(search(models, max_lengths, penalty, **options))
    for sentence, max_length in enumerate(max_lengths):
        constraints = [plain_suppress_tokens(suppressed)]
        constraints += [plain_force_end(max_length)] if forces_end else []
        complete, in_doubt = plain_search(
            models, sentence, max_length, penalty, narrow, constraints
        )
        if not in_doubt:
            assert_best(found[sentence], complete, options["n_best"])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_long_output_repeats_no_ngram_and_is_long_enough(beam_size):
    """Too long to enumerate; without the processors both rules are broken."""
    models = RandomModels("any", 4, 16, 12, 30).with_all_possible()

    def repeats(tokens):
        pairs = list(zip(tokens, tokens[1:], strict=False))
        return len(set(pairs)) < len(pairs)

    def outputs(*processors):
        options = {"beam_size": beam_size, "processors": processors}
        found = hypotheses(search(models, [30] * 16, ("gnmt", 0.6), **options))
        return [tokens for ((_, tokens, _),) in found]

    free = outputs()
    assert any(map(repeats, outputs(min_length(20, END))))
    assert any(len(tokens) - (tokens[-1] == END) < 20 for tokens in free)
    bound = outputs(no_repeat_ngram_size(2), min_length(20, END))
    assert not any(map(repeats, bound))
    assert all(len(tokens) - (tokens[-1] == END) >= 20 for tokens in bound)


@random_examples(30)
@given(small_models(kinds=("any",)), penalties, st.data())
def test_target_prefix_comes_first_and_its_log_probs_count(case, penalty, data):
    """An impossible prefix gives no hypothesis; one beyond the maximum length is cut off."""
    models, max_lengths = case
    real = st.integers(3, models.vocabulary_size - 1) if models.vocabulary_size > 3 else st.just(1)
    prefixes = [data.draw(st.lists(real, max_size=4)) for _ in max_lengths]
    longest = max(map(len, prefixes))
    padded = [[*prefix, *[PAD] * (longest - len(prefix))] for prefix in prefixes]
    options = {"target_prefix": tf.constant(padded, tf.int32, [len(padded), longest])}
    narrow = data.draw(st.sampled_from([1, 2, None]))
    beam_size = narrow or max(exhaustive_width(models, max_lengths), 3)
    n_best = min(3, beam_size)
    found = hypotheses(
        search(models, max_lengths, penalty, beam_size=beam_size, n_best=n_best, **options)
    )
    for sentence, max_length in enumerate(max_lengths):
        force = plain_prefix(prefixes[sentence])
        complete, in_doubt = plain_search(models, sentence, max_length, penalty, narrow, (force,))
        if not in_doubt:
            assert_best(found[sentence], complete, n_best)


@pytest.mark.parametrize("by", [greedy_search, None])
def test_target_prefix_comes_first_whatever_the_processors_forbid(by):
    models = RandomModels("any", 2, 1, 5, 3).with_all_possible()
    options = {"target_prefix": tf.constant([[3]]), "processors": (suppress_tokens([3]),)}
    options |= {} if by is None else {"by": by}
    (((_, tokens, _),),) = hypotheses(search(models, [3], **options))
    assert tokens[0] == 3 and 3 not in tokens[1:]


def test_processor_receives_the_tokens_so_far():
    models = RandomModels("any", 6, 4, 5, 5)
    seen = []

    def watch(log_probs, token_ids, index):
        seen.append((log_probs.dtype, log_probs.shape[1:], token_ids.dtype, token_ids.shape[1:]))
        assert token_ids.shape[0] == log_probs.shape[0] and int(index) == token_ids.shape[2]
        return log_probs

    watched = search(models, [5, 4, 3, 5], processors=(watch,), beam_size=2)
    assert seen == [(tf.float32, (2, 5), tf.int32, (2, t)) for t in range(len(seen))]
    free = search(models, [5, 4, 3, 5], beam_size=2)
    np.testing.assert_array_equal(watched.token_ids, free.token_ids)
    np.testing.assert_allclose(watched.log_probs, free.log_probs, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: no_repeat_ngram_size(0), "`size` must be at least 1. Received: size=0"),
        (lambda: repetition_penalty(0.9), "`penalty` must be at least 1. Received: penalty=0.9"),
    ],
)
def test_settings_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
