"""An update is the gradient of the weighted mean over all tokens, however a batch is split.

The reference is `keras.Model` with Keras's own step: the same layers and weights, on one device,
with whole batches and with logits. R-Drop, which Keras does not have, is compared with the step
with logits; `test_r_drop_is_its_definition` states the rest of it.
"""

import keras
import numpy as np
import pytest
from keras.losses import SparseCategoricalCrossentropy
from keras.optimizers import SGD

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, Transformer
from tests.builders import to_numpy
from tests.training.small_models import (
    BACKEND,
    EAGER,
    LABELS,
    SOURCE,
    TOKENS,
    WEIGHTS,
    WITHOUT_PADDING,
    OwnStep,
    RegularizedTransformer,
    Tagger,
    TwoFacedTransformer,
    on_devices,
    tagger,
    transformer,
)

pytestmark = pytest.mark.slow
LONG, ON_TENSORFLOW = pytest.mark.long, pytest.mark.tensorflow_only
WHOLE = 1, 1, len(TOKENS)
# (devices, micro-batches, rows). On 2 replicas, 7 rows in 3 micro-batches leave one without a row,
# and a single row leaves a replica without one.
SPLIT, *OTHERS = {
    "tensorflow": [(2, 3, 7), (1, 3, 5), (2, 1, 1), (2, 2, 3)],
    "jax": [(4, 2, 5), (1, 3, 5), (2, 3, 8), (4, 1, 8)],
    "torch": [(1, 3, 5), (1, 2, 8)],
}[BACKEND]
OPTIMIZERS = {
    "AdamW": {"weight_decay": 0.1, "clipvalue": 0.01},
    "Adam": {"global_clipnorm": 0.5},
    "SGD": {"momentum": 0.9, "clipnorm": 0.1},
    "Lion": {"weight_decay": 0.1},
    "Muon": {"weight_decay": 0.1, "adam_weight_decay": 0.1},
}
TWO_STEPS = {"steps_per_execution": 2, "run_eagerly": False} if EAGER else {}


def both(**arguments):
    return lambda: [TokenAccuracy(**arguments), Perplexity(**arguments)]


def all_metrics():
    """Unweighted metrics count every row of the data, whatever its weight, but no padding."""
    plain = keras.metrics.SparseCategoricalCrossentropy
    return {
        "metrics": lambda: [plain(from_logits=True, name="plain")],
        "weighted_metrics": both(ignore_class=0),
    }


def ignoring_padding(reduction):
    return SparseCategoricalCrossentropy(True, ignore_class=0, reduction=reduction)


def plain_loss(labels, logits):
    return keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def optimizer(name):
    return getattr(keras.optimizers, name)(0.01, use_ema=True, **OPTIMIZERS[name])


def freeze_embedding(model):
    model.encoder.embedding.trainable = False


def freeze_output(model):
    for weight in (*model.encoder.embedding.weights, *model.logits_layer.weights):
        weight.trainable = False
    assert not model.trains_output


def add_lora(model):
    model.encoder.embedding.enable_lora(2, a_initializer=keras.initializers.HeUniform(seed=1))


def use_r_drop(model):
    model.r_drop = 3.0


def row(id, *marks, cut=SPLIT, **arguments):
    return pytest.param(cut, arguments, id=id, marks=marks)


# A tagger, with regularizers, `add_loss`, a frozen embedding, sample weights.
TAGGER = [
    row("split", **all_metrics()),
    *(row(f"split {cut}", LONG, cut=cut, **all_metrics()) for cut in OTHERS),
    row("loss is a sum", loss=ignoring_padding("sum"), loss_weights={"logits": 0.25}),
    row(
        "loss is a mean over slots",
        LONG,
        loss=ignoring_padding("sum_over_batch_size"),
        loss_weights=[0.25],
    ),
    row("loss is a weighted mean", LONG, loss=ignoring_padding("mean_with_sample_weight")),
    row("loss is a function", LONG, loss=plain_loss),
    *(
        row(f"{name}, two steps per execution", LONG, optimizer=name, **TWO_STEPS)
        for name in OPTIMIZERS
    ),
]
if BACKEND == "jax":
    TAGGER += [row("devices share dropout masks", LONG, cut=(4, 1, 8), dropout=0.5)]
else:
    cuts = SPLIT, *OTHERS
    TAGGER += [row(f"own step {cut}", LONG, cut=cut, kind=OwnStep, **all_metrics()) for cut in cuts]

# A Transformer, whose step makes no logits. Other backends compile or run long: with `--long`.
HERE = () if BACKEND == "tensorflow" else (LONG,)
SOFT = SmoothedCrossEntropy(0.1)
TRANSFORMER = [
    row(
        "all metrics, the loss ignores padding",  # tokens of weight 0 count in `metrics`
        *HERE,
        cut=WHOLE,
        loss=SmoothedCrossEntropy(0.0, ignore_class=0),
        metrics=both(),
        weighted_metrics=both(ignore_class=0),
    ),
    row(
        "separate projection, mean, frozen",
        LONG,
        cut=WHOLE,
        tie_embeddings="none",
        prepare=freeze_embedding,
        loss=SmoothedCrossEntropy(reduction="mean"),
        loss_weights=0.5,
        metrics=both(ignore_class=0),
    ),
    row(
        "separate vocabularies, sum, no metrics",
        LONG,
        cut=WHOLE,
        tie_embeddings="decoder",
        source_vocabulary_size=40,
        loss=SmoothedCrossEntropy(reduction="sum"),
        metrics=list,
    ),
    row("LoRA", LONG, cut=WHOLE, prepare=add_lora, loss=SOFT),
    row("frozen output", *HERE, cut=WHOLE, output_bias=True, prepare=freeze_output, loss=SOFT),
    row("add_loss", LONG, cut=(1, 3, 8), kind=RegularizedTransformer, loss=SOFT),
    row(
        "R-Drop",
        *HERE,
        cut=(1, 2, 8),
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        loss=SOFT,
        weighted_metrics=both(),
    ),
    row(
        "R-Drop on replicas",
        LONG,
        ON_TENSORFLOW,
        cut=(2, 1, 7),
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        loss=SOFT,
        metrics=both(ignore_class=0),
    ),
    row(
        "padding without probability",
        LONG,
        cut=WHOLE,
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        **WITHOUT_PADDING,
        loss=SmoothedCrossEntropy(0.1, ignore_class=0),
        metrics=both(ignore_class=0),
    ),
    row(
        "replicas and micro-batches",
        LONG,
        ON_TENSORFLOW,
        cut=(2, 2, 7),
        loss=SOFT,
        metrics=both(),
        weighted_metrics=both(ignore_class=0),
    ),
]


def trained(model, rows, inputs, accumulation_steps=1):
    """Returns what `fit` and `evaluate` report for two updates, and the weights after them."""
    import tensorflow as tf

    model.accumulation_steps = accumulation_steps
    batch = keras.tree.map_structure(lambda array: array[:rows], (inputs, LABELS, WEIGHTS))
    dataset = tf.data.Dataset.from_tensors(batch)
    history = model.fit(dataset.repeat(2), verbose=0, shuffle=False).history
    weights = to_numpy([*model.weights, *model.optimizer.variables])
    return history, model.evaluate(dataset, verbose=0, return_dict=True), weights


def compile_model(model, optimizer_name=None, metrics=None, weighted_metrics=None, **arguments):
    made = {"metrics": metrics, "weighted_metrics": weighted_metrics}
    arguments |= {name: make() for name, make in made.items() if make is not None}
    model.compile(optimizer(optimizer_name) if optimizer_name else SGD(0.1), **arguments)


def assert_same_training(found, expected):
    *logs, weights = found
    *expected_logs, expected_weights = expected
    for found_logs, truth in zip(logs, expected_logs, strict=True):
        assert found_logs.keys() - {"gradient_norm"} == truth.keys() - {"gradient_norm"}
        for name in truth.keys() - {"gradient_norm"}:
            np.testing.assert_allclose(found_logs[name], truth[name], rtol=1e-5, err_msg=name)
    assert len(logs[0]["gradient_norm"]) == 1
    for value, truth in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(value, truth, atol=1e-5)


@pytest.mark.parametrize("cut, arguments", TAGGER)
def test_update_is_that_of_keras(cut, arguments):
    devices, accumulation_steps, rows = cut
    arguments = {"loss": SmoothedCrossEntropy(ignore_class=0)} | EAGER | arguments
    name, dropout = arguments.pop("optimizer", None), arguments.pop("dropout", 0.0)
    kind, results = arguments.pop("kind", Tagger), []
    for made, on, steps in ((kind, devices, accumulation_steps), (keras.Model, 1, 1)):
        with on_devices(on):
            model = tagger(made, dropout)
            compile_model(model, name, **arguments)
            results.append(trained(model, rows, TOKENS, steps))
    assert_same_training(*results)


@pytest.mark.filterwarnings("ignore:Padding counts")
@pytest.mark.parametrize("cut, arguments", TRANSFORMER)
def test_update_without_logits_is_that_of_keras(cut, arguments, caplog):
    devices, accumulation_steps, rows = cut
    names = "loss", "loss_weights", "metrics", "weighted_metrics"
    compiled = {name: arguments[name] for name in names if name in arguments}
    fields = {name: value for name, value in arguments.items() if name not in names}
    prepare, kind = fields.pop("prepare", None), fields.pop("kind", Transformer)
    inputs = {"encoder_token_ids": SOURCE, "decoder_token_ids": TOKENS}

    def new_model():
        model = transformer(kind, **fields)
        if prepare is not None:
            prepare(model)
        return model

    with on_devices(devices):
        model = new_model()
        compile_model(model, **compiled)
    found = trained(model, rows, inputs, accumulation_steps)
    assert not [message for message in caplog.messages if "logits" in message]
    truth = new_model()
    truth.fused_loss = False
    if prepare is not use_r_drop:
        truth = keras.Model(truth.inputs, truth.outputs)
    compile_model(truth, **compiled, **EAGER)
    assert_same_training(found, trained(truth, rows, inputs))
