"""Losses, regularizers and metrics work as in Keras, however a batch is split.

The reference is Keras's own step on one device, with the same weights.
"""

import contextlib
import sys

import keras
import numpy as np
import pytest

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy
from keras_transformer.layers import Dropout
from keras_transformer.runs.workers import start_workers
from keras_transformer.training import TrainingStep
from tests.builders import ROOT, padded_ids, randomize, to_numpy

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


V = 11
TOKENS = padded_ids([4, 3, 6, 2, 5, 1, 6], V)
LABELS = padded_ids([4, 3, 6, 2, 5, 1, 6], V, seed=1)
# (replicas, micro-batches); in the last, one micro-batch of the second replica is all padding.
CUTS = [(1, 1), long((1, 3)), long((2, 1)), (2, 2)]


class Tagger(TrainingStep, keras.Model):
    """Token ids `(B, T)` -> logits `(B, T, V)`, with the step under test."""


class AddsLoss(keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def network(kind, **dense):
    """The same small network with the same weights, as a model of class `kind`."""
    tokens = keras.Input((None,), dtype="int32")
    x = AddsLoss()(keras.layers.Embedding(V, 6)(tokens))
    model = kind(tokens, keras.layers.Dense(V, name="logits", **dense)(x))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def updated(kind, rows=7, cut=(1, 1), sample_weight=None, dense=None, evaluates=False, **compiled):
    """Returns the reported loss and the weights after one update on the first `rows`."""
    import tensorflow as tf

    from tests.replicas import mirrored

    replicas, accumulation_steps = cut
    strategy = mirrored() if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        model = network(kind, **dense or {})
        model.compile(keras.optimizers.SGD(0.5), **compiled)
    if kind is Tagger:
        model.accumulation_steps = accumulation_steps
    arrays = (TOKENS, LABELS) + (() if sample_weight is None else (sample_weight,))
    batch = tf.data.Dataset.from_tensors(tuple(array[:rows] for array in arrays))
    if evaluates:
        return model.evaluate(batch, verbose=0, return_dict=True)
    history = model.fit(batch, verbose=0, shuffle=False).history
    return history["loss"][0], [to_numpy(v) for v in model.trainable_variables]


def weights(low):
    return np.random.default_rng(2).uniform(low, 2, LABELS.shape).astype("float32")


def assert_same_as_keras(cut, rows=7, **arguments):
    loss, variables = updated(keras.Model, rows, **arguments)
    found_loss, found = updated(Tagger, rows, cut, **arguments)
    np.testing.assert_allclose(found_loss, loss, rtol=2e-6)
    for value, expected in zip(found, variables, strict=True):
        np.testing.assert_allclose(value, expected, atol=2e-6)


@pytest.mark.parametrize("cut", CUTS)
def test_additional_losses_count_once_per_update(cut):
    """A regularizer, an activity regularizer and `add_loss`, on parts of unequal size."""
    regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}
    assert_same_as_keras(cut, rows=5, dense=regularizers, loss=SmoothedCrossEntropy(ignore_class=0))


OPTIMIZERS = {
    "AdamW": {"weight_decay": 0.1, "clipvalue": 0.01},
    "SGD": {"momentum": 0.9, "clipnorm": 0.1},
    "Lion": {"weight_decay": 0.1},
    "Muon": {"weight_decay": 0.1, "adam_weight_decay": 0.1},
}


def after_five_updates(kind, optimizer, strategy=None, accumulation_steps=1, **compiled):
    """The weights and their EMA after five updates; the loss has additional terms."""
    import tensorflow as tf

    with (strategy or tf.distribute.get_strategy()).scope():
        model = network(kind, kernel_regularizer="l2", activity_regularizer="l2")
        # Frozen: Keras gives optimizers one gradient per token of an embedding, not their sum.
        model.layers[1].trainable = False
        made = getattr(keras.optimizers, optimizer)(0.01, use_ema=True, **OPTIMIZERS[optimizer])
        model.compile(made, SmoothedCrossEntropy(ignore_class=0), **compiled)
    if kind is Tagger:
        model.accumulation_steps = accumulation_steps
    batches = tf.data.Dataset.from_tensors((TOKENS, LABELS)).repeat(5)
    model.fit(batches, verbose=0, shuffle=False)
    return [to_numpy(v) for v in (*model.trainable_variables, *model.optimizer.variables)]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_make_the_updates_of_keras_however_a_batch_is_split(optimizer):
    """With EMA, regularizers, `add_loss`, a frozen layer and several steps per execution."""
    from tests.replicas import mirrored

    truth = after_five_updates(keras.Model, optimizer)
    for cut in [(None, 3), (mirrored(), 1), (mirrored(), 2)]:
        found = after_five_updates(Tagger, optimizer, *cut, steps_per_execution=4)
        for value, expected in zip(found, truth, strict=True):
            np.testing.assert_allclose(value, expected, atol=1e-5, err_msg=str(cut))


WORKER = """
import sys
import numpy as np
from keras_transformer.training import get_strategy, is_chief
strategy = get_strategy("multi_worker")
from tests.training.test_token_loss import OPTIMIZERS, Tagger, after_five_updates
for name in OPTIMIZERS:
    arrays = after_five_updates(Tagger, name, strategy, steps_per_execution=4)
    if is_chief(strategy):
        np.savez(f"{sys.argv[1]}/{name}.npz", *arrays)
"""


@pytest.mark.long
def test_optimizers_make_the_updates_of_keras_in_two_worker_processes(tmp_path):
    workers = start_workers([sys.executable, "-c", WORKER, str(tmp_path)], 2, cwd=ROOT)
    assert [worker.wait(timeout=400) for worker in workers] == [0, 0]
    for name in OPTIMIZERS:
        truth = after_five_updates(keras.Model, name)
        with np.load(tmp_path / f"{name}.npz") as found:
            for value, expected in zip(found.values(), truth, strict=True):
                np.testing.assert_allclose(value, expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("cut", CUTS)
def test_loss_weights_count(cut):
    loss = SmoothedCrossEntropy(ignore_class=0)
    assert_same_as_keras(cut, loss=loss, loss_weights=[0.25])
    one, quarter = (updated(Tagger, loss=loss, loss_weights=w)[0] for w in (None, {"logits": 0.25}))
    assert quarter < 0.9 * one  # `loss_weights` does not apply to `add_loss`


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_reduction_of_the_loss_is_used(reduction, cut):
    options = {"from_logits": True, "ignore_class": 0, "reduction": reduction}
    loss = keras.losses.SparseCategoricalCrossentropy(**options)
    assert_same_as_keras(cut, sample_weight=weights(0.5), loss=loss)


def test_loss_may_be_a_function():
    def loss(labels, logits):
        return keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    assert_same_as_keras((2, 2), loss=loss)


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_with_sample_weight"])
def test_smoothed_cross_entropy_reduces_as_the_loss_of_keras_that_ignores_a_class(reduction):
    logits = np.random.default_rng(0).normal(size=(*LABELS.shape, V)).astype("float32")
    options = {"ignore_class": 0, "reduction": reduction}
    ours = SmoothedCrossEntropy(label_smoothing=0.0, **options)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
    for sample_weight in (None, weights(0.5)):
        expected = float(theirs(LABELS, logits, sample_weight))
        assert float(ours(LABELS, logits, sample_weight)) == pytest.approx(expected, rel=1e-5)


class OwnStep(Tagger):
    """Overrides the steps, and unpacks batches as Keras's steps do."""

    def train_step(self, data):
        keras.utils.unpack_x_y_sample_weight(data)
        return super().train_step(data)

    def test_step(self, data):
        keras.utils.unpack_x_y_sample_weight(data)
        return super().test_step(data)


def test_overridden_step_gets_the_batches_of_keras():
    unweighted = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"rows": 5, "loss": SmoothedCrossEntropy(ignore_class=0), "metrics": [unweighted]}
    one, two = (updated(OwnStep, cut=cut, evaluates=True, **arguments) for cut in [(1, 1), (2, 1)])
    assert two == pytest.approx(one, rel=1e-5)
    loss, variables = updated(OwnStep, cut=(2, 1), **arguments)
    expected_loss, expected = updated(Tagger, **arguments)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    np.testing.assert_allclose(variables[0], expected[0], atol=1e-6)


class OwnLoss(Tagger):
    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        return 3 * super().compute_loss(x, y, y_pred, sample_weight, training)


def test_overridden_compute_loss_is_used_on_one_device():
    loss, _ = updated(Tagger, loss=SmoothedCrossEntropy(ignore_class=0))
    tripled, _ = updated(OwnLoss, loss=SmoothedCrossEntropy(ignore_class=0))
    assert tripled == pytest.approx(3 * loss, rel=1e-6)


def test_overridden_compute_loss_is_refused_with_micro_batches():
    model = network(OwnLoss)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    model.accumulation_steps = 2
    with pytest.raises(ValueError, match="OwnLoss.compute_loss"):
        model.fit(TOKENS, LABELS, verbose=0)


def test_loss_may_come_from_the_layers_alone():
    loss, _ = updated(Tagger, loss=None)
    embedded = to_numpy(network(Tagger).layers[1](TOKENS))
    assert loss == pytest.approx(np.square(embedded).mean(), rel=1e-5)


@pytest.mark.parametrize("kind", ["arrays", "generator"])
def test_rows_of_zeros_count_in_arrays_and_generators(kind):
    """Also where Keras splits the rows over the replicas."""
    import tensorflow as tf

    from tests.replicas import mirrored

    labels, sample_weight = LABELS.copy(), np.ones(len(LABELS), "float32")
    labels[[1, 5]] = sample_weight[[1, 5]] = 0
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored()):
        with strategy.scope():
            model = network(Tagger, activity_regularizer="l2")
            metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
            model.compile("sgd", SmoothedCrossEntropy(ignore_class=0), metrics=[metric])
        batch = TOKENS, labels, sample_weight
        if kind == "arrays":
            found.append(model.evaluate(*batch[:2], sample_weight=sample_weight, verbose=0))
        else:
            found.append(model.evaluate((each for each in [batch]), steps=1, verbose=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_metrics_count_the_rows_of_the_data_whatever_their_weight(cut):
    """Rows with weight 0 or below count in unweighted metrics; padding does not."""
    sample_weight = weights(0.5)
    sample_weight[[1, 5]] = 0
    sample_weight[2] *= -0.1
    unweighted = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="unweighted")
    metrics = {
        "metrics": [unweighted],
        "weighted_metrics": [TokenAccuracy(), Perplexity()],
    }
    one, found = (
        updated(
            Tagger,
            cut=each,
            sample_weight=sample_weight,
            evaluates=True,
            loss=SmoothedCrossEntropy(ignore_class=0),
            **metrics,
        )
        for each in [(1, 1), cut]
    )
    logits = to_numpy(network(Tagger)(TOKENS))
    losses = keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True)
    assert one["unweighted"] == pytest.approx(to_numpy(losses).mean(), rel=1e-5)
    for name, value in one.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(
    "loss, message",
    [
        (keras.losses.sparse_categorical_crossentropy, "from_logits=True"),
        (keras.losses.SparseCategoricalCrossentropy(), "from_logits=True"),
        (SmoothedCrossEntropy(ignore_class=0, reduction=None), "reduction=None"),
        ("sparse_categorical_crossentropy", "from_logits=True"),
        (
            [SmoothedCrossEntropy(ignore_class=0), SmoothedCrossEntropy(ignore_class=0)],
            "one output",
        ),
    ],
)
def test_unsupported_losses_are_refused(loss, message):
    model = network(Tagger)
    model.compile("sgd", loss)
    for method in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match=message):
            method(TOKENS, LABELS)


def test_function_that_ignores_a_class_is_refused():
    def loss(labels, logits):
        return keras.losses.sparse_categorical_crossentropy(labels, logits, True, ignore_class=0)

    model = network(Tagger)
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="`ignore_class`"):
        model.fit(TOKENS, LABELS, verbose=0)


@pytest.mark.parametrize(
    "labels, sample_weight, message",
    [
        (LABELS[..., None], None, "`y` must be one tensor"),
        (np.eye(V)[LABELS], None, "`y` must be one tensor"),
        (None, None, "`y` must be one tensor"),
        (LABELS, np.ones((*LABELS.shape, 1)), "`sample_weight` must be one tensor"),
    ],
)
def test_labels_of_another_shape_are_refused(labels, sample_weight, message):
    model = network(Tagger)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    for method in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=message):
            method(TOKENS, labels, sample_weight=sample_weight)


def test_output_with_a_keras_mask_is_refused():
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 6, mask_zero=True)(tokens)
    model = Tagger(tokens, keras.layers.Dense(V)(x))
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    with pytest.raises(ValueError, match="must not have a Keras mask"):
        model.fit(TOKENS, LABELS, verbose=0)


def test_labels_may_be_bytes():
    model = network(Tagger)
    model.compile(keras.optimizers.SGD(0.5), SmoothedCrossEntropy(ignore_class=0))
    expected = updated(Tagger, loss=SmoothedCrossEntropy(ignore_class=0))[0]
    found = model.fit(TOKENS, LABELS.astype("uint8"), batch_size=7, shuffle=False, verbose=0)
    assert found.history["loss"][0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("cut", [(1, 2), (2, 1)])
def test_step_on_one_batch_gives_the_update_of_the_batch(cut):
    """For a loss with `reduction="sum"`, in the graph and eagerly."""
    from tests.replicas import mirrored

    loss = SmoothedCrossEntropy(ignore_class=0, reduction="sum")
    expected = updated(Tagger, loss=loss)
    for run_eagerly in (False, True):
        strategy = mirrored() if cut[0] == 2 else None
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = network(Tagger)
            model.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=run_eagerly)
        model.accumulation_steps = cut[1]
        tested = model.test_on_batch(TOKENS, LABELS, return_dict=True)
        trained = model.train_on_batch(TOKENS, LABELS, return_dict=True)
        assert tested["loss"] == pytest.approx(expected[0], rel=1e-5)
        assert trained["loss"] == pytest.approx(expected[0], rel=1e-5)
        for value, variable in zip(expected[1], model.trainable_variables, strict=True):
            np.testing.assert_allclose(to_numpy(variable), value, atol=1e-5)


def test_evaluate_builds_no_optimizer():
    model = network(Tagger)
    model.compile("adam", SmoothedCrossEntropy(ignore_class=0))
    model.evaluate(TOKENS, LABELS, verbose=0)
    assert not model.optimizer.built


def test_xla_is_used_only_if_asked_for():
    model = network(Tagger)
    for asked in ("auto", True):
        model.compile("sgd", SmoothedCrossEntropy(), jit_compile=asked)
        assert model.jit_compile is (asked is True)


def test_class_weight_is_refused():
    model = network(Tagger)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    for method in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="`class_weight`.*`sample_weight`"):
            method(TOKENS, LABELS, class_weight={1: 2.0})


@pytest.mark.parametrize("label", [-3, V, V + 50])
def test_label_outside_the_vocabulary_is_refused(label):
    import tensorflow as tf

    model = network(Tagger)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    labels = LABELS.copy()
    labels[2, 1] = label
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"token id of the model, 0 to {V - 1}"
    ):
        model.fit(TOKENS, labels, verbose=0)
    sample_weight = np.ones(LABELS.shape)
    sample_weight[2, 1] = 0  # labels with weight 0 may be outside the vocabulary
    assert np.isfinite(
        model.fit(TOKENS, labels, sample_weight=sample_weight, verbose=0).history["loss"]
    )


def test_fit_works_after_a_fit_that_failed_in_the_graph():
    model = network(Tagger)
    model.compile(
        keras.optimizers.Adam(), SmoothedCrossEntropy(ignore_class=0), metrics=[TokenAccuracy()]
    )
    with pytest.raises(ValueError):
        model.fit(TOKENS, LABELS[:, :3], verbose=0)
    assert np.isfinite(model.fit(TOKENS, LABELS, verbose=0).history["loss"])
    assert model.optimizer.iterations.numpy() == 1


@pytest.mark.parametrize("is_on_replicas", [False, True])
def test_jit_compile_is_refused_except_on_one_device(is_on_replicas):
    from tests.replicas import mirrored

    with mirrored().scope() if is_on_replicas else contextlib.nullcontext():
        model = network(Tagger)
        model.compile("sgd", SmoothedCrossEntropy(), jit_compile=True)
    model.accumulation_steps = 1 if is_on_replicas else 2
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="`jit_compile`"):
            method(TOKENS, LABELS, verbose=0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, in the first epoch
@pytest.mark.parametrize("replicas, steps_per_execution", [(1, 1), (2, 3)])
def test_end_of_a_dataset_advances_nothing(replicas, steps_per_execution):
    """Neither optimizer nor dropout count the call that finds no batch.

    The reference is a dataset of known length, one step at a time.
    """
    import tensorflow as tf

    from tests.replicas import mirrored

    dataset = tf.data.Dataset.from_tensor_slices((TOKENS, LABELS)).batch(2)
    unknown = dataset.filter(lambda tokens, labels: True)
    ends = []
    for batches, steps in ((dataset, 1), (unknown, steps_per_execution)):
        with mirrored().scope() if replicas == 2 else contextlib.nullcontext():
            tokens = keras.Input((None,), dtype="int32")
            x = Dropout(0.5, seed=1)(keras.layers.Embedding(V, 6)(tokens))
            model = randomize(Tagger(tokens, keras.layers.Dense(V)(x)))
            model.compile("adam", SmoothedCrossEntropy(), steps_per_execution=steps)
        losses = model.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
        ends.append([losses, *map(to_numpy, [model.optimizer.iterations, *model.variables])])
    assert ends[0][1] == 2 * 4
    for known, found in zip(*ends, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-5)


def test_predict_on_batch_returns_each_row_once_on_replicas():
    from tests.replicas import mirrored

    expected = network(Tagger).predict_on_batch(TOKENS)
    with mirrored().scope():
        model = network(Tagger)
    for rows in (7, 1):
        found = model.predict_on_batch(TOKENS[:rows])
        np.testing.assert_allclose(found, expected[:rows], atol=1e-6)
