"""Callbacks for any `fit`."""

import zipfile

import keras
import numpy as np
import pytest

from keras_transformer.training.callbacks import AveragedWeights, BestModel
from tests.training.small_models import EAGER


class Model:
    """Stands for a Keras model: writes its version, and can fail after half of the file."""

    def __init__(self):
        self.version, self.fails = 0, False

    def save(self, folder, zipped):
        assert not zipped
        (folder / "version").write_text(str(self.version))
        if self.fails:
            raise OSError("disk full")


def version_in(path):
    with zipfile.ZipFile(path) as archive:
        return int(archive.read("version"))


def best_model(path, monitor="val_loss", **arguments):
    callback = BestModel(path, monitor, **arguments)
    callback.set_model(Model())
    return callback


@pytest.mark.parametrize(
    "monitor, values, best, versions",
    [
        ("val_loss", [3.0, 2.0, 2.0, 4.0, 1.0], None, [0, 1, 1, 1, 4]),
        ("val_bleu", [3.0, 2.0, 4.0], None, [0, 0, 2]),
        ("val_loss", [3.0, 1.0], 2.0, [None, 1]),
        ("val_loss", [None, 5.0], None, [None, 1]),
    ],
)
def test_best_model_is_written_after_each_better_epoch(tmp_path, monitor, values, best, versions):
    path = tmp_path / "model.keras"
    callback = best_model(path, monitor, best=best)
    found = []
    for epoch, value in enumerate(values):
        callback.model.version = epoch
        callback.on_epoch_end(epoch, {} if value is None else {monitor: value})
        found.append(version_in(path) if path.is_file() else None)
    assert found == versions


def test_best_model_is_written_atomically(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("the model before")
    callback = best_model(path)
    callback.model.fails = True
    with pytest.raises(OSError, match="disk full"):
        callback.on_epoch_end(0, {"val_loss": 1.0})
    assert path.read_text() == "the model before"


def test_averages_of_a_plain_fit_are_those_of_keras():
    """Seen by validation, and not by the epochs that follow."""

    def seen(callback):
        weights = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), weights])
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer, "mse", **EAGER)
        x = np.ones((4, 1))
        fitted = model.fit(
            *(x, 3 * x), epochs=3, batch_size=1, verbose=0, validation_data=(x, 3 * x),
            callbacks=[callback],
        )  # fmt: skip
        return fitted.history

    expected = seen(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    averaged = AveragedWeights()
    for _ in range(2):  # the second `fit` with it trains another model
        found = seen(averaged)
        for name in ("loss", "val_loss"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
