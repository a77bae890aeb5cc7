"""The SavedModel answers like the translator, in a process without this package."""

import json
import math
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator, atomic_file, export_saved_model
from keras_transformer.decoding.batches import LONGEST_ROW
from tests.decoding.test_translator import LINES, make_translator

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

TEXT, NUMBERS, LENGTHS = ([name, [None]] for name in ("string", "float32", "int32"))
IDS = ["int32", [None, None]]
INPUTS = {
    "serving_default": {"text": TEXT},
    "score": {"source": TEXT, "target": TEXT},
    "tokenize": {"text": TEXT},
    "detokenize": {"token_ids": IDS},
}
OUTPUTS = {
    "serving_default": {"translation": TEXT, "score": NUMBERS, "truncated": ["bool", [None]]},
    "score": {"log_prob": NUMBERS, "tokens": LENGTHS, "perplexity": NUMBERS},
    "tokenize": {"token_ids": IDS, "lengths": LENGTHS},
    "detokenize": {"text": TEXT},
}
LONGEST = 40  # maximum tokens of a line that is not split; `LINES` have fewer
SERVE = """
import json, sys
sys.modules["keras_transformer"] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1])
signatures = served.signatures

def specs(all):
    return {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in all.items()}

def plain(answer):
    return {name: [v.decode() if isinstance(v, bytes) else v for v in value.numpy().tolist()]
            for name, value in answer.items()}

def strings(lines):
    return tf.constant(lines, tf.string)

batches, sources, targets = json.loads(sys.stdin.read())
tokens = signatures["tokenize"](text=strings(targets))
print(json.dumps({
    "inputs": {name: specs(one.structured_input_signature[1]) for name, one in signatures.items()},
    "outputs": {name: specs(one.structured_outputs) for name, one in signatures.items()},
    "answers": [plain(signatures["serving_default"](text=strings(lines))) for lines in batches],
    "serve": plain(served.serve(strings(batches[0]))),
    "scores": plain(signatures["score"](source=strings(sources), target=strings(targets))),
    "tokens": plain(tokens),
    "texts": plain(signatures["detokenize"](token_ids=tokens["token_ids"])),
}))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    parent = tmp_path_factory.mktemp("export")
    made = make_translator(parent / "tokenizer.model", normalize_first=True)
    translator = Translator(
        made.model, made.source_tokenizer, extra_length=6, max_source_tokens=LONGEST
    )
    path = export_saved_model(translator, parent / "served")
    # The SavedModel must not need the tokenizer's file, nor its own path.
    (parent / "tokenizer.model").unlink()
    path = path.rename(parent / "elsewhere")
    return translator, path


def test_saved_model_answers_like_the_translator_in_a_process_without_this_package(exported):
    translator, path = exported
    long = ["one", "seven hundred and one. " * 40, "", "two"]
    batches = [LINES, ["one"], [], long]
    sources, targets = ["one", "", "Ωμέγα 😀"], ["eins", "two", "seven  hundred"]
    command = [sys.executable, "-P", "-c", SERVE, str(path)]
    request = json.dumps([batches, sources, targets])
    ran = subprocess.run(command, input=request, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    served = json.loads(ran.stdout)
    assert served["inputs"] == INPUTS and served["outputs"] == OUTPUTS
    for lines, answer in zip(batches, served["answers"], strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a line is split
            expected = translator(lines, n_best=1)
        assert answer["translation"] == [best.text for (best, *_) in expected]
        scores = [best.score for (best, *_) in expected]
        np.testing.assert_allclose(answer["score"], scores, rtol=1e-4)
        assert answer["truncated"] == [False] * len(lines)
    assert served["serve"] == served["answers"][0]
    expected = translator.score(sources, targets)
    totals = [sum(one.log_probs) for one in expected]
    np.testing.assert_allclose(served["scores"]["log_prob"], totals, rtol=1e-5)
    assert served["scores"]["tokens"] == [len(one.tokens) for one in expected]
    perplexities = [math.exp(-np.mean(one.log_probs)) for one in expected]
    np.testing.assert_allclose(served["scores"]["perplexity"], perplexities, rtol=1e-5)
    token_ids = translator.source_tokenizer.tokenize(targets)
    assert served["tokens"]["token_ids"] == token_ids.to_tensor(0).numpy().tolist()
    assert served["tokens"]["lengths"] == token_ids.row_lengths().numpy().tolist()
    assert served["texts"]["text"] == ["eins", "two", "seven hundred"]


def test_what_is_cut_off_is_flagged_and_what_cannot_be_scored_is_nan(exported, tmp_path):
    made, _ = exported
    translator = Translator(
        made.model, made.source_tokenizer, beam_size=1, max_source_tokens=5, on_too_long="truncate"
    )
    served = tf.saved_model.load(export_saved_model(translator, tmp_path / "served"))
    answer = served.serve(tf.constant(["one", "seven hundred and one", ""]))
    assert answer["truncated"].numpy().tolist() == [False, True, False]
    lines = tf.constant(["one", "one " * LONGEST_ROW])
    scored = served.signatures["score"](source=lines, target=tf.constant(["two", "two"]))
    assert np.isnan(scored["log_prob"]).tolist() == [False, True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of lines"):
        served.signatures["score"](source=lines, target=lines[:1])


def test_saved_model_holds_each_weight_once_and_no_python(exported):
    translator, path = exported
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    stored = sum(tf.TensorShape(shape).num_elements() for name, shape in shapes.items()
                 if "OBJECT_GRAPH" not in name)  # fmt: skip
    # Only the weights, and perhaps a save counter.
    assert 0 <= stored - translator.model.count_params() <= 1
    graph = tf.saved_model.load(str(path)).signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert not {node.op for node in nodes} & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}


def greedy(exported):
    """A translator that is exported in less time."""
    made, _ = exported
    return Translator(made.model, made.source_tokenizer, beam_size=1)


def test_frozen_search_gives_the_same(exported, tmp_path):
    translator, path = exported
    frozen = export_saved_model(translator, tmp_path / "served", frozen=True)
    graph = (frozen / "saved_model.pb").stat().st_size
    # The weights of encoder and decoder in float32, about; the graph of scores has none of them.
    assert graph > (path / "saved_model.pb").stat().st_size + 2 * translator.model.count_params()
    # Kept, because a function does not keep the variables of what was loaded with it.
    loaded = [tf.saved_model.load(each) for each in (frozen, path)]
    answer, expected = (served.serve(tf.constant(LINES)) for served in loaded)
    assert answer["translation"].numpy().tolist() == expected["translation"].numpy().tolist()
    np.testing.assert_allclose(answer["score"], expected["score"], rtol=1e-5)


def test_export_replaces_a_saved_model_but_nothing_else(exported, tmp_path):
    _, path = exported
    shutil.copytree(path, tmp_path / "served")
    (tmp_path / "latest").symlink_to("served")
    old = (tmp_path / "served").stat().st_ino
    assert export_saved_model(greedy(exported), tmp_path / "latest") == tmp_path / "latest"
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "served").stat().st_ino != old
    assert not (tmp_path / "served").is_symlink()
    assert tf.saved_model.contains_saved_model(str(tmp_path / "served"))
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {"served", "latest"}, "temporary files are left"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    with pytest.raises(FileExistsError, match="precious.*not a SavedModel"):
        export_saved_model(greedy(exported), tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "kept"


def test_input_that_is_not_a_vector_raises_one_clear_error(exported):
    _, path = exported
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    for wrong, shape in (("one", r"\[\]"), ([["one", "two"]], r"\[1 2\]")):
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            served(text=tf.constant(wrong))
        refused.match(rf"`text` must be a vector of strings.*Received: .*shape\] {shape}")
    assert served(text=tf.constant(["one"]))["translation"].shape == [1]


def test_old_model_is_restored_if_the_new_one_cannot_be_moved(exported, tmp_path, monkeypatch):
    translator = greedy(exported)
    path = tmp_path / "served"
    path.mkdir()
    (path / "saved_model.pb").write_text("old")  # makes it a SavedModel
    rename, moves = os.rename, []

    def rename_once(source, target):
        moves.append(target)
        if len(moves) == 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_once)
    monkeypatch.setattr(atomic_file, "_exchange", lambda one, other: False)
    with pytest.raises(OSError, match="Input/output error"):
        export_saved_model(translator, path)
    assert len(moves) == 3
    assert (path / "saved_model.pb").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["served"]
