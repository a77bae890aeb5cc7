"""Callbacks for any `fit`."""

import pathlib
import sys
import types

import keras
import numpy as np
import pytest

from keras_transformer import TranslationEvaluator
from keras_transformer.training.callbacks import BestModel

PAIRS = [("a b c d", "a b c d"), ("e f g h", "E F G H"), ("i j k l", "I")]


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


class WithAttention:
    """Stands for a `Translator`: repeats the line; its attention is a diagonal."""

    def __call__(self, lines, *, return_attention=False, **settings):
        if not return_attention:
            return list(lines)
        scores = types.SimpleNamespace(encoder_decoder=np.eye(4)[None, None])
        tokens = lines.split()
        return [types.SimpleNamespace(tokens=tokens, source_tokens=tokens, attention=scores)]


def tensorboard(folder):
    """Text and PNG by (tag, step), as TensorBoard reads them."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    values = {
        (tag, event.step): tensor_util.make_ndarray(event.tensor_proto)
        for tag in events.Reload().Tags()["tensors"]
        for event in events.Tensors(tag)
    }
    return {key: value.ravel().tolist() for key, value in values.items()}


@pytest.mark.tensorflow_only
def test_tensorboard_gets_the_samples_as_a_table_and_the_attention(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `viz`")
    pairs = [("a b c d", "a b c d"), ("e | *f*", "<E>")]
    evaluator = TranslationEvaluator(
        WithAttention(), pairs, samples=2, print_fn=str, log_dir=tmp_path
    )
    for epoch in (0, 1):
        evaluator.on_epoch_end(epoch, {})
    found = tensorboard(tmp_path / "translations")
    assert set(found) == {(tag, step) for tag in ("translations", "attention") for step in (0, 1)}
    (text,) = found["translations", 1]
    assert text.decode().splitlines() == [
        "| source | translation | reference |",
        "| --- | --- | --- |",
        "| a b c d | a b c d | a b c d |",
        r"| e \| \*f\* | e \| \*f\* | \<E\> |",
    ]
    width, height, png = found["attention", 1]
    assert png.startswith(b"\x89PNG") and int(width) > 100 and int(height) > 100


@pytest.mark.tensorflow_only
def test_without_matplotlib_one_line_says_that_there_are_no_images(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    lines = []
    evaluator = TranslationEvaluator(
        WithAttention(), PAIRS, samples=0, print_fn=lines.append, log_dir=tmp_path
    )
    for epoch in (0, 1):
        evaluator.on_epoch_end(epoch, {})
    (line,) = lines
    assert "no attention images" in line and "pip install 'matplotlib" in line
    assert {tag for tag, _ in tensorboard(tmp_path / "translations")} == {"translations"}


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
        ("val_loss", [float("nan"), 5.0, float("nan")], None, [None, 1, 1]),
        ("val_bleu", [float("inf"), 5.0, 6.0], None, [None, 1, 2]),
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
