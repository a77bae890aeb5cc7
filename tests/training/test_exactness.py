"""The exact step of a `Transformer` on TensorFlow's devices, workers and micro-batches."""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.optimizers import SGD
from scipy.special import log_softmax

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy
from tests.builders import ROOT, new_transformer, padded_ids, to_numpy, token_inputs
from tests.training.small_models import on_devices

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SOURCE = padded_ids([5, 3, 7, 2, 6, 4, 1], 50)
LABELS = padded_ids([4, 8, 1, 6, 2, 3, 5], 50, seed=1)
INPUTS = token_inputs(SOURCE, np.pad(LABELS, ((0, 0), (1, 0)), constant_values=1)[:, :-1])
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2, LABELS.shape).astype("float32")
ALL = slice(None)
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
SMALL |= {"intermediate_dim": 16, "dropout": 0.0}


def compiled(replicas=1, optimizer=None, steps=1, metrics=(), **fields):
    with on_devices(replicas):
        model = new_transformer(**SMALL | fields)
        model.accumulation_steps = steps
        loss = SmoothedCrossEntropy(ignore_class=0)
        model.compile(optimizer or SGD(0.1), loss, weighted_metrics=list(metrics))
    return model


def dataset_of(*rows, sample_weight=WEIGHTS):
    """A dataset of one batch for each slice of rows."""
    arrays = INPUTS, LABELS, sample_weight
    parts = [keras.tree.map_structure(lambda array, r=r: array[r], arrays) for r in rows]
    return functools.reduce(tf.data.Dataset.concatenate, map(tf.data.Dataset.from_tensors, parts))


def weights_after(model, dataset, epochs=1):
    model.fit(dataset, epochs=epochs, verbose=0, shuffle=False)
    return {v.path: to_numpy(v) for v in model.trainable_variables}


@pytest.mark.long
def test_update_is_the_same_on_devices_workers_and_micro_batches():
    """40 updates of Adam with clipping, in a table that the benchmark prints.

    The last batch of an epoch has one row: fewer than there are replicas or micro-batches.
    """
    setups = "2 replicas x 2 micro-batches", "2 worker processes"
    command = [sys.executable, "benchmarks/exactness.py", "--only-clipped", "--setups", *setups]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + len(setups)


@pytest.mark.long
def test_update_is_the_gradient_of_the_weighted_mean_over_all_tokens():
    """The reference is the gradient of the loss of the whole batch, without a train step.

    A second batch, whose tokens all have weight 0, changes nothing.
    """
    weights = np.where(np.arange(len(LABELS))[:, None] < 5, WEIGHTS, 0)
    batches = dataset_of(ALL, slice(5, 7), sample_weight=weights)
    found = weights_after(compiled(2, steps=3), batches)
    model = compiled()
    with tf.GradientTape() as tape:
        loss = SmoothedCrossEntropy(ignore_class=0)(LABELS, model(INPUTS), sample_weight=weights)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        expected = to_numpy(variable) - 0.1 * tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(found[variable.path], expected, atol=1e-6)


def test_losses_and_metrics_are_sums_over_tokens_divided_by_tokens():
    model = compiled(2, metrics=[TokenAccuracy(ignore_class=0), Perplexity(ignore_class=0)])
    batches = dataset_of(slice(0, 4), slice(4, 7))
    found = model.evaluate(batches, verbose=0, return_dict=True)
    logits = log_softmax(to_numpy(model(INPUTS)).astype("float64"), axis=-1)
    nll = -np.take_along_axis(logits, LABELS[..., None], -1)[..., 0]
    loss = 0.9 * nll - 0.1 * logits.mean(-1)
    correct = logits.argmax(-1) == LABELS
    w = WEIGHTS * (LABELS > 0)
    expected = [(values * w).sum() / w.sum() for values in (loss, correct, nll)]
    np.testing.assert_allclose(
        [found["loss"], found["accuracy"], np.log(found["perplexity"])], expected, rtol=1e-5
    )


@pytest.mark.long
def test_accumulation_steps_may_change_between_fits():
    changed = compiled()
    for changed.accumulation_steps in (1, 3):
        found = weights_after(changed, dataset_of(ALL))
    expected = weights_after(compiled(), dataset_of(ALL), epochs=2)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, atol=1e-6, err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize("culprit, clipping", [(0, {}), (1, {"clipvalue": 1.0})])
def test_float16_overflow_on_any_replica_skips_the_update_everywhere(culprit, clipping):
    """Only one replica has rows with weight above 0, and the loss scale overflows there."""
    weights = np.zeros((6, 8), "float32")
    weights[culprit * 3 : culprit * 3 + 3] = 1.0
    batch = dataset_of(slice(0, 6), sample_weight=weights)
    model = compiled(2, SGD(0.1, **clipping), dtype="mixed_float16")
    before = {v.path: to_numpy(v) for v in model.trainable_variables}
    scale = model.optimizer.initial_scale = 2.0**40
    after = weights_after(model, batch)
    for path, value in before.items():
        np.testing.assert_array_equal(after[path], value)
    assert model.optimizer.dynamic_scale.numpy() == scale / 2
    for variable in model.trainable_variables:
        for copy in variable.value.values:  # one for each replica
            assert np.isfinite(copy.numpy()).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "dtype, tolerance",
    [("mixed_bfloat16", 0.1), ("mixed_float16", 0.05)],  # bfloat16 differs by processor
)
def test_half_precision_on_replicas_stays_close_to_float32(dtype, tolerance):
    def optimizer():
        return SGD(0.1, global_clipnorm=0.5)

    before = {v.path: to_numpy(v) for v in compiled().trainable_variables}
    exact = weights_after(compiled(1, optimizer()), dataset_of(ALL))
    half = compiled(2, optimizer(), 2, dtype=dtype)
    if dtype == "mixed_float16":
        half.optimizer.initial_scale = 2.0**8  # the scale after some skipped updates
    found = weights_after(half, dataset_of(ALL))
    moved = np.concatenate([(exact[path] - before[path]).ravel() for path in before])
    error = np.concatenate([(found[path] - exact[path]).ravel() for path in before])
    assert np.linalg.norm(moved) > 0
    assert np.linalg.norm(error) <= tolerance * np.linalg.norm(moved)
