"""Callbacks for any `fit`."""

import pathlib

import keras
import numpy as np
import pytest

from keras_transformer import TranslationEvaluator
from keras_transformer.training.callbacks import BestModel, monitor_mode

PAIRS = [("a b c d", "a b c d"), ("e f g h", "E F G H"), ("i j k l", "I")]


@pytest.mark.parametrize(
    "name, mode",
    [("loss", "min"), ("val_loss", "min"), ("val_perplexity", "min")]
    + [("val_bleu", "max"), ("val_chrf", "max"), ("val_accuracy", "max")],
)
def test_monitor_mode(name, mode):
    assert monitor_mode(name) == mode


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("verbose, before", [(0, []), (1, [""]), (2, []), ("auto", [""])])
def test_evaluator_scores_and_prints_a_sample_every_second_epoch(verbose, before):
    """An empty line comes first only where Keras's progress bar has not ended its line."""
    lines = []
    evaluator = TranslationEvaluator(
        lambda sources: list(sources), PAIRS, epochs=2, samples=2, print_fn=lines.append
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((2, 1))
    history = model.fit(x, x, epochs=2, verbose=verbose, callbacks=[evaluator]).history
    assert lines == [*before, "a b c d -> a b c d", "e f g h -> e f g h"]
    assert len(history["val_bleu"]) == len(history["val_chrf"]) == 1
    assert 0 < history["val_bleu"][0] < 100


class Model:
    """Stands for a Keras model: writes its version, and can fail after half of the file."""

    def __init__(self):
        self.version, self.fails = 0, False

    def save(self, path):
        pathlib.Path(path).write_text(str(self.version))
        if self.fails:
            raise OSError("disk full")


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
        ("val_loss", [float("nan"), 5.0, float("nan")], None, [0, 1, 1]),
    ],
)
def test_best_model_is_written_after_each_better_epoch(tmp_path, monitor, values, best, versions):
    path = tmp_path / "model.keras"
    callback = best_model(path, monitor, best=best)
    found = []
    for epoch, value in enumerate(values):
        callback.model.version = epoch
        callback.on_epoch_end(epoch, {} if value is None else {monitor: value})
        found.append(int(path.read_text()) if path.is_file() else None)
    assert found == versions


@pytest.mark.parametrize("before", [None, "the model before"])
def test_best_model_is_written_atomically(tmp_path, before):
    path = tmp_path / "model.keras"
    if before:
        path.write_text(before)
    callback = best_model(path)
    callback.model.fails = True
    with pytest.raises(OSError, match="disk full"):
        callback.on_epoch_end(0, {"val_loss": 1.0})
    assert (path.read_text() if path.is_file() else None) == before
