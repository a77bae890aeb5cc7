"""The arguments of Keras's training methods; the same training on every backend."""

import importlib.util
import inspect

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, Transformer
from tests.builders import (
    QUICK_XLA,
    new_transformer,
    padded_ids,
    run_fresh,
    to_numpy,
    token_inputs,
    transformer,
)

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize(
    "name, value",
    [
        *(("accumulation_steps", value) for value in (0, 2.0, True, None)),
        *(("r_drop", value) for value in (-1, float("nan"), float("inf"), None, "1")),
        *(("fused_loss", value) for value in (1, None)),
    ],
)
def test_setting_of_the_step_is_checked(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be .*Received: {name}="):
        setattr(transformer(), name, value)


METHODS = ["fit", "evaluate", "train_on_batch", "test_on_batch", "predict_on_batch"]


@pytest.mark.parametrize("method", METHODS)
def test_method_has_the_arguments_of_keras(method):
    """What `help` shows: names, kinds, order and defaults are equal, and there is a text."""

    def arguments(function):
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    ours = getattr(Transformer, method)
    assert arguments(ours) == arguments(getattr(keras.Model, method))
    assert len(ours.__doc__) > 40


@pytest.mark.parametrize("arguments", [{"epoch": 2}, {"x": 1, "X": 1}])
def test_unknown_argument_is_named(arguments):
    with pytest.raises(TypeError, match="epoch|X"):
        transformer().fit(**arguments)


TRAIN = """
import keras
import numpy as np
from keras_transformer import SmoothedCrossEntropy
from tests.builders import new_transformer, to_numpy
{prepare}
assert keras.backend.backend() == "{backend}"
data = dict(np.load("{folder}/data.npz"))
labels = data.pop("labels")
model = new_transformer(dropout=0.0, num_encoder_layers=1)
model.load_weights("{folder}/model.weights.h5")
model.accumulation_steps = {steps}
model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.5), SmoothedCrossEntropy(0.1, 0))
losses = [model.train_on_batch(data, labels) for _ in range(5)]
weights = {{v.path: to_numpy(v) for v in model.trainable_variables}}
np.savez("{folder}/result.npz", losses=np.array(losses, "float32"), **weights)
"""
DEVICES = "--xla_force_host_platform_device_count=2"
DATA_PARALLEL = """
import jax
assert len(jax.devices()) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "backend, prepare, steps", [("jax", "", 1), ("jax", DATA_PARALLEL, 3), ("torch", "", 3)]
)
def test_backend_trains_to_the_same_numbers(backend, prepare, steps, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    labels = padded_ids([4, 8, 1, 6, 2, 3], 50, seed=1)
    decoder_token_ids = np.pad(labels, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    inputs = token_inputs(padded_ids([5, 3, 7, 2, 6, 4], 50), decoder_token_ids)
    model = new_transformer(dropout=0.0, num_encoder_layers=1)
    model.save_weights(tmp_path / "model.weights.h5")
    np.savez(tmp_path / "data.npz", **inputs, labels=labels)
    model.compile(
        keras.optimizers.Adam(1e-3, global_clipnorm=0.5), SmoothedCrossEntropy(ignore_class=0)
    )
    losses = [model.train_on_batch(inputs, labels) for _ in range(5)]
    run_fresh(
        TRAIN.format(folder=tmp_path, backend=backend, prepare=prepare, steps=steps),
        KERAS_BACKEND=backend,
        XLA_FLAGS=f"{QUICK_XLA} {DEVICES}" if prepare else QUICK_XLA,
    )
    result = np.load(tmp_path / "result.npz")
    np.testing.assert_allclose(result["losses"].ravel(), losses, rtol=1e-5)
    for variable in model.trainable_variables:
        if not variable.path.endswith("key/bias"):  # its gradient is rounding noise
            np.testing.assert_allclose(result[variable.path], to_numpy(variable), atol=1e-4)
