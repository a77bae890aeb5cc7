"""Beam search against exhaustive search and against the same search in plain Python."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.next_tokens import top_k
from keras_transformer.decoding.processors import min_length
from keras_transformer.decoding.search import StepOutput
from tests.decoding.search_oracle import (
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
    search_both_ways,
    seeds,
    small_models,
)

pytestmark = pytest.mark.tensorflow_only


def steps_taken(logits, max_length, **options):
    """The number of steps, and the result. `logits`: of every step, or a list of those of each."""
    answers, steps = np.array(logits, "float32", ndmin=2), []

    def step_fn(token_ids, parents, cache, index):
        steps.append(int(index))
        answer = answers[min(len(steps), len(answers)) - 1]
        return StepOutput(tf.broadcast_to(answer, [*token_ids.shape, len(answer)]), cache)

    result = beam_search(step_fn, (), tf.constant([max_length]), START, END, **options)
    assert steps == list(range(len(steps)))
    return len(steps), result


def test_search_stops_without_active_hypotheses_even_if_the_penalty_overflows():
    def forbid_all(log_probs, token_ids, index):
        return tf.fill(tf.shape(log_probs), -float("inf"))

    steps, result = steps_taken([0.0] * 5, 100_000, alpha=10.0, processors=(forbid_all,))
    assert steps == 1 and result.scores.numpy().tolist() == [[-math.inf]]


@random_examples(60)  # times 6 sentences
@given(small_models(), penalties, st.integers(1, 9))
def test_beam_as_wide_as_the_search_space_finds_the_exhaustive_n_best(case, penalty, n_best):
    models, max_lengths = case
    beam_size = max(exhaustive_width(models, max_lengths), n_best)
    found = hypotheses(search(models, max_lengths, penalty, beam_size=beam_size, n_best=n_best))
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, penalty, None)
        assert_best(found[sentence], complete, n_best)


def test_narrow_beam_is_the_plain_search():
    doubts, tried = [], random_examples(60)

    @tried  # times 6 sentences
    @given(small_models(), penalties, st.integers(1, 4), st.data())
    def check(case, penalty, beam_size, data):
        models, max_lengths = case
        n_best = data.draw(st.integers(1, beam_size))
        found = search_both_ways(models, max_lengths, penalty, beam_size=beam_size, n_best=n_best)
        for sentence, max_length in enumerate(max_lengths):
            complete, in_doubt = plain_search(models, sentence, max_length, penalty, beam_size)
            doubts.append(in_doubt)
            if not in_doubt:
                assert_best(found[sentence], complete, n_best)

    check()
    assert len(doubts) >= 5 * tried.max_examples
    assert np.mean(doubts) < 0.02, "near ties left out must be rare"


@random_examples(20)
@given(small_models(kinds=("grid", "level")), st.integers(1, 4))
def test_ties_go_to_the_lower_token_then_the_lower_parent_then_the_earlier(case, beam_size):
    """Without penalty scores tie exactly where totals do, so that only the order decides."""
    models, max_lengths = case
    options = {"beam_size": beam_size, "n_best": beam_size}
    found = search_both_ways(models, max_lengths, (None, 0.0), **options)
    for sentence, max_length in enumerate(max_lengths):
        complete, in_doubt = plain_search(models, sentence, max_length, (None, 0.0), beam_size)
        assert not in_doubt
        assert_best(found[sentence], complete, beam_size, strictly=True)


def test_vocabularies_of_several_chunks_are_searched_as_the_plain_search_does():
    doubts = []

    @random_examples(25)
    @given(
        st.sampled_from(["any", "grid", "level"]),
        seeds,
        st.one_of(st.integers(65, 300), st.sampled_from([128, 256, 320, 640, 700])),
        st.sampled_from([2, 63, 64, -1]),
        st.integers(1, 4),
    )
    def check(kind, seed, vocabulary_size, end, beam_size):
        end %= vocabulary_size
        models = RandomModels(kind, seed, 4, vocabulary_size, 4, end)
        max_lengths, penalty = [4, 3, 2, 4], (None, 0.0)
        options = {"beam_size": beam_size, "n_best": beam_size}
        found = search_both_ways(models, max_lengths, penalty, **options)
        for sentence, max_length in enumerate(max_lengths):
            complete, in_doubt = plain_search(models, sentence, max_length, penalty, beam_size)
            doubts.append(in_doubt)
            if not in_doubt:
                assert_best(found[sentence], complete, beam_size, strictly=kind != "any")

    check()
    assert np.mean(doubts) < 0.02


@pytest.mark.parametrize("vocabulary_size", [128, 300, 1000])
def test_ties_across_chunks_go_to_the_lower_token(vocabulary_size):
    """The best token is in the last chunk, with five that tie with two in earlier chunks."""
    logits = np.zeros(vocabulary_size)
    logits[[63, 64]] = logits[-6:-1] = 5.0
    logits[-1] = 9.0
    _, result = steps_taken(logits, 1, beam_size=3, n_best=3)
    assert result.token_ids.numpy().tolist() == [[[vocabulary_size - 1], [63], [64]]]


@random_examples(60)
@given(st.integers(65, 1000), st.integers(1, 12), seeds)
def test_best_of_a_vocabulary_are_the_first_of_a_stable_sort(vocabulary_size, k, seed):
    values = np.random.default_rng(seed).integers(-40, 1, (2, 2, vocabulary_size)) / 4.0
    values[values < -8.0] = -np.inf
    values[1] += np.random.default_rng(seed).random(values[1].shape)
    expected = np.argsort(-values.astype("float32"), axis=-1, kind="stable")[:, :, :k]
    best, token_ids = top_k(tf.constant(values, tf.float32), k)
    np.testing.assert_array_equal(token_ids, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(values.astype("float32"), expected, -1))


def test_long_sentences_that_end_at_different_steps_leave_the_batch():
    """Compaction shrinks the batch and changes no result; sums are exact, so no tie can flip."""
    models = RandomModels("grid", 5, 24, 12, 40)
    max_lengths, penalty = [(7 * sentence) % 41 for sentence in range(24)], ("gnmt", 0.6)
    batch_sizes = []

    def watch(log_probs, token_ids, index):
        batch_sizes.append(log_probs.shape[0])
        return log_probs

    options = {"beam_size": 3, "n_best": 2}
    found = hypotheses(search(models, max_lengths, penalty, (watch,), **options))
    assert batch_sizes == sorted(batch_sizes, reverse=True) and len(set(batch_sizes)) > 4
    batch_sizes.clear()
    result = search(models, max_lengths, penalty, (watch,), compaction=False, **options)
    assert set(batch_sizes) == {24}
    assert hypotheses(result) == found
    lengths = set()
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, penalty, 3)
        assert_best(found[sentence], complete, 2)
        lengths.add(len(complete[0].tokens))
    assert len(lengths) > 8, "the sentences must end at different steps"


def test_sentence_is_searched_alike_in_every_batch():
    models = RandomModels("any", 3, 20, 5, 6)
    max_lengths = [sentence % 7 for sentence in range(20)]
    options = {"beam_size": 3, "n_best": 3, "penalty": ("mean", 0.7)}
    together = hypotheses(search(models, max_lengths, **options))

    def assert_alike(sentences):
        found = hypotheses(search(models, max_lengths, sentences=sentences, **options))
        for sentence, those in zip(sentences, found, strict=True):
            assert [h.tokens for h in those] == [h.tokens for h in together[sentence]]
            scores = zip(those, together[sentence], strict=True)
            assert all(are_close(one.score, other.score) for one, other in scores)

    for sentence in range(20):
        assert_alike([sentence])
    assert_alike(np.random.default_rng(0).permutation(20).tolist())


def test_search_in_the_graph_is_the_search_in_python():
    """One graph for batches of every size."""
    models = RandomModels("any", 8, 10, 5, 6)
    tokens = {"start_token_id": START, "end_token_id": END, "pad_token_id": PAD}
    options = {"beam_size": 3, "n_best": 2}

    @tf.function(reduce_retracing=True)
    def in_graph(logits, rows, max_lengths):
        cache = {"logits": logits, "rows": rows}
        return beam_search(models.step_fn, cache, max_lengths, **tokens, **options)

    specs = [
        tf.TensorSpec([None, models.rows, 5]),
        tf.TensorSpec([None, 1, 1], tf.int32),
        tf.TensorSpec([None], tf.int32),
    ]
    in_graph = in_graph.get_concrete_function(*specs)
    for sentences in ([0], [5, 4, 1], list(range(10))):
        max_lengths = [6 - sentence % 7 for sentence in range(10)]
        expected = search(models, max_lengths, ("gnmt", 0.6), sentences=sentences, **options)
        cache = models.cache(sentences)
        lengths = tf.constant([max_lengths[sentence] for sentence in sentences])
        assert_same(in_graph(cache["logits"], cache["rows"], lengths), expected)


@random_examples(10)
@given(small_models(), penalties)
def test_beam_of_one_is_greedy_search(case, penalty):
    models, max_lengths = case
    greedy = search(models, max_lengths, penalty, by=greedy_search)
    assert_same(search(models, max_lengths, penalty, beam_size=1), greedy)


def test_search_stops_when_nothing_better_can_come():
    logits = [0.0, 0.0, 1.0, 0.0]  # the end token, 2, is the best at every step
    assert steps_taken(logits, 50, beam_size=2, alpha=0.0)[0] == 1
    assert steps_taken(logits, 50, beam_size=2, n_best=2, alpha=0.0)[0] == 2
    # A longer hypothesis can have a better mean.
    assert steps_taken(logits, 50, beam_size=2, length_penalty="mean", alpha=1.0)[0] > 1
    assert steps_taken(logits, 0, beam_size=2)[0] == 0


@pytest.mark.parametrize("alpha", [math.nan, 1e6, -1e6])
def test_search_ends_at_the_maximum_length_with_any_scores(alpha):
    steps, _ = steps_taken([0.0] * 5, 7, alpha=alpha, processors=(min_length(9, END),))
    assert steps <= 7


def test_search_goes_on_while_the_next_step_may_win():
    """With a negative exponent the bound needs the penalty of the next length, not of the last."""
    logits = [[-math.inf, -math.inf, math.log(0.3), math.log(0.7)], [-9.0, -9.0, 9.0, -9.0]]
    options = {"beam_size": 2, "length_penalty": "mean", "alpha": -1.0}
    _, result = steps_taken(logits, 50, **options)
    assert math.log(0.7) * 2 > math.log(0.3)
    assert result.token_ids.numpy().tolist() == [[[3, END]]]


def test_missing_hypotheses_have_score_minus_infinity_and_length_0():
    certain = [-math.inf, -math.inf, -math.inf, 0.0]  # 3, 3, 3: one hypothesis in all
    _, result = steps_taken(certain, 3, beam_size=3, n_best=3)
    assert result.token_ids.numpy().tolist() == [[[3, 3, 3], [PAD] * 3, [PAD] * 3]]
    assert result.lengths.numpy().tolist() == [[3, 0, 0]]
    assert result.scores.numpy().tolist() == [[0.0, -math.inf, -math.inf]]
    _, result = steps_taken(certain, 0, beam_size=3, n_best=2)
    assert result.token_ids.shape == (1, 2, 0)
    assert result.scores.numpy().tolist() == [[0.0, -math.inf]]


@pytest.mark.parametrize("length_penalty", ["gnmt", "mean", None])
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6])
def test_empty_sentences_stay_empty_beside_others(length_penalty, alpha):
    """The penalty of length 0 is infinite for negative exponents and must not be used."""
    models, max_lengths = RandomModels("any", 0, 3, 4, 3), [3, 0, 3]
    found = search_both_ways(models, max_lengths, (length_penalty, alpha), beam_size=2)
    assert [[tokens for _, tokens, _ in those] == [()] for those in found] == [False, True, False]


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(
    "logits",
    [[0.0, math.nan, 0.0], [0.0, math.inf, 0.0], [-math.inf] * 3, [-math.inf, math.nan, 0.0]],
)
def test_invalid_logits_raise(beam_size, logits):
    with pytest.raises(tf.errors.InvalidArgumentError, match="logits"):
        steps_taken(logits, 3, beam_size=beam_size)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_processor_that_promises_more_than_certainty_is_refused(beam_size):
    def bonus(log_probs, token_ids, index):
        return log_probs + 5.0

    with pytest.raises(tf.errors.InvalidArgumentError, match="processor.*above 0"):
        steps_taken([0.0] * 4, 3, beam_size=beam_size, processors=(bonus,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size.*Received: beam_size=0"),
        ({"beam_size": 2, "n_best": 3}, "n_best.*Received: beam_size=2, n_best=3"),
        ({"beam_size": 2, "n_best": 0}, "n_best.*Received: .*n_best=0"),
        ({"length_penalty": "wu"}, "length_penalty.*Received: .*'wu'"),
        ({"beam_size": 1, "length_penalty": "wu"}, "length_penalty.*Received: .*'wu'"),
    ],
)
def test_arguments_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        steps_taken([0.0] * 4, 3, **options)
