"""The callback that translates a sample."""

import keras
import numpy as np
import pytest

from keras_transformer import TranslationEvaluator
from tests.training.small_models import EAGER

PAIRS = [("a b c d", "a b c d"), ("e f g h", "E F G H"), ("i j k l", "I")]


@pytest.mark.parametrize("verbose, before", [(0, []), (1, [""]), (2, []), ("auto", [""])])
def test_evaluator_scores_and_prints_a_sample_every_second_epoch(verbose, before):
    """An empty line comes first only where Keras's progress bar has not ended its line."""
    lines = []
    evaluator = TranslationEvaluator(
        lambda sources: list(sources), PAIRS, epochs=2, samples=2, print_fn=lines.append
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **EAGER)
    x = np.zeros((2, 1))
    history = model.fit(x, x, epochs=2, verbose=verbose, callbacks=[evaluator]).history
    assert lines == [*before, "a b c d -> a b c d", "e f g h -> e f g h"]
    assert len(history["val_bleu"]) == len(history["val_chrf"]) == 1
    assert history["val_wer"] == [pytest.approx(200 / 3)]
    assert history["val_per"] == [pytest.approx(800 / 9)]  # 4 replaced and 4 inserted of 9
    assert 0 < history["val_bleu"][0] < 100


def test_source_with_two_references_is_one_line():
    pairs, logs = [*PAIRS, ("e f g h", "e f g h"), ("i j k l", "i j k l")], {}
    TranslationEvaluator(lambda sources: list(sources), pairs, samples=0).on_epoch_end(0, logs)
    assert logs["val_wer"] == logs["val_per"] == 0


def test_pairs_of_several_languages_are_translated_with_their_codes():
    """Of equal sources, each direction is a line with its own references."""
    calls, logs = [], {}

    def translate(lines, **languages):
        calls.append((lines, languages))
        return ["b", "c"]

    pairs, codes = [("a", "b"), ("a", "c"), ("a", "d")], [("en", "de"), ("en", "fr"), ("en", "de")]
    evaluator = TranslationEvaluator(translate, pairs, samples=0, languages=codes)
    evaluator.on_epoch_end(0, logs)
    languages = {"source_language": ["en", "en"], "target_language": ["de", "fr"]}
    assert calls == [(["a", "a"], languages)]
    assert logs["val_wer"] == logs["val_per"] == 0
    with pytest.raises(ValueError, match="codes of each pair. Received: 1 items, 3 pairs"):
        TranslationEvaluator(translate, pairs, languages=codes[:1])
