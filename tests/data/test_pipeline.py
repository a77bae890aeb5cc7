"""Batches hold every pair once, within the budget, in an order set by seed and epoch."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from keras_transformer.data.batching import plan_batches
from keras_transformer.data.corpus import read_parallel
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.pipeline import BatchStream, make_dataset
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.models.config import TransformerConfig
from tests.builders import tokenizer_fixture
from tests.data.test_feeder import assert_same_batches, planned
from tests.examples import examples
from tests.shared_data import DATA, missing

pytestmark = pytest.mark.tensorflow_only
PAD, START, END = 0, 1, 2
PAIRS = number_names(size=600)
# Pairs for each reason to drop them, with `max_length=80` and `max_length_ratio=9`.
UNFIT = {
    "empty": [("", "nichts"), ("nothing", " \t"), ("", "")],
    "too long": [("one " * 50, "eins " * 50)],
    "length ratio": [("one", "eins zwei drei vier fünf " * 3), ("one " * 25, "eins")],
}

lengths_of_pairs = arrays(
    np.int64, st.tuples(st.integers(1, 200), st.just(2)), elements=st.integers(2, 60)
)


tokenizer = tokenizer_fixture(PAIRS, 340)


source_tokenizer = tokenizer_fixture([[source] for source, _ in PAIRS], 310)


def plan_all(lengths, **options):
    return plan_batches(lengths, np.arange(len(lengths)), **options)


@examples(short=40, long=200)
@given(
    lengths=lengths_of_pairs,
    batch_tokens=st.integers(60, 1000),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_plan_holds_every_row_once_within_the_budget(lengths, batch_tokens, seed, shuffle):
    counts = set()
    for epoch in range(3):
        batches = plan_all(
            lengths, batch_tokens=batch_tokens, shuffle=shuffle, seed=seed, epoch=epoch
        )
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        assert all(len(rows) * lengths[rows].max() <= batch_tokens for rows in batches)
        counts.add(len(batches))
    assert len(counts) == 1


@examples(short=25, long=100)
@given(lengths=lengths_of_pairs, batch_sentences=st.integers(1, 50))
def test_plan_by_sentences_makes_the_fewest_batches(lengths, batch_sentences):
    batches = plan_all(lengths, batch_sentences=batch_sentences)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert max(map(len, batches)) <= batch_sentences
    assert len(batches) == -(-len(lengths) // batch_sentences)


def random_lengths(num_pairs=3000):
    return np.random.default_rng(0).integers(2, 40, (num_pairs, 2))


def members(batches):
    return {frozenset(rows.tolist()) for rows in batches}


def test_plan_is_a_function_of_seed_and_epoch():
    lengths = random_lengths()
    options = {"batch_tokens": 2000}
    again = plan_all(lengths, seed=1, epoch=1, **options)
    assert_same_batches(again, plan_all(lengths, seed=1, epoch=1, **options))
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        plan = plan_all(lengths, seed=seed, epoch=epoch, **options)
        # Different members, not only a different order.
        assert len(members(plan) & members(again)) < len(again) / 4
    options["shuffle"] = False
    plans = [plan_all(lengths, seed=seed, epoch=seed, **options) for seed in (0, 1)]
    assert_same_batches(*plans)
    assert lengths[plans[0][0]].max() == lengths.max()  # longest first


def test_plan_makes_a_row_over_the_budget_a_batch_by_itself():
    lengths = np.array([[5, 9], [3, 3], [2, 3], [40, 2], [39, 39]])
    expected = {frozenset([0]), frozenset([1, 2]), frozenset([3]), frozenset([4])}
    assert members(plan_all(lengths, batch_tokens=8)) == expected


def test_plan_orders_batches_independently_of_length():
    longest = [
        random_lengths()[rows].max() for rows in plan_all(random_lengths(), batch_tokens=800)
    ]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def test_first_epoch_is_that_of_the_first_iteration(tokenizer):
    dataset, report = make_dataset(PAIRS, tokenizer, batch_tokens=5000, seed=5, first_epoch=2)
    assert dataset.cardinality().numpy() == report.batches_per_epoch > 1
    assert_same_batches(dataset.as_numpy_iterator(), planned(dataset.stream, 2))


def padded(rows):
    """The rows as an array of a batch."""
    widest = max(map(len, rows))
    return np.array([[*row, *[PAD] * (widest - len(row))] for row in rows])


def test_batches_hold_the_pairs_that_are_named_teacher_forced_and_counted(
    tokenizer, source_tokenizer
):
    # Dropped pairs count in the indices of the kept ones.
    pairs = [*UNFIT["empty"], *PAIRS[:200], *UNFIT["too long"], *PAIRS[200:]]
    stream = BatchStream(pairs, source_tokenizer, tokenizer, batch_tokens=900, max_length=80)
    sources, targets = zip(*pairs, strict=True)
    sources = source_tokenizer.encode(list(sources))
    targets = tokenizer.encode(list(targets))
    rows = enumerate(zip(sources, targets, strict=True))
    kept = [number for number, sides in rows if all(0 < len(side) < 80 for side in sides)]
    for epoch in (0, 1):
        stream.seek(epoch)
        batches = list(stream.dataset().as_numpy_iterator())
        named, counts = stream.batches(epoch), stream.token_counts(epoch)
        assert sorted(np.concatenate(named)) == kept
        for (inputs, labels, weights), numbers, count in zip(batches, named, counts, strict=True):
            source = inputs["encoder_token_ids"]
            np.testing.assert_array_equal(source, padded([[*sources[n], END] for n in numbers]))
            np.testing.assert_array_equal(labels, padded([[*targets[n], END] for n in numbers]))
            decoder_ids = padded([[START, *targets[n]] for n in numbers])
            np.testing.assert_array_equal(inputs["decoder_token_ids"], decoder_ids)
            np.testing.assert_array_equal(weights, labels != PAD)
            assert max(source.size, labels.size) <= 900
            target_tokens, source_tokens = np.sum(labels != PAD), np.sum(source != PAD)
            slots = source.size + labels.size
            assert count.tolist() == [target_tokens, source_tokens + target_tokens, slots]


def test_what_is_dropped_is_counted_by_reason(tokenizer):
    pairs = PAIRS[:100] + [pair for unfit in UNFIT.values() for pair in unfit]
    _, report = make_dataset(pairs, tokenizer, batch_tokens=700, max_length=80, max_length_ratio=9)
    assert report.dropped == {reason: len(unfit) for reason, unfit in UNFIT.items()}
    assert (report.pairs_read, report.pairs_kept) == (len(pairs), 100)
    for reason, unfit in UNFIT.items():
        assert f"{reason} {len(unfit)}" in str(report)


def test_pair_over_the_token_budget_is_dropped_if_lengths_are_limited(tokenizer):
    length = len(tokenizer.encode("one " * 20, add_end=True))
    pairs = [("one " * 20, "eins"), ("two", "zwei")]
    rows = (length - 1, 256, 1), (length, 256, 0), (length - 1, None, 0)
    for batch_tokens, max_length, dropped in rows:
        options = {"max_length": max_length, "max_length_ratio": None}
        _, report = make_dataset(pairs, tokenizer, batch_tokens=batch_tokens, **options)
        assert (report.dropped["too long"], report.pairs_kept) == (dropped, 2 - dropped)


def test_report_counts_tokens_and_slots(tokenizer):
    dataset, report = make_dataset(PAIRS, tokenizer, batch_tokens=700)
    batches = list(dataset.as_numpy_iterator())
    sides = [inputs["encoder_token_ids"] for inputs, _, _ in batches], [b[1] for b in batches]
    tokens = [sum(np.sum(ids != PAD) for ids in side) for side in sides]
    slots = [sum(map(np.size, side)) for side in sides]
    assert [report.source_tokens, report.target_tokens] == tokens
    source, target, both = tokens[0] / slots[0], tokens[1] / slots[1], sum(tokens) / sum(slots)
    assert report.efficiency == both
    assert f"{both:.1%} of the token slots" in str(report)
    assert f"(source {source:.1%}, target {target:.1%})" in str(report)


@pytest.mark.long
def test_nine_tenths_of_the_slots_of_multi30k_are_real_tokens(tmp_path):
    files = [DATA / "multi30k" / f"train.lc.norm.tok.{side}.gz" for side in ("en", "de")]
    if not all(map(os.path.exists, files)):
        pytest.skip(missing("Multi30k"))
    tokenizer = Tokenizer.train(files, 8000, tmp_path / "joint.model")
    _, report = make_dataset(read_parallel(*files), tokenizer, batch_tokens=8192)
    assert report.pairs_kept == report.pairs_read == 29_000
    assert report.efficiency >= 0.9
    _, report = make_dataset(read_parallel(*files), tokenizer, batch_tokens=8192, shapes=8)
    assert len(report.shapes) == 8
    assert round(report.efficiency, 2) >= 0.88


@pytest.mark.parametrize(
    ("pairs", "arguments", "named"),
    [
        (PAIRS, {}, "batch_tokens=None, batch_sentences=None"),
        (PAIRS, {"batch_tokens": 9, "batch_sentences": 9}, "batch_tokens=9, batch_sentences=9"),
        (PAIRS, {"batch_tokens": 0}, "batch_tokens=0"),
        (PAIRS, {"batch_sentences": 2, "seed": -1}, "`seed` must be at least 0.*seed=-1"),
        (UNFIT["empty"], {"batch_tokens": 700}, r"3 pairs \(dropped: empty 3, too long 0"),
    ],
)
def test_bad_arguments_are_named(tokenizer, pairs, arguments, named):
    with pytest.raises(ValueError, match=named):
        make_dataset(pairs, tokenizer, **arguments)


def test_dataset_that_does_not_count_epochs_starts_at_seek(tokenizer):
    """Also after a complete iteration."""
    stream = BatchStream(PAIRS, tokenizer, batch_tokens=3000)
    dataset = stream.dataset(counts_epochs=False)
    expected = {}
    for epoch in (0, 1):
        stream.seek(epoch)
        expected[epoch] = [batch[1].numpy().tolist() for batch in dataset]
        assert [batch[1].numpy().tolist() for batch in dataset] == expected[epoch]
    assert expected[0] != expected[1]


def learned(tokenizer, positions, **overrides):
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, **overrides}
    return TransformerConfig(positions="learned", max_sequence_length=positions, **sizes)


def test_pairs_beyond_learned_positions_raise_or_are_dropped(tokenizer):
    pairs = [("one " * n, "eins") for n in range(1, 30)]
    lengths = [len(tokenizer.encode(source, add_end=True)) for source, _ in pairs]
    config = learned(tokenizer, 20)
    options = {"batch_tokens": 700, "max_length_ratio": None, "config": config}
    with pytest.raises(ValueError, match="max_length=21, max_sequence_length=20"):
        make_dataset(pairs, tokenizer, max_length=21, **options)
    with pytest.raises(ValueError, match="max_length=256, max_sequence_length=20"):
        make_dataset(pairs, tokenizer, **options)
    for max_length in (20, None):
        dataset, report = make_dataset(pairs, tokenizer, max_length=max_length, **options)
        assert report.dropped["too long"] == sum(length > 20 for length in lengths) > 0
        assert max(inputs["encoder_token_ids"].shape[1] for inputs, _, _ in dataset) <= 20
    sinusoidal = TransformerConfig(vocabulary_size=tokenizer.vocabulary_size)
    make_dataset(pairs, tokenizer, **options | {"config": sinusoidal})


def test_tokenizers_with_another_vocabulary_than_the_model_raise(tokenizer, source_tokenizer):
    size, source_size = tokenizer.vocabulary_size, source_tokenizer.vocabulary_size
    both = {"source_vocabulary_size": source_size, "tie_embeddings": "none"}
    config = learned(tokenizer, 256, **both)
    make_dataset(PAIRS, source_tokenizer, tokenizer, batch_tokens=700, config=config)
    for tokenizers, named in [
        ([tokenizer], f"source tokenizer .* `vocabulary_size`, {source_size}.* {size}"),
        ([source_tokenizer], f"target tokenizer .* `vocabulary_size`, {size}.* {source_size}"),
    ]:
        with pytest.raises(ValueError, match=named):
            make_dataset(PAIRS, *tokenizers, batch_tokens=700, config=config)


def test_iterator_stays_in_its_epoch_while_another_one_ends(tokenizer):
    """The words that are dropped depend on the epoch."""
    stream = BatchStream(PAIRS[:100], tokenizer, batch_sentences=10, word_dropout=0.5)
    dataset = stream.dataset()
    slow = dataset.as_numpy_iterator()
    found = [next(slow)]
    assert len(list(dataset.as_numpy_iterator())) == 10
    found += slow
    expected = [stream.arrays(rows, epoch=0) for rows in stream.batches(epoch=0)]
    for (inputs, _, _), (others, _, _) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(inputs["decoder_token_ids"], others["decoder_token_ids"])
