"""Arguments of `compile` and `fit` mean for a `Transformer` what they mean in Keras.

The reference is Keras's own step: a plain `keras.Model` of the same layers and weights, on one
device, with whole batches and without padding. `ROWS` is the table of docs/pages/training.md.
A row that compiles anew has the training step in a smaller model, which is traced sooner.
"""

import contextlib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
from keras import callbacks
from keras.optimizers import SGD

from keras_transformer import (
    Perplexity,
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
    WarmupSchedule,
    layers,
)
from keras_transformer.training import TrainingStep
from tests.builders import ROOT, randomize, to_numpy

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.slow
SETUPS = ["one device", "2 replicas x 3 micro-batches"] if BACKEND == "tensorflow" else [BACKEND]
IS_EAGER = BACKEND == "tensorflow"  # tracing would take most of the time
WITHOUT_XLA = {"jit_compile": False} if BACKEND == "tensorflow" else {}  # it compiles each shape
SAME = "as in Keras"

# Three batches. Their rows divide neither by the micro-batches nor by the replicas.
BATCH, ROWS_OF_DATA, LENGTH = 7, 21, 5
IDS = np.random.default_rng(0).integers(4, 20, (3, ROWS_OF_DATA, LENGTH)).astype("int32")
INPUTS = {"encoder_token_ids": IDS[0], "decoder_token_ids": IDS[1]}
LABELS = IDS[2]
ARRAYS = {"x": INPUTS, "y": LABELS, "batch_size": BATCH}
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, LABELS.shape).astype("float32")
BATCHES = [
    ({name: ids[at : at + BATCH] for name, ids in INPUTS.items()}, LABELS[at : at + BATCH])
    for at in range(0, ROWS_OF_DATA, BATCH)
]
VALIDATION = {"validation_data": (INPUTS, LABELS)}


# === The table ===


@dataclass(kw_only=True)
class Row:
    """What an argument means. The three columns hold `SAME`, or what the error says.

    Attributes:
        fit: the arguments of `fit` beside the arrays, or a function of a folder that makes them.
        truth: the same for the reference, if they are others.
        optimizer: makes an optimizer.
        compile: makes the other arguments of `compile`. Without both, the rows share a
            `Transformer`.
        backends: the backends that have the argument.
    """

    one: str = SAME
    several: str | None = None
    other: str | None = None
    fit: Any = None
    truth: Any = None
    optimizer: Callable | None = None
    compile: Callable | None = None
    dtype: str = "float32"
    backends: tuple[str, ...] = ("tensorflow", "jax", "torch")

    def expected(self, setup):
        if setup in ("jax", "torch"):
            return self.other or self.one
        return self.one if setup == "one device" else self.several or self.one


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        return BATCHES[index]


def dataset(is_known=True):
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices((INPUTS, LABELS)).batch(BATCH)
    return batches if is_known else batches.filter(lambda x, y: True)


def callback(make, **fit):
    """A row about a callback, made by a function of a folder."""
    return Row(fit=lambda folder: {"epochs": 3, "callbacks": [make(folder)]} | fit)


OF_DATA = {"y": None, "batch_size": None}
ON_TENSORFLOW = {"backends": ("tensorflow",)}
NOT_TORCH = {"backends": ("tensorflow", "jax")}
GRAPH = {"run_eagerly": False} | WITHOUT_XLA

# Argument as on the page -> its row, or several with the same cells.
ROWS = {
    # compile
    "`optimizer`": Row(optimizer=lambda: SGD(WarmupSchedule(8, 4, scale=0.1))),
    "`loss` of logits": Row(
        compile=lambda: {
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        }
    ),
    "`loss` of probabilities": Row(
        compile=lambda: {"loss": "sparse_categorical_crossentropy"}, one="from_logits=True"
    ),
    "`loss_weights`": Row(compile=lambda: {"loss_weights": [0.5]}),
    "`metrics`": Row(
        compile=lambda: {"metrics": ["accuracy", TokenAccuracy(ignore_class=0, name="tokens")]}
    ),
    "`weighted_metrics`": Row(compile=lambda: {"weighted_metrics": [Perplexity(ignore_class=0)]}),
    "`run_eagerly`": Row(compile=lambda: {"run_eagerly": True}),
    "`steps_per_execution`": [
        Row(compile=lambda: GRAPH | {"steps_per_execution": 2}, fit=fit, truth=truth, **columns)
        for fit, truth, columns in [
            ({"epochs": 2}, None, NOT_TORCH),
            (
                lambda folder: {"x": dataset(is_known=False), "epochs": 2, **OF_DATA},
                {"epochs": 2},
                ON_TENSORFLOW,
            ),
        ]
    ],
    "`jit_compile=True`": Row(
        compile=lambda: GRAPH | {"jit_compile": True},
        several="`jit_compile` must be False",
        other=SAME,
        **NOT_TORCH,
    ),
    "`auto_scale_loss`": Row(compile=lambda: {"auto_scale_loss": True}, dtype="mixed_float16"),
    # optimizers
    "`clipnorm`": Row(optimizer=lambda: SGD(0.1, clipnorm=0.05)),
    "`clipvalue`": Row(optimizer=lambda: SGD(0.1, clipvalue=0.01)),
    "`global_clipnorm`": Row(optimizer=lambda: SGD(0.1, global_clipnorm=0.1)),
    "`gradient_accumulation_steps`": Row(
        optimizer=lambda: SGD(0.1, gradient_accumulation_steps=2),
        one="`gradient_accumulation_steps` must be None.*`accumulation_steps`",
    ),
    "`weight_decay`": Row(optimizer=lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)),
    "`loss_scale_factor`": Row(optimizer=lambda: SGD(0.1, clipnorm=0.05, loss_scale_factor=128.0)),
    "`use_ema`": Row(
        optimizer=lambda: SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    ),
    # fit
    "`x` and `y` as arrays": [
        Row(fit={"x": INPUTS}),
        Row(fit={"x": [IDS[0], IDS[1]]}, truth={}),
        Row(fit={"x": (IDS[0], IDS[1])}, truth={}),
    ],
    "`x` as a generator": Row(
        fit=lambda folder: {"x": (batch for batch in BATCHES), "steps_per_epoch": 3, **OF_DATA},
        truth={},
    ),
    "`x` as a `PyDataset`": Row(fit=lambda folder: {"x": Batches(), **OF_DATA}, truth={}),
    "`x` as a `tf.data.Dataset`": [
        Row(
            fit=lambda folder, k=is_known: {"x": dataset(k), "epochs": 2, **OF_DATA},
            truth={"epochs": 2},
            **ON_TENSORFLOW,
        )
        for is_known in (True, False)
    ],
    "`batch_size`": Row(fit={"batch_size": 10}),
    "`epochs`": Row(fit={"epochs": 2}),
    "`initial_epoch`": Row(fit={"initial_epoch": 1, "epochs": 2}),
    "`steps_per_epoch`": Row(fit={"steps_per_epoch": 2}),
    "`shuffle`": Row(fit={"shuffle": True, "batch_size": ROWS_OF_DATA}),
    "`verbose`": Row(fit={"verbose": 2}),
    "`sample_weight`": [
        Row(compile=dict, fit={"sample_weight": weights, "batch_size": ROWS_OF_DATA})
        for weights in (WEIGHTS, WEIGHTS[:, 0])
    ],
    "`class_weight`": Row(
        fit={"class_weight": {5: 2.0}}, one="`class_weight` must be None.*`sample_weight`"
    ),
    "`validation_data`": Row(fit=VALIDATION),
    "`validation_split`": Row(fit={"validation_split": 0.34}),
    "`validation_freq`": Row(fit=VALIDATION | {"validation_freq": 2, "epochs": 2}),
    "`validation_steps`": Row(fit=VALIDATION | {"validation_steps": 1}),
    "`validation_batch_size`": Row(fit=VALIDATION | {"validation_batch_size": 10}),
    # callbacks
    "`ModelCheckpoint`": callback(
        lambda folder: callbacks.ModelCheckpoint(folder / "{epoch}.keras"), epochs=2
    ),
    "`EarlyStopping`": callback(
        lambda folder: callbacks.EarlyStopping("loss", 9.0, restore_best_weights=True)
    ),
    "`CSVLogger`": callback(lambda folder: callbacks.CSVLogger(folder / "log.csv")),
    "`BackupAndRestore`": callback(lambda folder: callbacks.BackupAndRestore(folder)),
    "`ReduceLROnPlateau`": callback(
        lambda folder: callbacks.ReduceLROnPlateau("loss", min_delta=9.0, patience=1)
    ),
    "`LearningRateScheduler`": callback(
        lambda folder: callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    ),
    "`TerminateOnNaN`": callback(
        lambda folder: callbacks.TerminateOnNaN(), sample_weight=WEIGHTS * np.nan
    ),
    "`SwapEMAWeights`": Row(
        optimizer=lambda: SGD(0.1, use_ema=True, ema_momentum=0.5),
        fit=lambda folder: VALIDATION | {"callbacks": [callbacks.SwapEMAWeights()], "epochs": 2},
    ),
    "`TensorBoard`": Row(
        fit=lambda folder: {"callbacks": [callbacks.TensorBoard(folder)]},
        **ON_TENSORFLOW,
    ),
}


# The first case of these runs always, the others only with `--long`. Errors: `test_token_loss.py`.
ALWAYS = re.compile("`(steps_per_exec|clipnorm)")


def every_row():
    for argument, rows in ROWS.items():
        for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
            marks = [] if ALWAYS.match(argument) and number == 0 else [pytest.mark.long]
            if row.optimizer or row.compile:
                marks.append(pytest.mark.slow_on_jax)
            name = re.sub(r"\W+", "-", argument).strip("-") + (f"-{number}" if number else "")
            if BACKEND in row.backends:
                yield pytest.param(row, marks=marks, id=name)


# === Training ===


def scope(setup):
    if "replicas" not in setup:
        return contextlib.nullcontext()
    from tests.replicas import mirrored

    return mirrored().scope()


class Small(TrainingStep, keras.Model):
    """Embedding, which is also the output's matrix, and feed-forward network."""

    def __init__(self, dtype):
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
        source, target = inputs.values()
        embedding = layers.PositionalEmbedding(20, 8, dtype=dtype)
        x = embedding(target) + keras.ops.mean(embedding(source), axis=1, keepdims=True)
        x += layers.FeedForward(16, dtype=dtype)(x)
        super().__init__(inputs, embedding(x, reverse=True))


@functools.cache
def new_model(setup, dtype, is_shared):
    """A model with the exact step or, for the setup "Keras", with Keras's step."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
    config = TransformerConfig.tiny(20, **sizes, intermediate_dim=16, dropout=0.0, use_bias=False)
    with scope(setup):
        model = Transformer(config, dtype=dtype) if is_shared else Small(dtype)
        if setup == "Keras":
            model = keras.Model(model.inputs, model.outputs)
        if is_shared:
            optimizer = SGD(0.1, momentum=0.5)
            model.compile(optimizer, SmoothedCrossEntropy(ignore_class=0), **WITHOUT_XLA)
            model.optimizer.build(model.trainable_variables)
            model.first_state = [v.numpy() for v in model.optimizer.variables]
    if "micro-batches" in setup:
        model.accumulation_steps = 3
    return model


def model_for(row, setup):
    """The compiled model of a row, with its first weights."""
    is_shared = not (row.optimizer or row.compile)
    model = new_model(setup, row.dtype, is_shared)
    randomize(model)
    if is_shared:
        for variable, value in zip(model.optimizer.variables, model.first_state, strict=True):
            variable.assign(value)
        return model
    with scope(setup):
        arguments = {"loss": SmoothedCrossEntropy(ignore_class=0), "run_eagerly": IS_EAGER}
        arguments["optimizer"] = row.optimizer() if row.optimizer else SGD(0.1)
        model.compile(**arguments | (row.compile() if row.compile else {}))
    return model


def trained(row, setup, fit, folder):
    """History, weights, number of updates and names of the files after a `fit`."""
    model = model_for(row, setup)
    arguments = fit(folder) if callable(fit) else fit or {}
    history = model.fit(**{**ARRAYS, "shuffle": False, "verbose": 0, **arguments}).history
    history.pop("gradient_norm", None)
    weights = [to_numpy(v) for v in model.trainable_variables]
    files = sorted(re.sub(r"events.*", "events", path.name) for path in folder.rglob("*"))
    return history, weights, int(to_numpy(model.optimizer.iterations)), files


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, in the first epoch
@pytest.mark.parametrize("row", list(every_row()))
def test_argument_means_what_it_means_in_keras(row, tmp_path):
    folders = iter(range(99))

    def run(setup, fit):
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        return trained(row, setup, fit, folder)

    truth = None
    for setup in SETUPS:
        expected = row.expected(setup)
        if expected != SAME:
            with pytest.raises(ValueError, match=expected):
                run(setup, row.fit)
            continue
        truth = truth or run("Keras", row.fit if row.truth is None else row.truth)
        history, weights, updates, files = run(setup, row.fit)
        assert (updates, files) == truth[2:], setup
        assert list(history) == list(truth[0]), setup
        tolerance = 1e-2 if row.dtype == "mixed_float16" else 1e-5
        for name, values in truth[0].items():
            np.testing.assert_allclose(history[name], values, tolerance, err_msg=f"{setup} {name}")
        for value, expected in zip(weights, truth[1], strict=True):
            np.testing.assert_allclose(value, expected, atol=tolerance, err_msg=setup)


@pytest.mark.parametrize(
    "setup", [SETUPS[0], *(pytest.param(each, marks=pytest.mark.long) for each in SETUPS[1:])]
)
def test_methods_return_what_they_return_in_keras(setup):
    def results(setup):
        model = model_for(Row(compile=lambda: {"metrics": ["accuracy"]}), setup)
        yield model.train_on_batch(*BATCHES[0])
        yield model.train_on_batch(*BATCHES[1], sample_weight=WEIGHTS[:BATCH])
        yield model.test_on_batch(*BATCHES[0])
        yield [model.evaluate(INPUTS, LABELS, batch_size=BATCH, verbose=0)]
        yield [model.evaluate(INPUTS, LABELS, BATCH, 0, return_dict=True)["loss"]]
        yield model.predict_on_batch(BATCHES[0][0])
        yield model.predict(INPUTS, batch_size=BATCH, verbose=0)
        new_model.cache_clear()  # Keras's models keep their metrics when they are compiled again
        model = model_for(Row(compile=dict), setup)  # without metrics: one number
        yield model.train_on_batch(*BATCHES[0])
        yield model.test_on_batch(*BATCHES[0])

    for value, expected in zip(results(setup), results("Keras"), strict=True):
        assert np.shape(value) == np.shape(expected)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


class Unbuilt(keras.Model):
    """A subclass without weights until it is called."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(20, 8)
        self.output_layer = keras.layers.Dense(20)

    def call(self, x, training=False):
        return self.output_layer(self.embedding(x))


class UnbuiltWithOurStep(TrainingStep, Unbuilt):
    pass


@pytest.mark.parametrize(
    "method, options, updates", [("fit", {"epochs": 2, "verbose": 0}, 2), ("train_on_batch", {}, 1)]
)
def test_subclass_that_is_not_built_is_trained_from_the_first_batch(method, options, updates):
    weights = []
    for kind in (UnbuiltWithOurStep, Unbuilt):
        keras.utils.set_random_seed(0)
        model = kind()
        model.compile(SGD(1.0), SmoothedCrossEntropy(ignore_class=0), **WITHOUT_XLA)
        getattr(model, method)(IDS[0], LABELS, **options)
        assert int(to_numpy(model.optimizer.iterations)) == updates
        weights.append([to_numpy(weight) for weight in model.weights])
    for value, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_page_has_the_table():
    page = (ROOT / "docs" / "pages" / "training.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    found = [(argument, [cell.startswith(SAME) for cell in each]) for argument, *each in cells]
    columns = "one device", "several parts", "jax"
    rows = {name: row[0] if isinstance(row, list) else row for name, row in ROWS.items()}
    expected = [
        (name, [row.expected(column) == SAME for column in columns]) for name, row in rows.items()
    ]
    assert found == expected
