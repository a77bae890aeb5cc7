"""The SavedModel answers like the translator, in a process without this package."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from keras_transformer import Translator, atomic_file, export_saved_model
from tests.decoding.test_translator import LINES, make_translator

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

LONGEST = 40  # maximum tokens of a line that is not split; `LINES` have fewer
SERVE = """
import json, sys
sys.modules["keras_transformer"] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1])
signature = served.signatures["serving_default"]
batches = json.loads(sys.stdin.read())
answers = [signature(text=tf.constant(lines, tf.string)) for lines in batches]
print(json.dumps({
    "inputs": {name: [spec.dtype.name, spec.shape.as_list()]
               for name, spec in signature.structured_input_signature[1].items()},
    "outputs": {name: [spec.dtype.name, spec.shape.as_list()]
                for name, spec in signature.structured_outputs.items()},
    "answers": [[line.decode() for line in answer["translation"].numpy()] for answer in answers],
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
    command = [sys.executable, "-P", "-c", SERVE, str(path)]
    ran = subprocess.run(command, input=json.dumps(batches), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    served = json.loads(ran.stdout)
    assert served["inputs"] == {"text": ["string", [None]]}
    assert served["outputs"] == {"translation": ["string", [None]]}
    with pytest.warns(UserWarning, match="line 2 in"):
        split = translator(long)
    assert served["answers"] == [*(translator(lines) for lines in batches[:3]), split]


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


def test_export_replaces_a_saved_model_but_nothing_else(exported, tmp_path):
    translator, _ = exported
    for _ in range(2):
        path = export_saved_model(translator, tmp_path / "served")
    assert tf.saved_model.contains_saved_model(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["served"], "temporary files are left"
    (tmp_path / "latest").symlink_to("served")
    old = (tmp_path / "served").stat().st_ino
    assert export_saved_model(translator, tmp_path / "latest") == tmp_path / "latest"
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "served").stat().st_ino != old
    assert not (tmp_path / "served").is_symlink()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    with pytest.raises(FileExistsError, match="precious.*not a SavedModel"):
        export_saved_model(translator, tmp_path / "precious")
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
    translator, _ = exported
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
