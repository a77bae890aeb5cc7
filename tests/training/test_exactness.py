"""The exact step on devices, workers and micro-batches, and what it refuses."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, get_strategy
from tests.builders import ROOT, new_transformer, padded_ids, to_numpy, token_inputs

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SOURCE = padded_ids([5, 3, 7, 2, 6, 4, 1], 50)
LABELS = padded_ids([4, 8, 1, 6, 2, 3, 5], 50, seed=1)
INPUTS = token_inputs(SOURCE, np.pad(LABELS, ((0, 0), (1, 0)), constant_values=1)[:, :-1])

ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def long(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.long)


def compiled(strategy=None, optimizer=None, loss=None, accumulation_steps=1, **arguments):
    with (strategy or get_strategy("single")).scope():
        model = new_transformer(**{"dropout": 0.0, **ONE_LAYER, **arguments})
        model.accumulation_steps = accumulation_steps
        model.compile(
            optimizer or keras.optimizers.SGD(0.1),
            loss=loss or SmoothedCrossEntropy(ignore_class=0),
        )
    return model


def weights_after(model, dataset, epochs=1):
    model.fit(dataset, epochs=epochs, verbose=0, shuffle=False)
    return {v.path: to_numpy(v) for v in model.trainable_variables}


def dataset_of(*rows, sample_weight=None):
    """A dataset of one batch for each slice of rows."""
    import tensorflow as tf

    arrays = (INPUTS, LABELS) + (() if sample_weight is None else (sample_weight,))
    parts = [keras.tree.map_structure(lambda array, r=r: array[r], arrays) for r in rows]
    datasets = [tf.data.Dataset.from_tensors(part) for part in parts]
    joined = datasets[0]
    for dataset in datasets[1:]:
        joined = joined.concatenate(dataset)
    return joined


SETUPS = [
    "2 replicas x 2 micro-batches",
    "2 worker processes",
    "Keras's step, one device",
]


@pytest.mark.long
def test_update_is_the_same_on_devices_workers_and_micro_batches():
    """40 updates of Adam with and without clipping, in a table that the benchmark prints.

    The last batch of an epoch has one row: fewer than there are replicas or micro-batches.
    """
    ran = subprocess.run(
        [sys.executable, "benchmarks/exactness.py", "--setups", *SETUPS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + 2 * len(SETUPS)


@pytest.mark.long
@pytest.mark.parametrize("rows, accumulation_steps", [(slice(0, 1), 1), long(slice(0, 3), 2)])
def test_replicas_without_rows_contribute_nothing(rows, accumulation_steps):
    from tests.replicas import mirrored

    one = weights_after(compiled(), dataset_of(rows))
    two = weights_after(
        compiled(mirrored(), accumulation_steps=accumulation_steps), dataset_of(rows)
    )
    for path, value in one.items():
        np.testing.assert_allclose(two[path], value, atol=1e-6)


@pytest.mark.long
def test_rows_of_padding_change_nothing():
    """The padding fills the shard of one replica, or a whole batch."""
    from tests.replicas import mirrored

    weights = np.repeat([[1.0], [1.0], [1.0], [1.0], [0.0], [0.0], [0.0]], 8, 1).astype("float32")
    expected = weights_after(compiled(), dataset_of(slice(0, 4)))
    for strategy in (None, mirrored()):
        found = weights_after(
            compiled(strategy), dataset_of(slice(0, 7), slice(4, 7), sample_weight=weights)
        )
        for path, value in expected.items():
            np.testing.assert_allclose(found[path], value, atol=1e-6)


def test_losses_and_metrics_are_sums_over_tokens_divided_by_tokens():
    from keras_transformer import Perplexity, TokenAccuracy
    from tests.replicas import mirrored

    weights = (np.random.default_rng(0).uniform(0.5, 2, LABELS.shape)).astype("float32")
    rows = slice(0, 4), slice(4, 7)
    with mirrored().scope():
        model = new_transformer(dropout=0.0, **ONE_LAYER)
        model.compile(
            "sgd",
            SmoothedCrossEntropy(ignore_class=0),
            weighted_metrics=[TokenAccuracy(ignore_class=0), Perplexity(ignore_class=0)],
        )
    found = model.evaluate(dataset_of(*rows, sample_weight=weights), verbose=0, return_dict=True)
    logits = to_numpy(model(INPUTS)).astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(logits, LABELS[..., None], -1)[..., 0]
    loss = 0.9 * nll - 0.1 * logits.mean(-1)
    correct = logits.argmax(-1) == LABELS
    w = weights * (LABELS > 0)
    expected = [(values * w).sum() / w.sum() for values in (loss, correct, nll)]
    np.testing.assert_allclose(
        [found["loss"], found["accuracy"], np.log(found["perplexity"])], expected, rtol=1e-5
    )


@pytest.mark.parametrize("replicas, accumulation_steps", [long(1, 1), (1, 3), long(2, 1), (2, 3)])
def test_update_is_the_gradient_of_the_weighted_mean_over_all_tokens(replicas, accumulation_steps):
    """The reference is the gradient of the loss of the whole batch, without a train step."""
    import tensorflow as tf

    from tests.replicas import mirrored

    weights = np.random.default_rng(0).uniform(0, 2, LABELS.shape).astype("float32")
    strategy = mirrored() if replicas == 2 else None
    found = weights_after(
        compiled(strategy, accumulation_steps=accumulation_steps),
        dataset_of(slice(None), sample_weight=weights),
    )
    model = compiled()
    with tf.GradientTape() as tape:
        loss = SmoothedCrossEntropy(ignore_class=0)(LABELS, model(INPUTS), sample_weight=weights)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        expected = to_numpy(variable) - 0.1 * tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(found[variable.path], expected, atol=1e-6)


@pytest.mark.long
def test_losses_of_keras_are_divided_by_all_tokens():
    from tests.replicas import mirrored

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    one, two = (
        weights_after(compiled(strategy, loss=loss), dataset_of(slice(None)))
        for strategy in (None, mirrored())
    )
    for path, value in one.items():
        np.testing.assert_allclose(two[path], value, atol=1e-6)


@pytest.mark.parametrize("replicas, accumulation_steps", [(1, 2), (2, 1)])
def test_unweighted_metrics_do_not_count_padding(replicas, accumulation_steps):
    from tests.replicas import mirrored

    values = []
    for strategy, steps in ((None, 1), (mirrored() if replicas == 2 else None, accumulation_steps)):
        model = compiled(strategy, accumulation_steps=steps)
        with model.distribute_strategy.scope():
            metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(
                keras.optimizers.SGD(0.1), SmoothedCrossEntropy(ignore_class=0), metrics=[metric]
            )
        history = model.fit(dataset_of(slice(0, 3)), verbose=0, shuffle=False).history
        values.append(history["sparse_categorical_crossentropy"])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5)


@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy()]
)
def test_loss_of_probabilities_is_refused(loss):
    with pytest.raises(ValueError, match="from_logits=True"):
        compiled(loss=loss).fit(INPUTS, LABELS, verbose=0)


def test_scalar_loss_is_refused():
    model = compiled(loss=lambda labels, logits: keras.ops.mean(logits))
    with pytest.raises(ValueError, match="one value per token"):
        model.fit(INPUTS, LABELS, verbose=0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_optimizer_that_accumulates_gradients_is_refused(dtype):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model = compiled(optimizer=optimizer, dtype=dtype)
    with pytest.raises(ValueError, match="`gradient_accumulation_steps`.*`accumulation_steps`"):
        model.fit(INPUTS, LABELS, verbose=0)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_accumulation_steps_are_checked(value):
    with pytest.raises(ValueError, match="accumulation_steps"):
        new_transformer().accumulation_steps = value


@pytest.mark.long
def test_accumulation_steps_may_change_between_fits():
    changed, steady = compiled(), compiled()
    for number in (1, 3):
        changed.accumulation_steps = number
        changed.fit(dataset_of(slice(None)), verbose=0, shuffle=False)
    steady.fit(dataset_of(slice(None)), epochs=2, verbose=0, shuffle=False)
    for variable, other in zip(
        changed.trainable_variables, steady.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(to_numpy(variable), to_numpy(other), atol=1e-6)


@pytest.mark.long
def test_dropout_is_reproducible_on_replicas_and_micro_batches():
    from tests.replicas import mirrored

    def run():
        keras.utils.set_random_seed(7)
        return weights_after(
            compiled(mirrored(), dropout=0.3, accumulation_steps=2), dataset_of(slice(None)), 2
        )

    first, second = run(), run()
    for path, value in first.items():
        np.testing.assert_array_equal(second[path], value)


@pytest.mark.long
@pytest.mark.parametrize("culprit, clipping", [(0, {}), (1, {"clipvalue": 1.0})])
def test_float16_overflow_on_any_replica_skips_the_update_everywhere(culprit, clipping):
    """Only one replica has rows with weight above 0, and the loss scale overflows there."""
    from tests.replicas import mirrored

    weights = np.zeros((6, 8), "float32")
    weights[culprit * 3 : culprit * 3 + 3] = 1.0
    optimizer = keras.optimizers.SGD(0.1, **clipping)
    model = compiled(mirrored(), optimizer, dtype="mixed_float16")
    before = {v.path: to_numpy(v) for v in model.trainable_variables}
    scale = model.optimizer.initial_scale = 2.0**40
    after = weights_after(model, dataset_of(slice(0, 6), sample_weight=weights))
    for path, value in before.items():
        np.testing.assert_array_equal(after[path], value)
    assert model.optimizer.dynamic_scale.numpy() == scale / 2
    for variable in model.trainable_variables:
        for copy in variable.value.values:  # one for each replica
            assert np.isfinite(copy.numpy()).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "dtype, tolerance",
    [long("mixed_bfloat16", 0.1), ("mixed_float16", 0.05)],  # bfloat16 differs by processor
)
def test_half_precision_on_replicas_stays_close_to_float32(dtype, tolerance):
    from tests.replicas import mirrored

    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
    batch = dataset_of(slice(None))
    before = {v.path: to_numpy(v) for v in compiled().trainable_variables}
    exact = weights_after(compiled(optimizer=optimizer), batch)
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
    half = compiled(mirrored(), optimizer=optimizer, dtype=dtype, accumulation_steps=2)
    if dtype == "mixed_float16":
        half.optimizer.initial_scale = 2.0**8  # the scale after some skipped updates
    found = weights_after(half, batch)
    moved = np.concatenate([(exact[path] - before[path]).ravel() for path in before])
    error = np.concatenate([(found[path] - exact[path]).ravel() for path in before])
    assert np.linalg.norm(moved) > 0
    assert np.linalg.norm(error) <= tolerance * np.linalg.norm(moved)


@pytest.mark.parametrize("replicas", [long(1), 2])
def test_arrays_and_datasets_give_the_same_update(replicas):
    """Keras splits the rows of arrays: one replica gets no row of the last batch."""
    from tests.replicas import mirrored

    arrays, dataset = compiled(mirrored() if replicas == 2 else None), compiled()
    arrays.fit(INPUTS, LABELS, batch_size=3, shuffle=False, verbose=0)
    dataset.fit(dataset_of(slice(0, 3), slice(3, 6), slice(6, 7)), shuffle=False, verbose=0)
    for variable, other in zip(
        arrays.trainable_variables, dataset.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(to_numpy(variable), to_numpy(other), atol=1e-6)


@pytest.mark.long
def test_optimizer_is_saved_with_the_model(tmp_path):
    model = compiled(optimizer=keras.optimizers.Adam(0.01, global_clipnorm=1.0))
    model.fit(dataset_of(slice(None)), verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.fit(dataset_of(slice(None)), verbose=0, shuffle=False)
    for variable, other in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_allclose(to_numpy(variable), to_numpy(other), atol=1e-6)
