"""Processors and forced prefixes against plain Python, each alone and in searches."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.model_search import search_model
from keras_transformer.decoding.processors import (
    force_end,
    min_length,
    no_repeat_ngram_size,
    repetition_penalty,
    suppress_tokens,
)
from keras_transformer.decoding.search_settings import SearchSettings
from tests.builders import new_transformer
from tests.decoding.search_oracle import (
    BACKEND,
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
    small_models,
)

if BACKEND == "tensorflow":
    import tensorflow as tf


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


def plain_repetition_penalty(penalty):
    def constrain(log_probs, tokens):
        return [x * penalty if token in tokens else x for token, x in enumerate(log_probs)]

    return constrain


def plain_force_end(max_length):
    def constrain(log_probs, tokens):
        forced = [0.0 if token == END else -math.inf for token in range(len(log_probs))]
        return forced if len(tokens) + 1 >= max_length else log_probs

    return constrain


def no_token_twice_in_a_row(log_probs, token_ids, index):
    """A processor of a user, as on the page on steering."""
    last = token_ids[:, :, -1:, None]
    is_last = ops.any(last == ops.arange(log_probs.shape[-1]), axis=2)
    return ops.where(is_last, -float("inf"), log_probs)


def no_odd_start(log_probs, token_ids, index):
    """Allows an end only if the first token is even; reads shapes, and loses that of the result."""
    assert tuple(token_ids.shape[:2]) == tuple(log_probs.shape[:2])
    is_odd = ops.any(token_ids[:, :, :1, None] % 2 == 1, axis=2)
    log_probs = ops.where(is_odd & (ops.arange(log_probs.shape[-1]) == END), -np.inf, log_probs)
    if BACKEND != "tensorflow":
        return log_probs
    return tf.numpy_function(np.copy, [log_probs], tf.float32)


def penalty_of_counts(log_probs, token_ids, index):
    """Adds the share of the tokens so far that each token has, negated; `index` is their number."""
    is_token = token_ids[..., None] == ops.arange(log_probs.shape[-1])
    counts = ops.cast(ops.sum(ops.cast(is_token, "int32"), axis=2), "float32")
    share = counts / ops.cast(ops.maximum(index, 1), "float32")
    return log_probs - ops.round(4 * share) / 4


def plain_penalty_of_counts(log_probs, tokens):
    shares = [tokens.count(token) / max(len(tokens), 1) for token in range(len(log_probs))]
    return [x - round(4 * share) / 4 for x, share in zip(log_probs, shares, strict=True)]


def plain_prefix(prefix, constraints):
    """Forces a prefix, whatever the constraints do, which hold after it."""

    def constrain(log_probs, tokens):
        if len(tokens) < len(prefix):
            forced = prefix[len(tokens)]
            return [x if token == forced else -math.inf for token, x in enumerate(log_probs)]
        for constraint in constraints:
            log_probs = constraint(log_probs, tokens)
        return log_probs

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
    "own, last": (
        no_token_twice_in_a_row,
        forbidding(lambda token, before: before[-1:] == (token,)),
    ),
    "own, first": (
        no_odd_start,
        forbidding(lambda token, before: token == END and before[:1] != () and before[0] % 2 == 1),
    ),
    "own, counts": (penalty_of_counts, plain_penalty_of_counts),
}


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("name", PAIRS)
def test_processor_is_its_plain_statement(name):
    """On hypotheses of up to 7 tokens from a vocabulary of 4, so that they repeat themselves."""
    processor, constrain = PAIRS[name]
    ways = [processor, in_graph(processor)] if BACKEND == "tensorflow" else [processor]
    rng = np.random.default_rng(0)
    for length in range(0, 8, 3 if BACKEND == "jax" else 1):
        token_ids = rng.integers(0, 4, (5, 3, length), "int32")
        log_probs = np.log(rng.random((5, 3, 4))).astype("float32")
        log_probs[rng.random(log_probs.shape) < 0.2] = -np.inf
        log_probs[rng.random(log_probs.shape) < 0.1] = 0.0
        expected = [
            [constrain(*both) for both in zip(rows.tolist(), map(tuple, ids), strict=True)]
            for rows, ids in zip(log_probs, token_ids.tolist(), strict=True)
        ]
        later = np.full((5, 3, 2), 3, "int32")  # where there is room for the next tokens
        with_room = [np.concatenate([token_ids, later], axis=2)]
        for ids in [token_ids, *with_room * hasattr(processor, "takes_room")]:
            inputs = [ops.convert_to_tensor(each) for each in (log_probs, ids, np.int32(length))]
            for process in ways:
                processed = ops.convert_to_numpy(process(*inputs))
                assert processed.dtype == np.float32
                np.testing.assert_allclose(processed, np.array(expected, "float32"), rtol=1e-6)


def in_graph(processor):
    ids = tf.TensorSpec([None] * 3, tf.int32)
    specs = [tf.TensorSpec([None, None, 4]), ids, tf.TensorSpec([], tf.int32)]
    return tf.function(processor, specs, autograph=False)


@random_examples(130)
@given(
    penalties,
    st.sampled_from([1, 2, 3, None]),
    st.lists(st.sampled_from(sorted(PAIRS)), max_size=3, unique=True),
    st.lists(st.integers(0, 4), max_size=2),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_constrained_search_finds_the_best_of_what_is_left(
    penalty, narrow, names, suppressed, forces_end, has_prefix, data
):
    """Exhaustive if the beam is wide. No hypothesis if all tokens, or the prefix, are impossible.

    A prefix comes first, whatever is forbidden, and its log-probs count; beyond the maximum length
    it is cut off. The end is forced at the maximum length of each sentence.
    """
    kinds = ("any",) if has_prefix else ("any", "grid", "level")  # a prefix overrides `on_grid`
    models, max_lengths = data.draw(small_models(kinds))
    token = st.integers(3, models.vocabulary_size - 1) if models.vocabulary_size > 3 else st.just(1)
    prefixes = [data.draw(st.lists(token, max_size=4 * has_prefix)) for _ in max_lengths]
    pairs = [PAIRS[name] for name in names]
    beam_size = narrow or max(exhaustive_width(models, max_lengths), 4)
    settings = {"beam_size": beam_size, "suppressed_tokens": suppressed, "force_end": forces_end}
    settings |= {"n_best": min(beam_size, 4), "processors": [processor for processor, _ in pairs]}
    if has_prefix:
        longest = max(map(len, prefixes))
        padded = [[*prefix, *[PAD] * (longest - len(prefix))] for prefix in prefixes]
        settings["target_prefix"] = np.array(padded, "int32").reshape([len(padded), longest])
    found = hypotheses(search(models, max_lengths, penalty, **settings))
    for sentence, max_length in enumerate(max_lengths):
        constraints = [constraint for _, constraint in pairs]
        constraints += [plain_suppress_tokens(suppressed)]
        constraints += [plain_force_end(max_length)] if forces_end else []
        constraint = plain_prefix(prefixes[sentence], constraints)
        rules = models, sentence, max_length, penalty, narrow, (constraint,)
        complete, in_doubt = plain_search(*rules)
        if not in_doubt:
            assert_best(found[sentence], complete, settings["n_best"])


@pytest.mark.parametrize("is_fixed", [False, True])
def test_processor_receives_the_tokens_so_far(is_fixed):
    """Where shapes are fixed, there is room for all tokens, which a processor does not see."""
    models, seen = RandomModels("any", 6, 4, 5, 5), []

    def watch(log_probs, token_ids, index):
        seen.append((*log_probs.shape[1:], *token_ids.shape[1:]))
        assert token_ids.shape[0] == log_probs.shape[0]
        assert BACKEND == "jax" or int(index) == token_ids.shape[2]
        return log_probs

    is_fixed |= BACKEND == "jax"
    search(models, [5, 4, 3, 5], processors=(watch,), beam_size=2, is_fixed=is_fixed)
    assert [*dict.fromkeys(seen)] == [(2, 5, 2, t) for t in range(len({*seen}))]


COMPILED = pytest.mark.backends("tensorflow", "jax")
NO_VALUES = [
    (lambda log_probs, token_ids, index: log_probs * 2 if index > 2 else log_probs, "`ops.where"),
    (lambda log_probs, token_ids, index: log_probs * int(index), "`ops.where"),
    (lambda log_probs, token_ids, index: log_probs * np.array(token_ids).size, "`ops.where"),
]


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize(
    ("processor", "message"),
    [
        *(pytest.param(*row, marks=COMPILED) for row in NO_VALUES),
        (lambda log_probs, *_: log_probs[:, :, :2], r"shape \(B, W, V\).*2\)"),
        (lambda log_probs, *_: log_probs[0], r"shape \(B, W, V\)"),
    ],
)
def test_processor_that_cannot_run_is_named_in_one_line(processor, message, is_fixed):
    def find():
        options = {"processors": (processor,), "is_fixed": is_fixed or BACKEND == "jax"}
        return search(RandomModels("any", 0, 2, 4, 3), [3, 2], **options)

    find = tf.function(find, autograph=False) if BACKEND == "tensorflow" else find
    with pytest.raises(ValueError, match=message) as raised:
        find()
    assert "<lambda>" in str(raised.value) and "\n" not in str(raised.value)


TRACED, GLOBAL = [], 0


def note_trace(log_probs, token_ids, index):
    TRACED.append(1)
    return log_probs


def forbid(tokens):
    def process(log_probs, token_ids, index):
        first = tokens[0] if isinstance(tokens, (tuple, list)) else tokens
        return ops.where(ops.arange(log_probs.shape[-1]) == first, -float("inf"), log_probs)

    return process


def forbid_global(token):
    global GLOBAL
    GLOBAL = token

    def process(log_probs, token_ids, index):
        return ops.where(ops.arange(log_probs.shape[-1]) == GLOBAL, -float("inf"), log_probs)

    return process


def set_global(token):
    """Returns always the same function; only the variable that it reads changes."""
    global GLOBAL
    GLOBAL = token
    return forbid_the_global


def forbid_the_global(log_probs, token_ids, index):
    return ops.where(ops.arange(log_probs.shape[-1]) == GLOBAL, -float("inf"), log_probs)


def forbid_in(changing):
    """A list is changed in place."""
    return lambda token: forbid(changing) if changing.insert(0, token) is None else None


@pytest.mark.parametrize(
    ("make", "value", "other", "expected"),
    [
        (forbid, 5, 6, [True, False, True, False]),
        (forbid, (5, 3), (6, 3), [True, False, True, False]),
        (forbid, 5, np.int32(5), [True, False, True, False]),
        (forbid_global, 5, 6, [True, False, True, False]),
        (set_global, 5, 6, [True, False, True, False]),
        (forbid_in([]), 5, 6, [True] * 4),
        (suppress_tokens, [5], [6], [True, False, True, False]),
    ],
)
def test_processor_made_anew_needs_another_graph_only_if_it_differs(make, value, other, expected):
    seen, is_new = [], []
    for tokens in (value, value, other, value):
        settings = SearchSettings(processors=[make(tokens)]).graph_settings
        is_new.append(settings not in seen)
        seen.append(settings)
    assert is_new == expected


def test_equal_processors_share_a_copy_that_keeps_their_values():
    """Also if the variable of the first one has changed since, as that of a loop does."""
    first = forbid(5)
    settings = SearchSettings(processors=[first]).graph_settings
    (variable,) = first.__closure__
    variable.cell_contents = 6
    equal = SearchSettings(processors=[forbid(5)]).graph_settings
    assert equal == settings
    (process,) = equal.processors
    log_probs = process(ops.zeros([1, 1, 8]), ops.zeros([1, 1, 0], "int32"), 0)
    assert np.flatnonzero(ops.convert_to_numpy(log_probs)).tolist() == [5]


@pytest.mark.slow
@COMPILED
def test_graph_is_traced_for_each_of_its_settings_once():
    model, traced = new_transformer(30, num_encoder_layers=1, num_decoder_layers=1), []
    for token in (5, 5, 6, 5):
        before = len(TRACED)
        settings = SearchSettings(
            beam_size=1, extra_length=3, processors=[forbid(token), note_trace]
        )
        found = search_model(model, np.array([[4, 7, 2]]), settings)
        traced.append(len(TRACED) > before)
        assert token not in found.token_ids, "the program of another value"
    assert traced == [True, False, True, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: no_repeat_ngram_size(0), "`size` must be at least 1. Received: size=0"),
        (lambda: repetition_penalty(0.9), "at least 1. Received: penalty=0.9"),
        (lambda: repetition_penalty(float("nan")), "`penalty` must be finite and at least 1."),
        (lambda: repetition_penalty(float("inf")), "`penalty` must be finite and at least 1."),
    ],
)
def test_settings_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
