"""The searches in plain Python, and random models that both implementations search.

The plain searches handle one sentence at a time, with lists and float64, without padding, and stop
only where the rule says so: `"exhaustive"` never does.
"""

import math
from typing import NamedTuple

import keras
import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.beam import make_search
from keras_transformer.decoding.engine import SearchResult
from keras_transformer.decoding.search import StepOutput, trim
from keras_transformer.decoding.search_settings import SearchSettings
from tests.examples import examples

BACKEND = keras.config.backend()
PAD, START, END = 0, 1, 2
TOLERANCE = 1e-5
GRID = 4.0  # log-probs that are multiples of 1 / GRID have exact sums in float32


class Hypothesis(NamedTuple):
    score: float
    tokens: tuple
    log_probs: tuple


def are_close(a, b):
    """Equal up to float32 rounding: to 1e-5, relative where the magnitude is above 1."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def scored(tokens, log_probs, length_penalty, alpha):
    n = len(tokens)
    if n == 0:
        return Hypothesis(0.0, (), ())
    penalty = {"gnmt": ((5 + n) / 6) ** alpha, "mean": n**alpha, None: 1.0}[length_penalty]
    return Hypothesis(sum(log_probs) / penalty, tokens, log_probs)


def best_first(complete, penalty):
    """The sort is stable: of equal scores the earlier hypothesis stays first."""
    hypotheses = [scored(*both, *penalty) for both in complete]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def is_complete(tokens, max_length, end):
    return len(tokens) == max_length or tokens[-1:] == (end,)


def all_hypotheses(next_log_probs, max_length, penalty, end=END):
    """Every possible hypothesis, best first. `next_log_probs`: from the prefix to V floats."""

    def extensions(tokens, log_probs):
        if is_complete(tokens, max_length, end):
            yield tokens, log_probs
            return
        for token, log_prob in enumerate(next_log_probs(tokens)):
            if log_prob > -math.inf:
                yield from extensions((*tokens, token), (*log_probs, log_prob))

    return best_first(extensions((), ()), penalty)


def summands(tokens, log_probs):
    """The log-probs of a total that are not 0, each with the prefix it follows."""
    return [(tokens[:t], x) for t, x in enumerate(log_probs) if x]


def beam_hypotheses(next_log_probs, max_length, penalty, beam_size, end=END, stopping="exhaustive"):
    """Every finished hypothesis, best first, and whether rounding may decide the order.

    It may where the totals of two neighbouring candidates are close but are sums of different
    log-probs.
    """
    alive, complete, in_doubt = [((), ())], [], False
    if max_length == 0:
        alive, complete = [], alive
    while alive:
        candidates = sorted(
            (-sum((*log_probs, log_prob)), token, slot, (*tokens, token), (*log_probs, log_prob))
            for slot, (tokens, log_probs) in enumerate(alive)
            for token, log_prob in enumerate(next_log_probs(tokens))
            if log_prob > -math.inf
        )
        watched = candidates[: 2 * beam_size + 1]
        for one, other in zip(watched, watched[1:], strict=False):
            in_doubt |= are_close(one[0], other[0]) and summands(*one[3:]) != summands(*other[3:])
        chosen = [candidate[-2:] for candidate in candidates[: 2 * beam_size]]
        may_end = chosen[:beam_size] if stopping == "first_beams" else chosen
        complete += [c for c in may_end if is_complete(c[0], max_length, end)]
        alive = [c for c in chosen if not is_complete(c[0], max_length, end)][:beam_size]
        if stopping == "first_beams" and len(complete) >= beam_size:
            break
    return best_first(complete, penalty), in_doubt


def greedy_hypotheses(next_log_probs, max_length, penalty, end=END):
    """A list of one hypothesis, or an empty list if no token was possible."""
    tokens, log_probs = (), ()
    while not is_complete(tokens, max_length, end):
        row = next_log_probs(tokens)
        best = max(row)
        if best == -math.inf:
            return []
        tokens, log_probs = (*tokens, row.index(best)), (*log_probs, best)
    return [scored(tokens, log_probs, *penalty)]


class RandomModels:
    """A batch of models, one per sentence, whose next token depends on the whole prefix.

    Args:
        kind: str. `"any"`: continuous logits, with ties within a step. `"grid"`: small integers,
            with ties everywhere. `"level"`: at every step of a sentence equally many tokens are
            possible, with equal logits, so all prefixes of one length tie. Searches of the last two
            need the processor `on_grid`, which makes all sums exact.
        seed: int.
        count: int. Number of sentences.
        vocabulary_size: int.
        max_length: int. Prefixes up to this length have their own logits, as far as the 499 rows of
            a model suffice; other prefixes share rows.
        end: int, the end token.

    In each kind some sentences have impossible tokens (logit -inf), often all but one, which is
    then certain; some sentences end early, some late.
    """

    def __init__(self, kind, seed, count, vocabulary_size, max_length, end=END):
        self._arguments = (kind, seed, count, vocabulary_size, max_length, end)
        rng = np.random.default_rng(seed)
        prefixes = sum(vocabulary_size**length for length in range(max_length))
        self.kind, self.count, self.end = kind, count, end
        self.vocabulary_size, self.max_length = vocabulary_size, max_length
        self.rows = prefixes if vocabulary_size <= 5 and max_length <= 6 else 499
        shape = (count, self.rows, vocabulary_size)
        logits = rng.normal(0.0, 1.5, shape)
        if kind == "any":
            # Rounding makes ties within a row; the scale of each row prevents ties between rows.
            scale = rng.uniform(0.5, 1.5, (count, self.rows, 1))
            rounded = rng.random((count, self.rows, 1)) < 0.3
            logits = np.where(rounded, np.rint(logits) * scale, logits)
            logits[:, :, end] += rng.normal(0.0, 2.0, (count, 1))
        else:
            logits = np.rint(logits)
            logits[:, :, end] += rng.integers(-3, 3, (count, 1))
        impossible = rng.random(shape) < rng.choice([0.0, 0.3, 0.7], (count, 1, 1))
        np.put_along_axis(impossible, rng.integers(0, vocabulary_size, (*shape[:2], 1)), False, -1)
        if kind == "level":
            possible = rng.integers(1, vocabulary_size + 1, (count, 1, 1))
            impossible = rng.random(shape).argsort(axis=-1) >= possible
            logits = np.zeros(shape)
        logits[impossible] = -np.inf
        if kind == "grid":
            logits = _apart_from_rounding(logits)
        self.logits = logits.astype("float32")
        log_probs = _log_softmax(self.logits.astype("float64"))
        if kind != "any":
            log_probs = np.rint(log_probs * GRID) / GRID
        self._log_probs = log_probs.tolist()

    def __repr__(self):
        """Shown in the report of a failing example."""
        return f"RandomModels{self._arguments}"

    @property
    def processors(self):
        """The processors that a search of these models needs, before those of the test."""
        return () if self.kind == "any" else (on_grid,)

    def with_all_possible(self):
        """Makes all tokens possible for the search; the oracle does not follow."""
        self.logits = np.maximum(self.logits, -9.0)
        return self

    def row(self, prefix):
        code = 0
        for token in prefix:
            code = code * self.vocabulary_size + token + 1
        return code % self.rows

    def next_log_probs(self, sentence, constraints=()):
        """For the oracle. A constraint maps log-probs and tokens so far to log-probs."""

        def from_prefix(prefix):
            log_probs = self._log_probs[sentence][self.row(prefix)]
            for constraint in constraints:
                log_probs = constraint(log_probs, prefix)
            return log_probs

        return from_prefix

    def cache(self, sentences, slots=None):
        """It grows, unless it has room for a number of hypotheses from the start."""
        logits = ops.convert_to_tensor(self.logits[list(sentences)])
        row = ops.zeros((len(sentences), slots or 1), "int32")
        grows = {} if slots else {"past": ops.zeros((len(sentences), 1, 0))}
        return {"logits": logits, "row": row, **grows}

    def step_fn(self, token_ids, parents, cache, index):
        """For the search. The prefix is known only through the cache."""
        row = ops.take_along_axis(cache["row"], parents, axis=1)
        row = (row * self.vocabulary_size + token_ids + 1) % self.rows
        row = ops.where(index == 0, token_ids - START, row)  # a wrong start token changes the row
        logits = ops.take_along_axis(cache["logits"], row[:, :, None], axis=1)
        logits = ops.reshape(logits, (*ops.shape(row), self.vocabulary_size))
        cache = {**cache, "row": row}
        if "past" in cache:
            cache["past"] = ops.concatenate([cache["past"], cache["logits"][:, :1, :1]], axis=2)
        return StepOutput(logits, cache)


def on_grid(log_probs, token_ids, index):
    """A processor: rounds log-probs so that every order of adding them gives the same bits."""
    return ops.round(log_probs * GRID) / GRID


on_grid.takes_room = True  # compiled once on JAX, not for each length


def _log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _apart_from_rounding(logits):
    """Keeps only the best tokens where float32 might round a log-prob to another multiple."""
    log_probs = np.where(np.isinf(logits), 0.0, _log_softmax(logits)) * GRID
    to_boundary = np.abs(log_probs - np.floor(log_probs) - 0.5).min(axis=-1, keepdims=True)
    is_best = logits == logits.max(axis=-1, keepdims=True)
    return np.where((to_boundary < 1e-4) & ~is_best, -np.inf, logits)


def hypotheses(result, end=END, pad=PAD):
    """A `SearchResult` as a list of `Hypothesis` per sentence, after a check of its form."""
    tokens, lengths, scores, log_probs = result
    assert tokens.dtype == lengths.dtype == np.int32
    assert scores.dtype == log_probs.dtype == np.float32
    assert tokens.shape == log_probs.shape
    assert tokens.shape[:2] == lengths.shape == scores.shape
    is_padding = np.arange(tokens.shape[2]) >= lengths[:, :, None]
    assert np.all(tokens[is_padding] == pad) and np.all(log_probs[is_padding] == 0.0)
    with np.errstate(invalid="ignore"):  # -inf after -inf
        assert not np.any(np.diff(scores, axis=1) > 0.0), "not sorted by score"
    found = []
    for sentence in zip(tokens, lengths, scores, log_probs, strict=True):
        found.append([])
        for row, length, score, row_log_probs in zip(*sentence, strict=True):
            if score == -np.inf:
                assert length == 0
                continue
            assert end not in row[: max(length - 1, 0)], "a token follows an end token"
            row, row_log_probs = tuple(row[:length].tolist()), row_log_probs[:length].tolist()
            found[-1].append(Hypothesis(float(score), row, tuple(row_log_probs)))
    return found


def assert_best(found, complete, n_best, strictly=False):
    """`found` are the `n_best` of all `complete`; with `strictly`, also among equal scores."""
    expected = {hypothesis.tokens: hypothesis for hypothesis in complete}
    assert len(found) == len({hypothesis.tokens for hypothesis in found})
    for hypothesis, best in zip(found, complete[:n_best], strict=True):
        assert are_close(hypothesis.score, best.score)
        same = expected[hypothesis.tokens]
        assert are_close(hypothesis.score, same.score)
        assert all(map(are_close, hypothesis.log_probs, same.log_probs))
        assert not strictly or hypothesis.tokens == best.tokens


# `length_penalty`, `alpha`.
penalties = st.tuples(
    st.sampled_from(["gnmt", "mean", None]),
    st.sampled_from([0.6, 1.0, 2.0, 0.0, -0.5, -2.0]),
)
stop_rules = st.sampled_from(["exhaustive", "first_beams"])
seeds = st.integers(0, 2**32 - 1)


def random_examples(count):
    """Settings of a property: an eighth of `count` examples, or half of them with `--long`.

    They are the same ones every time. JAX compiles each of them, so it gets few.
    """
    return examples(
        short=count // (40 if BACKEND == "jax" else 8),
        long=count // 2,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def small_models(draw, kinds=("any", "grid", "level"), count=6):
    """Models of 3 to 5 tokens, and maximum lengths, which differ in half of the cases."""
    longest = draw(st.integers(1, 6))
    kind, seed, vocabulary_size = draw(st.sampled_from(kinds)), draw(seeds), draw(st.integers(3, 5))
    models = RandomModels(kind, seed, count, vocabulary_size, longest)
    lengths = st.integers(0, longest) if draw(st.booleans()) else st.just(longest)
    return models, draw(st.lists(lengths, min_size=count, max_size=count))


def exhaustive_width(models, max_lengths):
    """The number of hypotheses that can be unfinished before the last step."""
    return (models.vocabulary_size - 1) ** (max(*max_lengths, 1) - 1)


def plain_search(
    models, sentence, max_length, penalty, beam_size, constraints=(), stopping="exhaustive"
):
    """The hypotheses that a search finishes, best first, and whether rounding may decide.

    With `beam_size=None` all possible hypotheses.
    """
    model = models.next_log_probs(sentence, constraints)
    if beam_size is None:
        return all_hypotheses(model, max_length, penalty, models.end), False
    if beam_size == 1:
        return greedy_hypotheses(model, max_length, penalty, models.end), False
    rules = penalty, beam_size, models.end, stopping
    complete, in_doubt = beam_hypotheses(model, max_length, *rules)
    return complete, in_doubt and models.kind == "any"  # in other kinds all sums are exact


def search(
    models,
    max_lengths,
    penalty=(None, 0.0),
    processors=(),
    *,
    sentences=None,
    n_best=1,
    target_prefix=None,
    is_fixed=BACKEND == "jax",
    compaction=True,
    **settings,
):
    """Searches all sentences, or `sentences`. Returns a `SearchResult` of arrays."""
    settings |= zip(("length_penalty", "alpha"), penalty, strict=True)
    settings = SearchSettings(processors=(*models.processors, *processors), **settings)
    sentences = range(models.count) if sentences is None else sentences
    lengths = np.array([max_lengths[sentence] for sentence in sentences], "int32")
    tokens = {"end_token_id": models.end, "pad_token_id": PAD}
    length = max(*lengths.tolist(), 1) if is_fixed else None
    made = make_search(settings, n_best, step_fn=models.step_fn, fixed_length=length, **tokens)

    def run(cache, lengths, prefix):
        return made.run(cache, lengths, START, prefix, compaction)

    cache = models.cache(sentences, settings.max_hypotheses if is_fixed else None)
    run = compiled(run) if settings.sampler is None else run  # a sampler has a state
    result = run(cache, ops.convert_to_tensor(lengths), target_prefix)
    return SearchResult(
        *map(ops.convert_to_numpy, trim(result, made.pad_token_id) if is_fixed else result)
    )


def compiled(function):
    """What runs on JAX, where operations outside a program take very long."""
    if BACKEND != "jax":
        return function
    import jax

    return jax.jit(function)


def search_every_way(models, max_lengths, penalty, **options):
    """The hypotheses: the same with and without compaction, and with the shapes of XLA."""
    result = search(models, max_lengths, penalty, **options)
    if BACKEND == "tensorflow":
        assert_same(result, search(models, max_lengths, penalty, compaction=False, **options))
    if BACKEND != "jax":
        assert_same(result, search(models, max_lengths, penalty, is_fixed=True, **options))
    return hypotheses(result, models.end)


def assert_same(result, other):
    """The same `SearchResult` up to rounding, which depends on the batch."""
    for one, another in zip(result, other, strict=True):
        np.testing.assert_allclose(one, another, rtol=TOLERANCE, atol=TOLERANCE)
