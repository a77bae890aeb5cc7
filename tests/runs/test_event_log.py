"""Logs for TensorBoard: what Keras's own callback writes, which needs TensorFlow."""

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from keras_transformer.runs.event_log import EventLogger
from tests.training.small_models import EAGER

ROWS = np.arange(8.0).reshape(4, 2)


def events(folder):
    """{(subfolder, tag, step): value}, as TensorBoard reads them; and the plugin of each tag."""
    values, plugins = {}, {}
    for path in folder.iterdir():
        found = EventAccumulator(str(path), size_guidance={"tensors": 0}).Reload()
        for tag in found.Tags()["tensors"]:
            plugins[tag] = found.SummaryMetadata(tag).plugin_data.plugin_name
            for event in found.Tensors(tag):
                values[path.name, tag, event.step] = make_ndarray(event.tensor_proto).item()
    return values, plugins


def fit(*loggers):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], **EAGER)
    rate = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(learning_rate=0.01)
    )
    callbacks = {"callbacks": [rate, *loggers], "validation_data": (ROWS, ROWS[:, :1])}
    return model.fit(ROWS, ROWS[:, :1], epochs=3, verbose=0, **callbacks).history


@pytest.mark.backends("jax", "torch")  # on TensorFlow, the reference is Keras's own callback
def test_values_of_each_epoch_are_logged(tmp_path):
    history = fit(EventLogger(tmp_path))
    values, plugins = events(tmp_path)
    assert set(plugins.values()) == {"scalars"}
    for name, numbers in history.items():
        folder = "validation" if name.startswith("val_") else "train"
        tag = f"epoch_{name.removeprefix('val_')}"
        logged = [values[folder, tag, epoch] for epoch in range(3)]
        np.testing.assert_allclose(logged, numbers, rtol=1e-6, err_msg=name)


@pytest.mark.tensorflow_only
def test_logs_are_those_of_keras(tmp_path):
    keras_logger = keras.callbacks.TensorBoard(tmp_path / "keras", write_graph=False)
    fit(keras_logger, EventLogger(tmp_path / "own"))
    assert events(tmp_path / "own") == events(tmp_path / "keras")


def test_resumed_training_adds_to_the_logs(tmp_path):
    for epoch in (0, 1):
        logger = EventLogger(tmp_path)
        logger.on_epoch_end(epoch, {"loss": epoch + 1.0})
        logger.on_train_end()
    assert events(tmp_path)[0] == {("train", "epoch_loss", 0): 1.0, ("train", "epoch_loss", 1): 2.0}
