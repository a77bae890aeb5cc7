"""The step without logits makes the updates of the step with logits, or says why it cannot."""

import contextlib

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

import keras_transformer as kt
from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, Transformer
from tests.builders import assert_close, padded_ids, randomize, to_numpy

BACKEND = keras.backend.backend()
tensorflow_only = pytest.mark.tensorflow_only

V = 23
SOURCE, TARGET, LABELS = (padded_ids([5, 3, 6, 1, 4, 2, 6], V, seed=seed) for seed in range(3))
WEIGHTS = np.random.default_rng(3).uniform(0.1, 2, LABELS.shape).astype("float32")
WEIGHTS[1, 2:] = 0  # the weights of padding are not 0: what counts is decided by loss and metrics
FIELDS = {
    "vocabulary_size": V,
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
    "activation": "gelu",  # a dead unit of relu would only show rounding
}
WITHOUT_PADDING = {"output_bias": True, "predict_padding": False}


@keras.saving.register_keras_serializable()
class RegularizedEncoder(kt.models.TransformerEncoder):
    """Adds the mean square of its outputs to the loss."""

    def call(self, token_ids, padding_mask=None, return_attention_scores=False, training=None):
        outputs = super().call(token_ids, padding_mask, return_attention_scores, training)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(outputs)))
        return outputs


class RegularizedTransformer(Transformer):
    encoder_class = RegularizedEncoder


@keras.saving.register_keras_serializable()
class TwoFacedEncoder(kt.models.TransformerEncoder):
    """Trains every second row otherwise: as dropout does, but not at random."""

    def call(self, token_ids, padding_mask=None, return_attention_scores=False, training=None):
        outputs = super().call(token_ids, padding_mask, return_attention_scores, training)
        if not training:
            return outputs
        is_second = keras.ops.arange(keras.ops.shape(outputs)[0]) % 2
        return outputs * (1.0 - 0.5 * keras.ops.cast(is_second, "float32")[:, None, None])


class TwoFacedTransformer(Transformer):
    encoder_class = TwoFacedEncoder


R_DROP = 3.0


def use_r_drop(model):
    model.r_drop = R_DROP


def on_replicas(number):
    if number == 1:
        return contextlib.nullcontext()
    from tests.replicas import mirrored

    return mirrored().scope()


def trained(
    fused, kind=Transformer, replicas=1, micro_batches=1, prepare=None, fields=None, **compiled
):
    """Returns history, evaluation and weights after two updates."""
    import tensorflow as tf

    with on_replicas(replicas):
        model = kind(**FIELDS, **{"dropout": 0.0, **(fields or {})})
        randomize(model)
        if prepare is not None:
            prepare(model)
        # Graphs are those of the fused step; tracing those of the logits takes too long.
        eager = {"run_eagerly": not fused} if BACKEND == "tensorflow" else {}
        arguments = {"loss": SmoothedCrossEntropy(0.1)} | eager | compiled
        for name in {"metrics", "weighted_metrics"} & arguments.keys():
            arguments[name] = arguments[name]()
        model.compile(keras.optimizers.SGD(0.1), **arguments)
    model.fused_loss, model.accumulation_steps = fused, micro_batches
    inputs = {"encoder_token_ids": SOURCE, "decoder_token_ids": TARGET}
    batches = tf.data.Dataset.from_tensors((inputs, LABELS, WEIGHTS)).repeat(2)
    history = model.fit(batches, verbose=0, shuffle=False).history
    evaluated = model.evaluate(batches, verbose=0, return_dict=True)
    return history, evaluated, [to_numpy(v) for v in model.trainable_variables]


def both_metrics(**arguments):
    return lambda: [TokenAccuracy(**arguments), Perplexity(**arguments)]


def freeze_embedding(model):
    model.encoder.embedding.trainable = False


def add_lora(model):
    model.encoder.embedding.enable_lora(2, a_initializer=keras.initializers.HeUniform(seed=1))


def case(*marks, id, **arguments):
    return pytest.param(arguments, marks=marks, id=id)


# What only one case has stands alone; the others combine what does not touch.
CASES = [
    case(
        id="all metrics, the loss ignores padding",  # tokens of weight 0 count in `metrics`
        loss=SmoothedCrossEntropy(0.0, ignore_class=0),
        metrics=both_metrics(),
        weighted_metrics=both_metrics(ignore_class=0),
    ),
    case(
        pytest.mark.long,
        id="separate projection, mean, frozen",
        fields={"tie_embeddings": "none"},
        prepare=freeze_embedding,
        loss=SmoothedCrossEntropy(reduction="mean"),
        loss_weights=0.5,
        metrics=both_metrics(ignore_class=0),
    ),
    case(
        pytest.mark.long,
        id="separate vocabularies, sum, no metrics",
        fields={"tie_embeddings": "decoder", "source_vocabulary_size": 40},
        loss=SmoothedCrossEntropy(reduction="sum"),
        metrics=list,
    ),
    case(pytest.mark.long, id="LoRA", prepare=add_lora),
    case(pytest.mark.long, id="add_loss", kind=RegularizedTransformer, micro_batches=3),
    case(
        id="R-Drop",
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        micro_batches=2,
        weighted_metrics=both_metrics(),
    ),
    case(
        tensorflow_only,
        pytest.mark.long,
        id="R-Drop on replicas",
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        replicas=2,
        metrics=both_metrics(ignore_class=0),
    ),
    case(
        pytest.mark.long,
        id="padding without probability",
        kind=TwoFacedTransformer,
        prepare=use_r_drop,
        fields=WITHOUT_PADDING,
        loss=SmoothedCrossEntropy(0.1, ignore_class=0),
        metrics=both_metrics(ignore_class=0),
    ),
    case(
        tensorflow_only,
        pytest.mark.long,
        id="replicas and micro-batches",
        replicas=2,
        micro_batches=2,
        metrics=both_metrics(),
        weighted_metrics=both_metrics(ignore_class=0),
    ),
]


@pytest.mark.filterwarnings("ignore:Padding counts")
@pytest.mark.parametrize("arguments", CASES)
def test_updates_and_metrics_are_those_of_the_logits(arguments, caplog):
    history, evaluated, weights = trained(True, **arguments)
    assert not [message for message in caplog.messages if "logits" in message]
    reference = dict(arguments, replicas=1, micro_batches=1)
    expected_history, expected_evaluated, expected_weights = trained(False, **reference)
    assert history.keys() == expected_history.keys()
    assert evaluated.keys() == expected_evaluated.keys()
    for name, values in expected_history.items():
        assert_close(history[name], values, 1e-5)
    for name, value in expected_evaluated.items():
        assert_close(evaluated[name], value, 1e-5)
    for actual, expected in zip(weights, expected_weights, strict=True):
        assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize(
    "fused, fields",
    [(True, WITHOUT_PADDING), (False, {}), pytest.param(True, {}, marks=pytest.mark.long)],
)
def test_r_drop_is_its_definition(fused, fields):
    """Equation 4 of Liang et al., 2021, divided by 2, of the logits of two passes."""
    model = randomize(TwoFacedTransformer(**FIELDS, **fields, dropout=0.0))
    included = np.arange(V) != (0 if fields else V)
    weights = WEIGHTS * (LABELS != 0)
    use_r_drop(model)
    eager = {"run_eagerly": True} if BACKEND == "tensorflow" else {}
    perplexity = {"weighted_metrics": [Perplexity()]}
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.1), **perplexity, **eager)
    model.fused_loss = fused
    rows = np.arange(len(SOURCE)).repeat(2)
    logits = to_numpy(model([SOURCE[rows], TARGET[rows]], training=True))
    p, q = (log_softmax(each.astype(float), axis=-1) for each in (logits[::2], logits[1::2]))
    target = 0.9 * np.eye(V)[LABELS] + 0.1 / included.sum() * included
    losses = -(target * (p + q)).sum(-1)
    divergences = (np.exp(p) * (p - q)).sum(-1) + (np.exp(q) * (q - p)).sum(-1)
    assert divergences.min() > 1e-3, "the passes must differ"
    expected = ((losses + R_DROP / 2 * divergences) / 2 * weights).sum() / weights.sum()
    nll = -np.take_along_axis(p, LABELS[..., None], -1)[..., 0]
    logs = model.train_on_batch([SOURCE, TARGET], LABELS, weights, return_dict=True)
    assert_close(logs["loss"], expected, 1e-5)
    assert_close(np.log(logs["perplexity"]), (nll * weights).sum() / weights.sum(), 1e-5)
    logs = model.test_on_batch([SOURCE, TARGET], LABELS, weights, return_dict=True)
    single = log_softmax(to_numpy(model([SOURCE, TARGET])).astype(float), axis=-1)
    assert_close(logs["loss"], (-(target * single).sum(-1) * weights).sum() / weights.sum(), 1e-5)


class OwnCall(Transformer):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training, mask)


class OwnMetrics(Transformer):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred, sample_weight)


REASONS = [
    case(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        id="the loss is not `SmoothedCrossEntropy`",
    ),
    case(
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
        id="neither `TokenAccuracy` nor `Perplexity`: <SparseCategoricalAccuracy",
    ),
    case(metrics=["accuracy"], id="'accuracy'"),
    case(tensorflow_only, jit_compile=True, id="`jit_compile` is set"),
    case(kind=OwnCall, id="`output_kernel` of the model is None"),
    case(kind=OwnMetrics, id="`compute_metrics` is overridden"),
]


@pytest.mark.parametrize("arguments", REASONS)
def test_what_needs_the_logits_is_said_once(arguments, caplog, request):
    compiled = {"loss": SmoothedCrossEntropy(), "kind": Transformer} | arguments
    model = compiled.pop("kind")(**FIELDS)
    model.compile("sgd", **compiled)
    with pytest.MonkeyPatch.context() as patch:  # without the evaluation itself
        patch.setattr(keras.Model, "evaluate", lambda self, *args, **kwargs: None)
        for _ in range(2):
            model.evaluate([SOURCE, TARGET], LABELS, sample_weight=WEIGHTS, verbose=0)
    ours = [each for each in caplog.records if each.name.startswith("keras_transformer")]
    assert [request.node.callspec.id in each.getMessage() for each in ours] == [True]


@pytest.mark.backends("jax")  # only it has several devices here
def test_several_jax_devices_need_the_logits(caplog):
    devices = keras.distribution.list_devices()[:2]
    with keras.distribution.DataParallel(devices=devices).scope():
        model = Transformer(**FIELDS)
        model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
        model.evaluate([SOURCE[:6], TARGET[:6]], LABELS[:6], verbose=0)
    assert ["JAX devices" in message for message in caplog.messages] == [True]


def test_hidden_states_are_the_inputs_of_the_last_product():
    for tied in ("all", "none"):
        model = randomize(Transformer(**FIELDS, tie_embeddings=tied))
        hidden = model([SOURCE, TARGET], return_hidden=True)
        assert hidden.shape == (*TARGET.shape, 8)
        logits = to_numpy(hidden) @ to_numpy(model.output_kernel).T
        assert_close(logits, to_numpy(model([SOURCE, TARGET])), 1e-5)


def test_a_quantized_model_has_no_kernel():
    model = Transformer(**FIELDS)
    model.encoder.embedding.quantize("int8")
    assert model.output_kernel is None


@pytest.mark.filterwarnings("ignore:Padding counts")
def test_excluded_label_that_one_metric_counts_is_ignored_by_another():
    model, weights = Transformer(**FIELDS, **WITHOUT_PADDING), (LABELS != 0).astype("float32")
    found = []
    for model.fused_loss in (True, False):
        metrics = {"metrics": [TokenAccuracy()], "weighted_metrics": [Perplexity()]}
        model.compile("sgd", SmoothedCrossEntropy(), **metrics)
        logs = model.test_on_batch([SOURCE, TARGET], LABELS, weights, return_dict=True)
        found.append(list(logs.values()))
    assert_close(*found, 1e-5)


@pytest.mark.filterwarnings("ignore:Padding counts")
def test_label_outside_the_vocabulary_is_named_or_makes_all_nan():
    model = Transformer(**FIELDS)
    model.compile("sgd", loss=SmoothedCrossEntropy(), metrics=[Perplexity(ignore_class=0)])
    call = {"x": [SOURCE, TARGET], "sample_weight": WEIGHTS, "return_dict": True}
    labels = np.full_like(LABELS, V)
    if BACKEND == "tensorflow":
        from tensorflow.errors import InvalidArgumentError

        with pytest.raises(InvalidArgumentError, match=f"0 to {V - 1}. Received"):
            model.test_on_batch(y=labels, **call)
        return
    assert np.isnan(list(model.test_on_batch(y=labels, **call).values())).all()
    model.reset_metrics()
    loss = model.test_on_batch(y=np.where(WEIGHTS == 0, V, LABELS), **call)["loss"]
    model.reset_metrics()
    expected = model.test_on_batch(y=LABELS, **call)["loss"]
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
