"""JAX and PyTorch train by Keras's own step: the numbers are those of the exact step."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy
from tests.builders import new_transformer, padded_ids, run_fresh, to_numpy, token_inputs

pytestmark = pytest.mark.tensorflow_only

TRAIN = """
import keras
import numpy as np
from keras_transformer import SmoothedCrossEntropy
from tests.builders import new_transformer, to_numpy
{prepare}
data = dict(np.load("{folder}/data.npz"))
labels = data.pop("labels")
model = new_transformer(dropout=0.0, num_encoder_layers=1)
model.load_weights("{folder}/model.weights.h5")
model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.5), SmoothedCrossEntropy())
losses = [model.train_on_batch(data, labels) for _ in range(5)]
weights = {{v.path: to_numpy(v) for v in model.trainable_variables}}
np.savez("{folder}/result.npz", losses=np.array(losses, "float32"), **weights)
"""
DATA_PARALLEL = """
import jax
assert len(jax.devices()) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel())
"""


@pytest.mark.parametrize("backend, prepare", [("jax", ""), ("jax", DATA_PARALLEL), ("torch", "")])
def test_backend_trains_to_the_same_numbers(backend, prepare, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    labels = padded_ids([4, 8, 1, 6, 2, 3], 50, seed=1)
    decoder_token_ids = np.pad(labels, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    inputs = token_inputs(padded_ids([5, 3, 7, 2, 6, 4], 50), decoder_token_ids)
    model = new_transformer(dropout=0.0, num_encoder_layers=1)
    model.save_weights(tmp_path / "model.weights.h5")
    np.savez(tmp_path / "data.npz", **inputs, labels=labels)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.5), SmoothedCrossEntropy())
    losses = [model.train_on_batch(inputs, labels)[0] for _ in range(5)]
    run_fresh(
        TRAIN.format(folder=tmp_path, prepare=prepare),
        KERAS_BACKEND=backend,
        XLA_FLAGS="--xla_force_host_platform_device_count=2" if prepare else "",
    )
    result = np.load(tmp_path / "result.npz")
    np.testing.assert_allclose(result["losses"].ravel(), losses, rtol=1e-5)
    for variable in model.trainable_variables:
        if not variable.path.endswith("key/bias"):  # its gradient is only rounding
            np.testing.assert_allclose(result[variable.path], to_numpy(variable), atol=1e-4)


def test_micro_batches_are_refused_elsewhere():
    code = "from tests.builders import new_transformer as new\n"
    code += "try:\n    new().accumulation_steps = 2\nexcept ValueError as error:\n    print(error)"
    assert "needs the TensorFlow backend" in run_fresh(code, KERAS_BACKEND="jax")


def test_what_takes_logits_for_something_else_is_refused_elsewhere():
    code = """
import keras, numpy as np
from tests.builders import new_transformer, padded_ids, token_inputs
ids = padded_ids([4, 3], 50)
model = new_transformer()
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for loss, arguments in ((None, {"class_weight": {1: 2.0}}), ("function", {})):
    if loss:
        model.compile("sgd", keras.losses.sparse_categorical_crossentropy)
    try:
        model.fit(token_inputs(ids, ids), ids, verbose=0, **arguments)
    except ValueError as error:
        print(error)
"""
    said = run_fresh(code, KERAS_BACKEND="jax")
    assert "`sample_weight`" in said and "from_logits=True" in said
