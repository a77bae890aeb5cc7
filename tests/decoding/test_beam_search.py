"""Beam search against exhaustive search and against the same search in plain Python."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding.beam import beam_search, greedy_search
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
    search_every_way,
    seeds,
    small_models,
    stop_rules,
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


@pytest.mark.parametrize("stopping", ["exhaustive", "first_beams"])
def test_search_stops_without_active_hypotheses_even_if_the_penalty_overflows(stopping):
    def forbid_all(log_probs, token_ids, index):
        return tf.fill(tf.shape(log_probs), -float("inf"))

    options = {"alpha": 10.0, "stopping": stopping, "processors": (forbid_all,)}
    steps, result = steps_taken([0.0] * 5, 100_000, **options)
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
    doubts, tried = [], random_examples(100)

    @tried  # times 6 sentences
    @given(small_models(), penalties, stop_rules, st.integers(1, 4), st.data())
    def check(case, penalty, stopping, beam_size, data):
        models, max_lengths = case
        options = {"beam_size": beam_size, "stopping": stopping}
        n_best = data.draw(st.integers(1, beam_size))
        found = search_every_way(models, max_lengths, penalty, n_best=n_best, **options)
        for sentence, max_length in enumerate(max_lengths):
            complete, in_doubt = plain_search(models, sentence, max_length, penalty, **options)
            doubts.append(in_doubt)
            if not in_doubt:
                assert_best(found[sentence], complete, n_best)

    check()
    assert len(doubts) >= 5 * tried.max_examples
    assert np.mean(doubts) < 0.02, "near ties left out must be rare"


@random_examples(40)
@given(small_models(kinds=("grid", "level")), st.integers(1, 4), stop_rules)
def test_ties_go_to_the_lower_token_then_the_lower_parent_then_the_earlier(
    case, beam_size, stopping
):
    """Without penalty scores tie exactly where totals do, so that only the order decides."""
    (models, max_lengths), penalty = case, (None, 0.0)
    options = {"beam_size": beam_size, "stopping": stopping}
    found = search_every_way(models, max_lengths, penalty, n_best=beam_size, **options)
    for sentence, max_length in enumerate(max_lengths):
        complete, in_doubt = plain_search(models, sentence, max_length, penalty, **options)
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
        found = search_every_way(models, max_lengths, penalty, **options)
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


@pytest.mark.parametrize("stopping", ["exhaustive", "first_beams"])
def test_long_sentences_that_end_at_different_steps_leave_the_batch(stopping):
    """Compaction shrinks the batch and changes no result; sums are exact, so no tie can flip."""
    models = RandomModels("grid", 5, 24, 12, 40)
    max_lengths, penalty = [(7 * sentence) % 41 for sentence in range(24)], ("gnmt", 0.6)
    batch_sizes = []

    def watch(log_probs, token_ids, index):
        batch_sizes.append(log_probs.shape[0])
        return log_probs

    options = {"beam_size": 3, "stopping": stopping}
    found = hypotheses(search(models, max_lengths, penalty, (watch,), n_best=2, **options))
    assert batch_sizes == sorted(batch_sizes, reverse=True) and len(set(batch_sizes)) > 4
    batch_sizes.clear()
    whole = {"n_best": 2, "compaction": False, **options}
    result = search(models, max_lengths, penalty, (watch,), **whole)
    assert set(batch_sizes) == {24}
    assert hypotheses(result) == found
    lengths = set()
    for sentence, max_length in enumerate(max_lengths):
        complete, _ = plain_search(models, sentence, max_length, penalty, **options)
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


@pytest.mark.parametrize("stopping", ["exhaustive", "first_beams"])
def test_search_in_the_graph_is_the_search_in_python(stopping):
    """One graph for batches of every size."""
    models = RandomModels("any", 8, 10, 5, 6)
    tokens = {"start_token_id": START, "end_token_id": END, "pad_token_id": PAD}
    options = {"beam_size": 3, "n_best": 2, "stopping": stopping}

    @tf.function(reduce_retracing=True, autograph=False)
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


@pytest.mark.parametrize(
    ("stopping", "steps", "tokens", "probability", "length"),
    [("first_beams", 2, [3, END], 0.3, 2), ("exhaustive", 3, [3, 3, END], 0.2, 3)],
)
def test_search_stops_at_beam_size_ended_hypotheses(stopping, steps, tokens, probability, length):
    """END and 3, END have ended after two steps; 3, 3, END has a higher mean."""
    table = np.log([[1e-9, 1e-9, 0.5, 0.5], [1e-9, 1e-9, 0.6, 0.4], [1e-9, 1e-9, 1.0, 1e-9]])
    options = {"beam_size": 2, "length_penalty": "mean", "alpha": 1.0, "stopping": stopping}
    taken, result = steps_taken(table, 4, **options)
    assert taken == steps and result.token_ids.numpy().tolist() == [[tokens]]
    assert are_close(result.scores.numpy().item(), math.log(probability) / length)


@pytest.mark.parametrize(("stopping", "tokens"), [("first_beams", [3, END]), ("exhaustive", [END])])
def test_end_beyond_the_first_beams_is_dropped(stopping, tokens):
    """END is the third candidate of the first step, more probable than all that follow."""
    table = np.log([[1e-9, 1e-9, 0.2, 0.5, 0.3], [1e-9, 1e-9, 0.35, 0.35, 0.3]])
    options = {"beam_size": 2, "length_penalty": None, "stopping": stopping}
    _, result = steps_taken(table, 9, **options)
    assert result.token_ids.numpy().tolist() == [[tokens]]


def test_end_beyond_the_first_beams_does_not_stay_active():
    """Of 3 END, 3 3, 4 END and 4 3, the second and the last go on."""
    table = np.full((5, 5), -1e9, "float32")
    table[START, 3:] = np.log([0.6, 0.4])
    table[3, 2:] = table[4, 2:] = np.log([0.5, 0.4, 0.1])
    table[END, 3] = 0.0

    def step_fn(token_ids, parents, cache, index):
        return StepOutput(tf.gather(table, token_ids), cache)

    options = {"beam_size": 2, "n_best": 2, "length_penalty": None, "stopping": "first_beams"}
    result = beam_search(step_fn, (), tf.constant([3]), START, END, **options)
    assert result.token_ids.numpy().tolist() == [[[3, END, PAD], [3, 3, END]]]


def test_impossible_end_does_not_count_as_ended():
    """With 0 as the end token, it is the second candidate of the first steps."""
    answers = iter([[-math.inf, -math.inf, 0.0]] * 3 + [[0.0, -math.inf, -math.inf]])

    def step_fn(token_ids, parents, cache, index):
        return StepOutput(tf.broadcast_to(next(answers), [*token_ids.shape, 3]), cache)

    options = {"beam_size": 2, "stopping": "first_beams"}
    result = beam_search(step_fn, (), tf.constant([9]), START, 0, 1, **options)
    assert result.token_ids.numpy().tolist() == [[[2, 2, 2, 0]]]


def test_first_beams_finish_at_the_maximum_length():
    """And all that end in the last step count, though one had ended before and two are enough."""
    table = np.log([[1e-9, 1e-9, 0.5, 0.3, 0.2], [1e-9, 1e-9, 0.4, 0.35, 0.25]])
    options = {"beam_size": 2, "n_best": 2, "length_penalty": "mean", "alpha": 2.0}
    _, result = steps_taken(table, 2, stopping="first_beams", **options)
    # The candidates are 3 END, 3 3, 4 END, 3 4: the first two finish beside END.
    assert result.token_ids.numpy().tolist() == [[[3, END], [3, 3]]]
    scores = [math.log(0.3 * p) / 4 for p in (0.4, 0.35)]
    np.testing.assert_allclose(result.scores.numpy()[0], scores, rtol=1e-5)


def test_search_without_the_end_token_in_lengths_goes_on_while_the_next_step_may_win():
    """With a negative exponent the bound needs the penalty of the length without the end."""
    logits = [[-math.inf, -math.inf, math.log(0.45), math.log(0.55)], [-9.0, -9.0, 9.0, -9.0]]
    options = {"beam_size": 2, "length_penalty": "mean", "alpha": -1.0, "count_end_token": False}
    steps, result = steps_taken(logits, 50, **options)
    assert steps == 2 and result.token_ids.numpy().tolist() == [[[3, END]]]
    assert are_close(result.scores.numpy().item(), math.log(0.55))


def test_search_goes_on_while_a_hypothesis_that_will_be_cut_may_win():
    """It has no end token to leave out, so its length can be the maximum length."""
    logits = [np.log([1e-9, 1e-9, 0.6, 0.4]), [-9.0, -9.0, -9.0, 9.0]]
    options = {"beam_size": 2, "length_penalty": "mean", "alpha": 1.0, "count_end_token": False}
    _, result = steps_taken(logits, 2, **options)
    assert math.log(0.4) / 2 > math.log(0.6)
    assert result.token_ids.numpy().tolist() == [[[3, 3]]]


@pytest.mark.parametrize("by", [beam_search, greedy_search])
@pytest.mark.parametrize(
    ("probabilities", "tokens"), [([1e-9, 1e-9, 0.6, 0.4], [END]), ([1e-9, 0.4, 1e-9, 0.6], [3, 3])]
)
def test_length_without_the_end_token_is_at_least_1(by, probabilities, tokens):
    """A hypothesis that was cut at the maximum length has no end token to leave out."""

    def step_fn(token_ids, parents, cache, index):
        logits = tf.constant(np.log(probabilities), tf.float32)
        return StepOutput(tf.broadcast_to(logits, [*token_ids.shape, 4]), cache)

    penalty = {"length_penalty": "mean", "alpha": 1.0, "count_end_token": False}
    result = by(step_fn, (), tf.constant([2]), START, END, **penalty)
    assert result.token_ids.numpy().tolist() == [[tokens]]
    assert are_close(result.scores.numpy().item(), math.log(0.6))


@pytest.mark.parametrize("alpha", [10.0, -10.0])
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
    found = search_every_way(models, max_lengths, (length_penalty, alpha), beam_size=2)
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
        ({"beam_size": 2, "n_best": 3}, "n_best.*Received: n_best=3, beam_size=2"),
        ({"beam_size": 2, "n_best": 0}, "n_best.*Received: .*n_best=0"),
        ({"beam_size": 1, "length_penalty": "wu"}, "length_penalty.*Received: .*'wu'"),
    ],
)
def test_arguments_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        steps_taken([0.0] * 4, 3, **options)
