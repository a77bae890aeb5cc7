"""What the step gives for one batch, and what it refuses. Updates: `test_update.py`."""

import keras
import numpy as np
import pytest
from keras import callbacks
from keras.losses import SparseCategoricalCrossentropy
from keras.optimizers import SGD

from keras_transformer import (
    RunKeeper,
    SmoothedCrossEntropy,
    TokenAccuracy,
    TransformerConfig,
    paper_optimizer,
)
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.training import AveragedWeights
from tests.builders import to_numpy
from tests.training.small_models import (
    BACKEND,
    EAGER,
    LABELS,
    TOKENS,
    WEIGHTS,
    OwnLoss,
    Tagger,
    V,
    compiled,
    dtype_policy,
    on_devices,
    tagger,
)

pytestmark = pytest.mark.slow
tensorflow_only = pytest.mark.tensorflow_only
jax_only = pytest.mark.backends("jax")  # only it has several devices here


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


def test_gradient_norm_and_dropout_of_micro_batches():
    """The norm is that of the whole batch. Each micro-batch draws a mask of its own."""
    model = compiled(optimizer=SGD(1.0, global_clipnorm=1e9), dropout=0.5)
    model.accumulation_steps = 3
    state = model.get_layer("dropout").seed_generator.state
    before = to_numpy([*model.trainable_variables, state])
    logs = model.train_on_batch(TOKENS, LABELS, return_dict=True)
    *after, drawn = to_numpy([*model.trainable_variables, state])
    squares = [np.square(old - new).sum() for old, new in zip(before, after, strict=False)]
    assert logs["gradient_norm"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-5)
    assert drawn[1] != before[-1][1] + 1


def test_loss_may_come_from_the_layers_alone():
    model = compiled(loss=None)
    embedded = to_numpy(model.layers[1](TOKENS))
    kernel, logits = model.get_layer("logits").kernel, to_numpy(model(TOKENS))
    regular = 0.01 * (np.square(to_numpy(kernel)).sum() + np.square(logits).sum() / len(TOKENS))
    expected = np.square(embedded).mean() + regular
    assert model.test_on_batch(TOKENS, LABELS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_batch_without_rows_changes_no_weight(accumulation_steps):
    """A dataset that drops rows of its batches may end with one."""
    model = compiled()
    model.accumulation_steps = accumulation_steps
    before = to_numpy([*model.weights])
    model.train_on_batch(TOKENS[:0], LABELS[:0])
    for weight, old in zip(to_numpy([*model.weights]), before, strict=True):
        np.testing.assert_array_equal(weight, old)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_model_without_a_weight_to_train_is_evaluated_with_a_warning(accumulation_steps):
    """As in Keras."""
    model = tagger()
    model.trainable = False
    model.compile("adam", SmoothedCrossEntropy(ignore_class=0), **EAGER)
    model.accumulation_steps = accumulation_steps
    before, expected = to_numpy([*model.weights]), model.test_on_batch(TOKENS, LABELS)
    with pytest.warns(UserWarning, match="not have any trainable weights"):
        model.fit(TOKENS, LABELS, verbose=0)
    with pytest.warns(UserWarning, match="not have any trainable weights"):
        assert model.train_on_batch(TOKENS, LABELS) == pytest.approx(expected, rel=1e-5)
    for weight, old in zip(to_numpy([*model.weights]), before, strict=True):
        np.testing.assert_array_equal(weight, old)


@tensorflow_only
@pytest.mark.parametrize("kind", ["arrays", long("generator")])
def test_rows_of_zeros_count_in_arrays_and_generators(kind):
    """Also where Keras splits the rows over the replicas."""
    labels, sample_weight = LABELS.copy(), np.ones(len(LABELS), "float32")
    labels[[1, 5]] = sample_weight[[1, 5]] = 0
    found = []
    for devices in (1, 2):
        with on_devices(devices):
            metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
            model = compiled(metrics=[metric])
        if kind == "arrays":
            found.append(model.evaluate(TOKENS, labels, sample_weight=sample_weight, verbose=0))
        else:
            batches = (batch for batch in [(TOKENS, labels, sample_weight)])
            found.append(model.evaluate(batches, steps=1, verbose=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_overridden_compute_loss_is_used_on_one_device():
    plain, tripled = (compiled(kind).test_on_batch(TOKENS, LABELS) for kind in (Tagger, OwnLoss))
    assert tripled == pytest.approx(3 * plain, rel=1e-6)


def ignoring_loss(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, True, ignore_class=0)


def mean_loss(labels, logits):
    return keras.ops.mean(logits)


def called(*callbacks):
    """Arguments that only `fit` has."""
    return {"callbacks": [*callbacks]}


ACCUMULATING = {"optimizer": SGD(gradient_accumulation_steps=2)}
SCALED = {"optimizer": keras.optimizers.LossScaleOptimizer(ACCUMULATING["optimizer"])}
PAPER = {"optimizer": paper_optimizer(TransformerConfig.tiny(V))}
AVERAGING = {"optimizer": SGD(use_ema=True)}
RATE = "sets the learning rate.*Received: learning_rate=WarmupSchedule"
KEEPER = RunKeeper("unused", object.__new__(BatchStream))  # not read
JIT = {"jit_compile": True, "run_eagerly": False}
# What is compiled, or the model; other arguments; the error.
REFUSED = [
    ({"loss": keras.losses.sparse_categorical_crossentropy}, {}, "from_logits=True"),
    ({"loss": SparseCategoricalCrossentropy()}, {}, "from_logits=True"),
    ({"loss": "sparse_categorical_crossentropy"}, {}, "from_logits=True"),
    ({"loss": SmoothedCrossEntropy(reduction=None)}, {}, "reduction=None"),
    ({"loss": [SmoothedCrossEntropy(ignore_class=0)] * 2}, {}, "one output"),
    ({"loss": ignoring_loss}, {}, "`ignore_class`"),
    ({"loss": mean_loss}, {}, "one value per token"),
    (ACCUMULATING, {}, "`gradient_accumulation_steps`.*`accumulation_steps`"),
    (SCALED, {}, "`gradient_accumulation_steps`.*`accumulation_steps`"),
    (PAPER | {"dtype": "float16"}, {}, "epsilon=1e-09.*mixed_float16"),
    ({"optimizer": "adam", "dtype": "bfloat16"}, {}, "beta_2=0.999.*mixed_bfloat16"),
    ({"kind": OwnLoss, "accumulation_steps": 2}, {}, "OwnLoss.compute_loss"),
    ({"kind": OwnLoss, "r_drop": 3.0}, {}, "compute_loss.*r_drop=3.0"),
    ({}, {"class_weight": {1: 2.0}}, "`class_weight`.*`sample_weight`"),
    ({}, {"y": LABELS[..., None]}, "`y` must be one tensor"),
    ({}, {"y": np.eye(V)[LABELS]}, "`y` must be one tensor"),
    ({}, {"y": None}, "`y` must be one tensor"),
    ({}, {"sample_weight": WEIGHTS[..., None]}, "`sample_weight` must be one tensor"),
    # Callbacks that need something of the optimizer.
    (PAPER, called(callbacks.ReduceLROnPlateau("loss")), f"`ReduceLROnPlateau` {RATE}"),
    (
        PAPER,
        called(callbacks.LearningRateScheduler(lambda epoch: 0.1)),
        f"`LearningRateScheduler` {RATE}",
    ),
    (
        {"optimizer": SGD(lambda: 0.1)},
        called(callbacks.ReduceLROnPlateau("loss")),
        "`ReduceLROnPlateau` sets the learning rate.*Received: learning_rate=function",
    ),
    ({}, called(callbacks.SwapEMAWeights()), "`SwapEMAWeights` needs.*use_ema=False"),
    ({}, called(AveragedWeights()), "`AveragedWeights` needs.*use_ema=False"),
    (
        {},
        {"callbacks": callbacks.CallbackList([AveragedWeights()])},
        "`AveragedWeights` needs.*use_ema=False",
    ),
    (
        AVERAGING,
        called(callbacks.SwapEMAWeights(swap_on_epoch=True), KEEPER),
        "Place `SwapEMAWeights` after",
    ),
    (
        AVERAGING,
        called(KEEPER, AveragedWeights()),
        "`RunKeeper` would save averages.*as `averaged`",
    ),
]
if BACKEND == "tensorflow":
    REFUSED += [
        (JIT | {name: 2}, {}, "`jit_compile`") for name in ("accumulation_steps", "devices")
    ]


@pytest.mark.parametrize("made, arguments, message", REFUSED)
def test_what_the_step_cannot_do_is_refused(made, arguments, message):
    made = dict(made)
    settings = {name: made.pop(name) for name in {"accumulation_steps", "r_drop"} & made.keys()}
    devices, dtype = made.pop("devices", 1), made.pop("dtype", "float32")
    for method in ("fit",) if "callbacks" in arguments else ("fit", "train_on_batch"):
        with dtype_policy(dtype), on_devices(devices):
            model = compiled(**made)
        for name, value in settings.items():
            setattr(model, name, value)
        before = to_numpy(model.trainable_variables)
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(**{"x": TOKENS, "y": LABELS} | arguments)
        for weight, old in zip(to_numpy(model.trainable_variables), before, strict=True):
            np.testing.assert_array_equal(weight, old)


def test_output_with_a_keras_mask_is_refused():
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(V, 6, mask_zero=True)(tokens)
    model = Tagger(tokens, keras.layers.Dense(V)(embedded))
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0), **EAGER)
    with pytest.raises(ValueError, match="must not have a Keras mask"):
        model.train_on_batch(TOKENS, LABELS)


@jax_only
def test_arrays_that_devices_cannot_share_are_refused():
    with on_devices(4):
        model = compiled()
        for method in (model.fit, model.train_on_batch):
            with pytest.raises(ValueError, match="divisible by the number of devices, 4"):
                method(TOKENS[:5], LABELS[:5])


def test_step_on_one_batch_gives_the_update_of_the_batch():
    """In a graph, for a loss with `reduction="sum"`, and labels of one byte."""
    loss = SmoothedCrossEntropy(ignore_class=0, reduction="sum")
    truth = compiled(keras.Model, SGD(0.5), loss=loss)
    expected = truth.train_on_batch(TOKENS, LABELS)
    with on_devices(2 if BACKEND == "tensorflow" else 1):
        model = compiled(Tagger, SGD(0.5), loss=loss, run_eagerly=False)
    model.accumulation_steps = 2
    assert model.test_on_batch(TOKENS, LABELS) == pytest.approx(expected, rel=1e-5)
    logs = model.train_on_batch(TOKENS, LABELS.astype("uint8"), return_dict=True)
    assert logs.keys() == {"loss", "gradient_norm"}
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    for value, other in zip(model.trainable_variables, truth.trainable_variables, strict=True):
        np.testing.assert_allclose(to_numpy(value), to_numpy(other), atol=1e-5)


@tensorflow_only
def test_evaluate_builds_no_optimizer():
    model = compiled(optimizer="adam")
    model.evaluate(TOKENS, LABELS, verbose=0)
    assert not model.optimizer.built


@tensorflow_only
def test_xla_is_used_only_if_asked_for():
    model = tagger()
    for asked in ("auto", True):
        model.compile("sgd", SmoothedCrossEntropy(), jit_compile=asked)
        assert model.jit_compile is (asked is True)


@pytest.mark.parametrize("label", [-3, V])
def test_label_outside_the_vocabulary_counts_only_with_weight_0(label):
    model = compiled(loss=SparseCategoricalCrossentropy(from_logits=True))
    labels, sample_weight = LABELS.copy(), np.ones(LABELS.shape)
    labels[2, 1], sample_weight[2, 1] = label, 0
    assert np.isfinite(model.test_on_batch(TOKENS, labels, sample_weight))
    if BACKEND == "tensorflow":
        from tensorflow.errors import InvalidArgumentError

        with pytest.raises(InvalidArgumentError, match=f"token id of the model, 0 to {V - 1}"):
            model.test_on_batch(TOKENS, labels)
    else:
        model.reset_metrics()
        assert np.isnan(model.test_on_batch(TOKENS, labels))


@tensorflow_only
def test_fit_works_after_a_fit_that_failed_in_the_graph():
    model = compiled(optimizer="adam", metrics=[TokenAccuracy()], run_eagerly=False)
    with pytest.raises(ValueError):
        model.fit(TOKENS, LABELS[:, :3], verbose=0)
    assert np.isfinite(model.fit(TOKENS, LABELS, verbose=0).history["loss"])
    assert model.optimizer.iterations.numpy() == 1


@tensorflow_only
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, in the first epoch
@pytest.mark.parametrize("replicas, micro_batches, steps_per_execution", [(1, 2, 1), long(2, 1, 3)])
def test_end_of_a_dataset_advances_nothing(replicas, micro_batches, steps_per_execution):
    """Neither optimizer nor dropout count the call that finds no batch.

    The reference is a dataset of known length, one step at a time.
    """
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((TOKENS, LABELS)).batch(2)
    unknown = dataset.filter(lambda tokens, labels: True)
    ends = []
    for batches, steps in ((dataset, 1), (unknown, steps_per_execution)):
        with on_devices(replicas):
            how = {"steps_per_execution": steps, "run_eagerly": False}
            model = compiled(optimizer="adam", dropout=0.5, **how)
        model.accumulation_steps = micro_batches
        losses = model.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
        ends.append([losses, *map(to_numpy, [model.optimizer.iterations, *model.variables])])
    assert ends[0][1] == 2 * 4
    for known, found in zip(*ends, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-5)


@tensorflow_only
def test_predict_on_batch_returns_each_row_once_on_replicas():
    expected = tagger().predict_on_batch(TOKENS)
    with on_devices(2):
        model = tagger()
    for rows in (8, 1):
        found = model.predict_on_batch(TOKENS[:rows])
        np.testing.assert_allclose(found, expected[:rows], atol=1e-6)
