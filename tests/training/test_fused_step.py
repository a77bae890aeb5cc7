"""The step without logits: R-Drop is its definition, and what needs the logits is said.

Its updates and metrics are in `test_update.py`.
"""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, Transformer
from tests.builders import assert_close, padded_ids, randomize, to_numpy
from tests.training.small_models import (
    BACKEND,
    EAGER,
    SIZES,
    WITHOUT_PADDING,
    TwoFacedTransformer,
    on_devices,
)

tensorflow_only = pytest.mark.tensorflow_only

V = 23
SOURCE, TARGET, LABELS = (padded_ids([5, 3, 6, 1, 4, 2, 6], V, seed=seed) for seed in range(3))
WEIGHTS = np.random.default_rng(3).uniform(0.1, 2, LABELS.shape).astype("float32")
WEIGHTS[1, 2:] = 0  # the weights of padding are not 0: what counts is decided by loss and metrics
FIELDS = SIZES | {"vocabulary_size": V}
R_DROP = 3.0


def case(*marks, id, **arguments):
    return pytest.param(arguments, marks=marks, id=id)


@pytest.mark.parametrize(
    "fused, fields",
    [(True, WITHOUT_PADDING), (False, {}), pytest.param(True, {}, marks=pytest.mark.long)],
)
def test_r_drop_is_its_definition(fused, fields):
    """Equation 4 of Liang et al., 2021, divided by 2, of the logits of two passes."""
    model = randomize(TwoFacedTransformer(**FIELDS, **fields, dropout=0.0))
    included = np.arange(V) != (0 if fields else V)
    weights = WEIGHTS * (LABELS != 0)
    model.r_drop = R_DROP
    perplexity = {"weighted_metrics": [Perplexity()]}
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.1), **perplexity, **EAGER)
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
    with on_devices(2):
        model = Transformer(**FIELDS)
        model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
        model.evaluate([SOURCE[:6], TARGET[:6]], LABELS[:6], verbose=0)
    assert ["JAX devices" in message for message in caplog.messages] == [True]


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
        model.compile("sgd", SmoothedCrossEntropy(), **metrics, **EAGER)
        logs = model.test_on_batch([SOURCE, TARGET], LABELS, weights, return_dict=True)
        found.append(list(logs.values()))
    assert_close(*found, 1e-5)


@pytest.mark.filterwarnings("ignore:Padding counts")
def test_label_outside_the_vocabulary_is_named_or_makes_all_nan():
    model = Transformer(**FIELDS)
    metrics = {"metrics": [Perplexity(ignore_class=0)]}  # it counts tokens of weight 0
    model.compile("sgd", SmoothedCrossEntropy(), **metrics, **EAGER)
    call = {"x": [SOURCE, TARGET], "sample_weight": WEIGHTS, "return_dict": True}
    labels = np.full_like(LABELS, V)
    if BACKEND == "tensorflow":
        from tensorflow.errors import InvalidArgumentError

        with pytest.raises(InvalidArgumentError, match=f"0 to {V - 1}. Received"):
            model.test_on_batch(y=labels, **call)
    else:
        assert np.isnan(list(model.test_on_batch(y=labels, **call).values())).all()
    model.reset_metrics()
    loss = model.test_on_batch(y=np.where(WEIGHTS == 0, V, LABELS), **call)["loss"]
    model.reset_metrics()
    expected = model.test_on_batch(y=LABELS, **call)["loss"]
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
