"""The search against exhaustive search and against the same search in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.beam import beam_search, greedy_search
from keras_transformer.decoding.next_tokens import top_k
from keras_transformer.decoding.processors import min_length, suppress_tokens
from keras_transformer.decoding.search import StepOutput
from tests.decoding.search_oracle import (
    BACKEND,
    END,
    PAD,
    START,
    RandomModels,
    are_close,
    assert_best,
    assert_same,
    exhaustive_width,
    hypotheses,
    penalties,
    plain_search,
    random_examples,
    search,
    search_every_way,
    seeds,
    small_models,
    stop_rules,
)


@random_examples(60)  # times 6 sentences
@given(small_models(), penalties, st.integers(1, 9))
def test_beam_as_wide_as_the_search_space_finds_the_exhaustive_n_best(case, penalty, n_best):
    models, max_lengths = case
    beam_size = max(exhaustive_width(models, max_lengths), n_best)
    options = {"beam_size": beam_size, "n_best": n_best}
    found = search_every_way(models, max_lengths, penalty, **options)
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, penalty, None)
        assert_best(found[sentence], complete, n_best)


def assert_plain(models, max_lengths, penalty, n_best, strictly=False, **options):
    """The search is the plain one; returns whether rounding may decide, for each sentence."""
    doubts = []
    found = search_every_way(models, max_lengths, penalty, n_best=n_best, **options)
    for sentence, max_length in enumerate(max_lengths):
        complete, in_doubt = plain_search(models, sentence, max_length, penalty, **options)
        doubts.append(in_doubt)
        if not in_doubt:
            assert_best(found[sentence], complete, n_best, strictly)
    return doubts


def test_search_is_the_plain_search():
    """With a beam of 1 it is greedy search."""
    doubts = []

    @random_examples(120)  # times 6 sentences
    @given(small_models(), penalties, stop_rules, st.integers(1, 4), st.data())
    def check(case, penalty, stopping, beam_size, data):
        n_best = data.draw(st.integers(1, beam_size))
        options = {"beam_size": beam_size, "stopping": stopping, "strictly": beam_size == 1}
        doubts.extend(assert_plain(*case, penalty, n_best, **options))

    check()
    assert np.mean(doubts) < 0.02, "near ties left out must be rare"


@random_examples(40)
@given(small_models(kinds=("grid", "level")), st.integers(2, 4), stop_rules)
def test_ties_go_to_the_lower_token_then_the_lower_parent_then_the_earlier(
    case, beam_size, stopping
):
    """Without penalty scores tie exactly where totals do, so that only the order decides."""
    options = {"beam_size": beam_size, "stopping": stopping, "strictly": True}
    assert not any(assert_plain(*case, (None, 0.0), beam_size, **options))


@random_examples(40)
@given(
    st.sampled_from(["any", "grid", "level"]),
    seeds,
    st.one_of(st.integers(65, 300), st.sampled_from([128, 256, 320, 640, 700])),
    st.sampled_from([2, 63, 64, -1]),
    st.integers(1, 4),
)
def test_vocabularies_of_several_chunks_are_searched_as_the_plain_search_does(
    kind, seed, vocabulary_size, end, beam_size
):
    models = RandomModels(kind, seed, 4, vocabulary_size, 4, end % vocabulary_size)
    options = {"beam_size": beam_size, "strictly": kind != "any"}
    assert_plain(models, [4, 3, 2, 4], (None, 0.0), beam_size, **options)


@random_examples(60)
@given(st.integers(65, 1000), st.integers(1, 12), seeds)
def test_best_of_a_vocabulary_are_the_first_of_a_stable_sort(vocabulary_size, k, seed):
    values = np.random.default_rng(seed).integers(-40, 1, (2, 2, vocabulary_size)) / 4.0
    values[values < -8.0] = -np.inf
    values[1] += np.random.default_rng(seed).random(values[1].shape)
    values = values.astype("float32")
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :, :k]
    best, token_ids = map(ops.convert_to_numpy, top_k(ops.convert_to_tensor(values), k))
    np.testing.assert_array_equal(token_ids, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(values, expected, -1))


@pytest.mark.parametrize(
    ("beam_size", "stopping"), [(1, "exhaustive"), (3, "exhaustive"), (3, "first_beams")]
)
def test_long_sentences_end_at_different_steps(beam_size, stopping):
    """Where they leave the batch, no result changes; sums are exact, so no tie can flip."""
    models = RandomModels("grid", 5, 24, 12, 40)
    max_lengths, penalty, n_best = (
        [(7 * s) % 41 for s in range(24)],
        ("gnmt", 0.6),
        min(beam_size, 2),
    )
    batch_sizes = []

    def watch(log_probs, token_ids, index):
        batch_sizes.append(log_probs.shape[0])
        return log_probs

    options = {"beam_size": beam_size, "stopping": stopping}
    found = search(models, max_lengths, penalty, (watch,), n_best=n_best, **options)
    if BACKEND == "tensorflow":
        assert batch_sizes == sorted(batch_sizes, reverse=True) and len(set(batch_sizes)) > 4
        batch_sizes.clear()
        whole = {"n_best": n_best, "compaction": False, **options}
        assert_same(search(models, max_lengths, penalty, (watch,), **whole), found)
        assert set(batch_sizes) == {24}
    lengths = set()
    for best, max_length, sentence in zip(hypotheses(found), max_lengths, range(24), strict=True):
        complete, _ = plain_search(models, sentence, max_length, penalty, **options)
        assert_best(best, complete, n_best)
        lengths.add((len(complete[0].tokens), END in complete[0].tokens))
    assert len(lengths) > 8, "the sentences must end at different steps"
    assert found.token_ids.shape[2] == max(found.lengths.max(), 0)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("stopping", ["exhaustive", "first_beams"])
def test_search_in_a_graph_is_the_search_in_python(stopping):
    """One graph for batches of every size, whose caches grow."""
    import tensorflow as tf

    models = RandomModels("any", 8, 10, 5, 6)
    tokens = {"start_token_id": START, "end_token_id": END, "pad_token_id": PAD}
    options = {"beam_size": 3, "n_best": 2, "stopping": stopping}

    @tf.function(autograph=False)
    def in_graph(logits, row, past, max_lengths):
        cache = {"logits": logits, "row": row, "past": past}
        return beam_search(models.step_fn, cache, max_lengths, **tokens, **options)

    shapes = [None, models.rows, 5], [None, 1], [None, 1, 0], [None]
    dtypes = tf.float32, tf.int32, tf.float32, tf.int32
    in_graph = in_graph.get_concrete_function(*map(tf.TensorSpec, shapes, dtypes))
    max_lengths = [6 - sentence % 7 for sentence in range(10)]
    for sentences in ([0], [5, 4, 1], list(range(10))):
        expected = search(models, max_lengths, ("gnmt", 0.6), sentences=sentences, **options)
        cache = models.cache(sentences)
        lengths = tf.constant([max_lengths[sentence] for sentence in sentences])
        assert_same(in_graph(*cache.values(), lengths), expected)


def steps_taken(logits, max_length, tokens=(START, END), **options):
    """The number of steps, and the result. `logits`: of every step, or a list of those of each."""
    answers, steps = np.array(logits, "float32", ndmin=2), []

    def step_fn(token_ids, parents, cache, index):
        steps.append(int(index))
        answer = ops.convert_to_tensor(answers[min(len(steps), len(answers)) - 1])
        return StepOutput(ops.broadcast_to(answer, (*token_ids.shape, len(answer))), cache)

    lengths = ops.convert_to_tensor([max_length], "int32")
    result = beam_search(step_fn, (), lengths, *tokens, **options)
    assert steps == list(range(len(steps)))
    return len(steps), type(result)(*map(ops.convert_to_numpy, result))


def log(*probabilities):
    with np.errstate(divide="ignore"):
        return np.log(probabilities).tolist()


def forbid_all(log_probs, token_ids, index):
    return ops.full_like(log_probs, -math.inf)


FIRST_BEAMS = {"beam_size": 2, "stopping": "first_beams"}
EXHAUSTIVE = {"beam_size": 2, "stopping": "exhaustive"}
MEAN = {"length_penalty": "mean", "alpha": 1.0}
SUM = {"length_penalty": None}
EVEN = [0.0, 0.0, 1.0, 0.0]  # the end token, 2, is the best at every step
HALF = [log(1e-9, 1e-9, 0.5, 0.5), log(1e-9, 1e-9, 0.6, 0.4), log(1e-9, 1e-9, 1.0, 1e-9)]
THIRD = [log(1e-9, 1e-9, 0.2, 0.5, 0.3), log(1e-9, 1e-9, 0.35, 0.35, 0.3)]
LAST = [log(1e-9, 1e-9, 0.5, 0.3, 0.2), log(1e-9, 1e-9, 0.4, 0.35, 0.25)]
LATER = [log(0, 0, 0.3, 0.7), [-9.0, -9.0, 9.0, -9.0]]
CERTAIN = [-math.inf] * 3 + [0.0]
TWO, THREE = {"n_best": 2}, {"beam_size": 3, "n_best": 3}
SQUARES = [math.log(0.3 * p) / 4 for p in (0.4, 0.35)]


def rule(name, logits, max_length, options, tokens=None, scores=None, steps=None):
    return pytest.param(logits, max_length, options, tokens, scores, steps, id=name)


MIN_MEAN = MEAN | {"alpha": -1.0}
SQUARE = {"length_penalty": "mean", "alpha": 2.0}
IMPOSSIBLE = {"alpha": 10.0, "processors": (forbid_all,)}
NONE = [0.0] * 5
IMPOSSIBLE_END = [[-math.inf, -math.inf, 0.0]] * 3 + [[0.0, -math.inf, -math.inf]]
ZERO_ENDS = {"tokens": (START, 0, 1)}
RULES = [
    rule("one is enough", EVEN, 50, EXHAUSTIVE | {"alpha": 0.0}, [[END]], steps=1),
    rule("two are wanted", EVEN, 50, EXHAUSTIVE | {"alpha": 0.0, "n_best": 2}, steps=2),
    rule("no step", EVEN, 0, EXHAUSTIVE, [[]], [0.0], 0),
    rule("enough ended", HALF, 4, FIRST_BEAMS | MEAN, [[3, END]], [math.log(0.3) / 2], 2),
    rule("a higher mean", HALF, 4, EXHAUSTIVE | MEAN, [[3, 3, END]], [math.log(0.2) / 3], 3),
    # END is the third candidate of the first step, more probable than all that follow.
    rule("an end beyond the first beams is dropped", THIRD, 9, FIRST_BEAMS | SUM, [[3, END]]),
    rule("an end beyond the first beams counts", THIRD, 9, EXHAUSTIVE | SUM, [[END]]),
    # The candidates are 3 END, 3 3, 4 END, 3 4: the first two finish beside END.
    rule("ends of the last step", LAST, 2, FIRST_BEAMS | SQUARE | TWO, [[3, END], [3, 3]], SQUARES),
    # With a negative exponent the bound needs the penalty of the next length, not of the last.
    rule("the next may win", LATER, 50, EXHAUSTIVE | MIN_MEAN, [[3, END]]),
    rule("cut at the end", log(1e-9, 0.4, 1e-9, 0.6), 2, MEAN, [[3, 3]], [math.log(0.6)]),
    # With 0 as the end token, it is the second candidate of the first steps.
    rule("an impossible end is none", IMPOSSIBLE_END, 9, FIRST_BEAMS | ZERO_ENDS, [[2, 2, 2, 0]]),
    rule("some are missing", CERTAIN, 3, THREE, [[3, 3, 3], [], []], [0.0, -math.inf, -math.inf]),
    rule("none is possible", NONE, 10**5, FIRST_BEAMS | IMPOSSIBLE, [[]], [-math.inf], 1),
    rule("none, with a penalty of infinity", NONE, 10**5, EXHAUSTIVE | IMPOSSIBLE, steps=1),
    rule("extreme scores", NONE, 7, {"alpha": -10.0, "processors": (min_length(9, END),)}, steps=7),
]


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("logits, max_length, options, tokens, scores, steps", RULES)
def test_rule(logits, max_length, options, tokens, scores, steps):
    taken, result = steps_taken(logits, max_length, **options)
    (found,) = hypotheses_of_one(result)
    assert steps in (taken, None) and tokens in (found, None)
    if scores is not None:
        np.testing.assert_allclose(result.scores[0], scores, rtol=1e-5)


def hypotheses_of_one(result):
    pairs = zip(result.token_ids, result.lengths, strict=True)
    return [[row[:n].tolist() for row, n in zip(*pair, strict=True)] for pair in pairs]


def test_length_of_a_sentence_that_was_cut_counts_all_its_tokens():
    """Also if the end token follows, in steps that only another sentence needs."""
    answers = iter([[0.0, 0.0, 0.0, 1.0]] * 3 + [[0.0, 0.0, 9.0, 0.0]])

    def step_fn(token_ids, parents, cache, index):
        answer = ops.convert_to_tensor(next(answers), "float32")
        return StepOutput(ops.broadcast_to(answer, (*token_ids.shape, 4)), cache)

    options = {"compaction": False, **MEAN}
    lengths = ops.convert_to_tensor([2, 4], "int32")
    result = greedy_search(step_fn, (), lengths, START, END, PAD, **options)
    tokens, _, scores, _ = map(ops.convert_to_numpy, result)
    assert tokens.tolist() == [[[3, 3, PAD, PAD]], [[3, 3, 3, END]]]
    log_prob = 1.0 - math.log(3 + math.e)
    assert are_close(scores[0, 0], log_prob)
    assert are_close(scores[1, 0], (3 * log_prob - math.log1p(3 * math.exp(-9))) / 4)


@pytest.mark.slow_on_jax
def test_sentences_without_tokens_are_empty():
    """Beside others, alone, and where no token is possible."""
    models, max_lengths = RandomModels("any", 0, 3, 4, 3), [3, 0, 3]
    for penalty in (("gnmt", -0.5), ("mean", -0.5), ("mean", 0.6)):  # of length 0 it is infinite
        for beam_size in (1, 2):
            found = search_every_way(models, max_lengths, penalty, beam_size=beam_size)
            assert [[tokens for _, tokens, _ in h] == [()] for h in found] == [False, True, False]
    for beam_size in (1, 2):
        options = {"beam_size": beam_size, "processors": (suppress_tokens(range(4)),)}
        assert hypotheses(search(models, [3, 1, 3], **options)) == [[], [], []]


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(
    "logits, processors, message",
    [
        ([0.0, math.nan, 0.0], (), "logits"),
        ([0.0, math.inf, 0.0], (), "logits"),
        ([-math.inf] * 3, (), "logits"),
        ([-math.inf, math.nan, 0.0], (), "logits"),
        ([0.0] * 3, (lambda log_probs, *_: log_probs + 5.0,), "processor"),
    ],
)
def test_numbers_that_are_no_log_probs_raise(beam_size, logits, processors, message):
    with pytest.raises(Exception, match=message) as raised:
        steps_taken(logits, 3, beam_size=beam_size, processors=processors)
    kind = "InvalidArgumentError" if BACKEND == "tensorflow" else "ValueError"
    assert type(raised.value).__name__ == kind


def test_n_best_above_the_beam_is_named():
    with pytest.raises(ValueError, match="n_best.*Received: n_best=3, beam_size=2"):
        steps_taken([0.0] * 4, 3, beam_size=2, n_best=3)
