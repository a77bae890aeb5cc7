"""A translator above a SavedModel answers as the `Translator` that was exported.

What a translator does with text, on this engine too: `tests/test_one_path.py`.
"""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import Translator, load_translator
from keras_transformer.decoding import CTranslate2Engine, SavedModelEngine
from keras_transformer.decoding.saved_model import OTHER_REWRITES, use_one_rewrite
from tests.decoding.test_translator import LINES
from tests.export.test_saved_model import exported  # noqa: F401

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

FRESH = """
import json, sys
from keras_transformer import decoding, load_translator
engine = decoding.SavedModelEngine
assert "tensorflow" not in sys.modules, "before a folder is loaded"
folder, lines, options = json.load(sys.stdin)
found = load_translator(folder)(lines, **options)
# tensorflow_text imports Keras by itself, so look at our modules that need it.
ours = {name.removeprefix("keras_transformer.") for name in sys.modules}
assert not ours & {"layers", "models", "training", "decoding.loop", "decoding.search", "export"}
print(json.dumps([[(one.text, one.log_probs) for one in line] for line in found]))
"""


@pytest.mark.long
def test_rewrites_that_the_command_line_leaves_out_change_no_bit(exported):  # noqa: F811
    import tensorflow as tf

    translator = load_translator(exported[1])
    ids = translator.request(LINES).columns[0]

    def answers():
        rows = translator(LINES, n_best=4)
        whole = [[(h.text, h.score, h.log_prob, h.log_probs) for h in row] for row in rows]
        return whole, [translator.engine.score(row[None], row[None]).tolist() for row in ids]

    expected = answers()
    use_one_rewrite()  # until the end of the test, see `same_rewrites`
    assert answers() == expected
    used = tf.config.optimizer.get_experimental_options()
    assert [used[name] for name in OTHER_REWRITES] == [False] * len(OTHER_REWRITES)


@pytest.mark.long
def test_answers_are_those_of_translator(exported):  # noqa: F811
    translator, folder = exported
    options = {"n_best": 4, "target_prefix": ["", "ein", *["zwei"] * 6]}
    request = json.dumps([str(folder), LINES, options])
    command = [sys.executable, "-W", "ignore", "-c", FRESH]
    ran = subprocess.run(command, input=request, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for ours, theirs in zip(translator(LINES, **options), json.loads(ran.stdout), strict=True):
        for one, (text, log_probs) in zip(ours, theirs, strict=True):
            assert text == one.text
            np.testing.assert_allclose(log_probs, one.log_probs, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def engine(exported):  # noqa: F811
    return SavedModelEngine(exported[1])


def test_what_is_in_the_graph_cannot_differ(engine):
    translator = Translator(engine)
    for changes in ({"beam_size": 3}, {"length_penalty": "mean"}, {"suppressed_tokens": [3]}):
        (name,) = changes
        with pytest.raises(ValueError, match=f"`{name}` must be .* in a SavedModel. Received: "):
            translator("one", **changes)


def test_search_tree_begins_with_the_best_translation(exported, engine):  # noqa: F811
    translator, _ = exported
    tokenizer = translator.source_tokenizer
    ids = np.array([tokenizer.encode("two", add_end=True)])
    (tree,) = engine.search_tree(ids, translator.settings)
    (best,) = translator("two", n_best=1)
    first = tree.token_ids[0][tree.is_winner[0]]
    assert [tokenizer.vocabulary[token] for token in first] == best.tokens[:1]


@pytest.mark.parametrize("kind", [SavedModelEngine, CTranslate2Engine])
@pytest.mark.parametrize("workers", [0, "2"])
def test_workers_that_are_no_number_of_batches_are_refused(kind, workers, tmp_path):
    with pytest.raises(ValueError, match="`workers` must be a positive integer. Received: "):
        kind(tmp_path, workers=workers)


def test_numbers_that_are_not_finite_are_the_error_of_translator(engine):
    weights = [weight for weight in engine._loaded.weights if "encoder" in weight.name]
    before = [weight.numpy() for weight in weights]
    for weight in weights:
        weight.assign(weight * np.nan)
    with pytest.raises(ValueError, match="logits must not be NaN"):
        Translator(engine)("one")
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)


def test_folder_of_an_earlier_version_is_refused_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold a model for TensorFlow"):
        SavedModelEngine(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "model_card.json").write_text('{"engine": "saved_model"}')
    with pytest.raises(ValueError, match=r"format 1. Export it again$") as refused:
        load_translator(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_engine_of_a_relative_path_is_pickled_anywhere(exported, monkeypatch, tmp_path):  # noqa: F811
    _, folder = exported
    monkeypatch.chdir(folder.parent)
    engine = SavedModelEngine(folder.name)
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(pickle.dumps(engine)).card == engine.card
