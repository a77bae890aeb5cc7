"""All batches of a corpus have a few shapes: nested, within the budget, with the least padding."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from keras_transformer.data.batching import plan_batches
from keras_transformer.data.shapes import Shapes, choose_sides
from tests.examples import examples


def lengths_of(most_pairs, longest):
    shape = st.tuples(st.integers(1, most_pairs), st.just(2))
    return arrays(np.int64, shape, elements=st.integers(2, longest))


@examples(short=30, long=200)
@given(
    lengths=lengths_of(200, 60),
    number=st.integers(1, 9),
    size=st.one_of(
        st.integers(20, 1000).map(lambda n: {"batch_tokens": n}),
        st.integers(1, 50).map(lambda n: {"batch_sentences": n}),
    ),
    shuffle=st.booleans(),
)
def test_every_batch_has_a_row_for_each_pair_in_one_of_a_few_shapes(lengths, number, size, shuffle):
    shapes = Shapes(lengths, number, **size)
    used = []
    for epoch in range(2):
        options = {**size, "shuffle": shuffle, "epoch": epoch, "shapes": shapes}
        batches = plan_batches(lengths, np.arange(len(lengths)), **options)
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        found = [shapes.find(lengths[rows]) for rows in batches]
        for rows, shape in zip(batches, found, strict=True):
            assert ([len(rows), *lengths[rows].max(axis=0)] <= np.array(shape)).all()
            num_rows, *sides = shape
            assert num_rows <= size.get("batch_sentences", np.inf)
            assert num_rows == 1 or num_rows * max(sides) <= size.get("batch_tokens", np.inf)
        # Only one batch is not full: the last one of the smallest shape.
        partial = [s for rows, s in zip(batches, found, strict=True) if len(rows) < s[0]]
        assert partial in ([], [min(found, key=lambda shape: shape[1:])])
        used.append(sorted(found))
    assert used[0] == used[1]
    assert len(set(used[0])) <= number


def slots(lengths, sides):
    """Slots of all pairs, each padded to the shape of fewest slots that holds it."""
    holds = (lengths[:, None] <= np.array(sides)).all(axis=2)
    return np.where(holds, np.sum(sides, axis=1), np.inf).min(axis=1).sum()


def is_nested(sides):
    return all(
        one[0] <= other[0] and one[1] <= other[1] for one, other in itertools.pairwise(sides)
    )


@examples(short=30, long=200)
@given(lengths=lengths_of(5, 20), number=st.integers(1, 3))
def test_no_other_shapes_have_less_padding(lengths, number):
    """Of all nested shapes; and of all shapes, none has less than half of the slots."""
    found = slots(lengths, choose_sides(lengths, number))
    candidates = sorted(itertools.product(*(set(side.tolist()) for side in lengths.T)))
    every = list(itertools.combinations_with_replacement(candidates, number))
    assert found == min(slots(lengths, sides) for sides in every if is_nested(sides))
    assert found <= 2 * min(slots(lengths, sides) for sides in every)


def test_lengths_above_20_are_rounded_up_by_at_most_5_percent():
    lengths = np.arange(2, 120)
    (found,) = {
        tuple(side) for side in choose_sides(np.stack([lengths] * 2, axis=1), 80).T.tolist()
    }
    rounded = np.array(found)[np.searchsorted(found, lengths)]
    assert (rounded[lengths <= 20] == lengths[lengths <= 20]).all()
    assert (lengths > 0.95 * rounded).all()
