"""The callback that translates a sample."""

import sys
import types

import keras
import numpy as np
import pytest

from keras_transformer import TranslationEvaluator

PAIRS = [("a b c d", "a b c d"), ("e f g h", "E F G H"), ("i j k l", "I")]


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
    assert history["val_wer"] == [pytest.approx(200 / 3)]
    assert history["val_per"] == [pytest.approx(800 / 9)]  # 4 replaced and 4 inserted of 9
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
