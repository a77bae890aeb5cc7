"""`make_dataset` gives `fit` the same batches in the same order on every backend."""

import contextlib
import itertools

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, number_names
from keras_transformer.data.pipeline import BatchStream, make_dataset
from keras_transformer.training import TrainingStep
from tests.builders import new_transformer, to_numpy, tokenizer_fixture

PAIRS = number_names(size=90)
SIZE = {"batch_tokens": 300, "seed": 3, "shapes": 3}
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8}


tokenizer = tokenizer_fixture(PAIRS, 320)


def arrays_of(dataset, number=None):
    batches = itertools.islice(iter(dataset), number)
    return [keras.tree.map_structure(np.asarray, batch) for batch in batches]


def planned(stream, epoch):
    """The batches of an epoch, without a dataset."""
    return [stream.arrays(rows, epoch) for rows in stream.batches(epoch)]


def assert_same_batches(found, expected):
    for batch, other in zip(found, expected, strict=True):
        keras.tree.map_structure(np.testing.assert_array_equal, batch, other)


@pytest.mark.parametrize(
    "options",
    [
        {"shapes": None},
        {},
        {"word_dropout": 0.3},
        {"subword_regularization": 0.3},
        {"shuffle": False},
    ],
    ids=str,
)
def test_dataset_holds_the_planned_batches_epoch_after_epoch(tokenizer, options):
    stream = BatchStream(PAIRS, tokenizer, **SIZE | options)
    dataset = stream.dataset()
    assert len(dataset) == stream.report.batches_per_epoch > 3
    for epoch in (0, 1):
        first = arrays_of(dataset, 1)  # incomplete: the epoch is repeated
        assert_same_batches(first, planned(stream, epoch)[:1])
        assert_same_batches(arrays_of(dataset), planned(stream, epoch))
    stream.seek(1, batch=2)
    assert_same_batches(arrays_of(dataset, len(dataset) - 2), planned(stream, 1)[2:])
    assert_same_batches(arrays_of(dataset, 1), planned(stream, 2)[:1])
    stream.seek(1, batch=2, repeat_skipped=True)
    again = planned(stream, 1)
    assert_same_batches(arrays_of(dataset), [again[2]] * 2 + again[2:])


@pytest.mark.parametrize("options", [{}, {"subword_regularization": 0.3}], ids=str)
def test_batches_of_few_shapes_hold_every_pair_and_rows_of_padding(tokenizer, options):
    stream = BatchStream(PAIRS, tokenizer, **SIZE | options)
    used, pairs = set(), []
    for epoch in (0, 1):
        counts = stream.token_counts(epoch)
        for rows, count in zip(stream.batches(epoch), counts, strict=True):
            inputs, labels, weights = stream.arrays(rows, epoch)
            shape = *inputs["encoder_token_ids"].shape, labels.shape[1]
            assert shape == stream.shape(rows)
            assert max(shape[0] * shape[1], labels.size) <= SIZE["batch_tokens"]
            assert count[2] == inputs["encoder_token_ids"].size + labels.size
            assert weights[: len(rows)].any(axis=1).all() and not weights[len(rows) :].any()
            assert not any(side[len(rows) :].any() for side in (*inputs.values(), labels))
            pairs += rows.tolist()
            used.add(shape)
    assert sorted(pairs) == sorted(2 * list(range(len(PAIRS))))
    assert used == set(stream.report.shapes)
    assert 1 < len(used) <= SIZE["shapes"]
    report = stream.report
    assert report.source_slots + report.target_slots == stream.token_counts(0)[:, 2].sum()
    assert f"in {len(used)} shapes of batches" in str(report)


def test_jax_alone_has_few_shapes_by_default(tokenizer):
    _, report = make_dataset(PAIRS, tokenizer, batch_tokens=100)
    if keras.config.backend() == "jax":
        assert 1 < len(report.shapes) <= 8
    else:
        assert report.shapes == ()


class WithOurStep(TrainingStep, keras.Model):
    """It tells a dataset which epoch `fit` begins."""


def model_on(vocabulary_size, kind=keras.Model):
    names = "encoder_token_ids", "decoder_token_ids"
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    source, target = map(keras.layers.Embedding(vocabulary_size, 4), inputs.values())
    x = target + keras.ops.mean(source, axis=1, keepdims=True)
    return kind(inputs, keras.layers.Dense(vocabulary_size)(x))


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # on TensorFlow
def test_fit_reads_the_batches_in_order(tokenizer):
    """By the default of `fit`, Keras shuffles what it can shuffle. A large rate shows the order."""
    stream = BatchStream(PAIRS, tokenizer, **SIZE)
    weights = []
    for fits in (True, False):
        keras.utils.set_random_seed(1)
        model = model_on(tokenizer.vocabulary_size)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1.0, momentum=0.5), loss)
        if fits:
            dataset = stream.dataset()
            model.fit(dataset, epochs=2, verbose=0, validation_data=dataset.stream.dataset(False))
        else:
            for x, y, w in [*planned(stream, 0), *planned(stream, 1)]:
                model.train_on_batch(x, y, w)
        weights.append(to_numpy(model.trainable_variables))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert_same_batches(arrays_of(dataset, 1), planned(stream, 2)[:1])


def stop(epoch, logs):
    if epoch == 2:
        raise KeyboardInterrupt


def backed_up(folder):
    return {"callbacks": [keras.callbacks.BackupAndRestore(folder)]}


def stopped(folder):
    """The arguments of a `fit` that an error ends in its third epoch."""
    stopper = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    return {"callbacks": [*backed_up(folder)["callbacks"], stopper]}


def fitted(tokenizer, folder, *parts, is_new=False):
    """Returns the weights after one `fit` for each part: its arguments, or a function for them."""
    keras.utils.set_random_seed(1)
    model = model_on(tokenizer.vocabulary_size, WithOurStep)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), SmoothedCrossEntropy())
    dataset = None
    for part in parts:
        if dataset is None or is_new:
            dataset, _ = make_dataset(PAIRS, tokenizer, batch_sentences=20, shapes=1)
        arguments = part(folder) if callable(part) else part
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(dataset, **{"epochs": 4, "verbose": 0, "shuffle": False} | arguments)
    return to_numpy(model.trainable_variables)


@pytest.fixture(scope="module")
def uninterrupted(tokenizer):
    return fitted(tokenizer, None, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "is_new"),
    [
        ([{"epochs": 2}, {"initial_epoch": 2}], True),
        ([{"epochs": 2}, {"epochs": 2}], False),
        ([stopped, backed_up], True),
    ],
    ids=["initial_epoch", "two fits", "BackupAndRestore"],
)
def test_dataset_follows_the_epoch_of_fit(tokenizer, uninterrupted, tmp_path, parts, is_new):
    """A training in two parts, the second with a new dataset or the same, is one in one part."""
    found = fitted(tokenizer, tmp_path, *parts, is_new=is_new)
    for one, other in zip(found, uninterrupted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("r_drop", [0.0, pytest.param(1.0, marks=pytest.mark.long)])
def test_rows_of_padding_change_no_loss_metric_or_gradient(tokenizer, r_drop):
    stream = BatchStream(PAIRS[:89], tokenizer, batch_sentences=16, shapes=1)
    (rows,) = [rows for rows in stream.batches(0) if len(rows) < stream.shape(rows)[0]]
    whole = stream.arrays(rows)
    _, source, target = np.append(0, stream.lengths[rows].max(axis=0))
    inputs, labels, weights = keras.tree.map_structure(lambda array: array[: len(rows)], whole)
    ids = {"encoder_token_ids": inputs["encoder_token_ids"][:, :source]}
    ids["decoder_token_ids"] = inputs["decoder_token_ids"][:, :target]
    results = []
    for x, y, w in (whole, (ids, labels[:, :target], weights[:, :target])):
        model = new_transformer(tokenizer.vocabulary_size, **SIZES, dropout=0.0)
        model.r_drop = r_drop
        options = {"run_eagerly": True} if keras.config.backend() == "tensorflow" else {}
        metrics = {"weighted_metrics": [TokenAccuracy()]}
        model.compile(keras.optimizers.SGD(1.0), SmoothedCrossEntropy(), **metrics, **options)
        logs = [model.test_on_batch(x, y, w, return_dict=True)]
        logs.append(model.train_on_batch(x, y, w, return_dict=True))
        results.append((logs, to_numpy(model.trainable_variables)))
    keras.tree.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), *results
    )


@pytest.mark.long
@pytest.mark.backends("jax")
@pytest.mark.parametrize("devices", [2, 4])
def test_jax_devices_share_the_rows_of_each_batch(tokenizer, devices):
    """Three rows, the last of them padding, in micro-batches, as on one device."""
    found = []
    for number in (1, devices):
        shared = keras.distribution.list_devices()[:number]
        with keras.distribution.DataParallel(devices=shared).scope():
            dataset, report = make_dataset(PAIRS[:11], tokenizer, batch_sentences=3, shapes=1)
            assert [shape[0] for shape in report.shapes] == [3]
            keras.utils.set_random_seed(1)
            model = new_transformer(tokenizer.vocabulary_size, **SIZES, dropout=0.0)
            model.accumulation_steps = 2
            metrics = [TokenAccuracy()]
            model.compile("adam", SmoothedCrossEntropy(), weighted_metrics=metrics)
            model.fused_loss = False  # as on several devices
            history = model.fit(dataset, epochs=2, verbose=0).history
            tested = model.evaluate(dataset, verbose=0)
            found.append((history, tested, to_numpy(model.trainable_variables)))
    keras.tree.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), *found
    )
