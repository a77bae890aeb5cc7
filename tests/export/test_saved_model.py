"""The SavedModel answers like the translator, in a process without this package."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

from keras_transformer import export_saved_model
from tests.decoding.test_translator import LINES, make_translator

pytestmark = pytest.mark.tensorflow_only

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
    folder = tmp_path_factory.mktemp("export")
    translator = make_translator(folder / "tokenizer.model", normalize_first=True)
    path = export_saved_model(translator, folder / "served")
    # The graph must hold everything itself.
    (folder / "tokenizer.model").unlink()
    path = path.rename(folder / "elsewhere")
    return translator, path


def test_saved_model_answers_like_the_translator_in_a_process_without_this_package(exported):
    translator, path = exported
    batches = [LINES, ["one"], []]
    command = [sys.executable, "-P", "-c", SERVE, str(path)]
    ran = subprocess.run(command, input=json.dumps(batches), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    served = json.loads(ran.stdout)
    assert served["inputs"] == {"text": ["string", [None]]}
    assert served["outputs"] == {"translation": ["string", [None]]}
    assert served["answers"] == [translator(lines) for lines in batches]


def test_saved_model_holds_each_weight_once_and_no_python(exported):
    translator, path = exported
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    stored = sum(tf.TensorShape(shape).num_elements() for name, shape in shapes.items()
                 if "OBJECT_GRAPH" not in name)  # fmt: skip
    # Keras keeps no more than the weights; a save counter is all that may come beside them.
    assert 0 <= stored - translator.model.count_params() <= 1
    graph = tf.saved_model.load(str(path)).signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert not {node.op for node in nodes} & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}


def test_export_replaces_a_saved_model_but_nothing_else(exported, tmp_path):
    translator, _ = exported
    for _ in range(2):
        path = export_saved_model(translator, tmp_path / "served")
    assert tf.saved_model.contains_saved_model(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["served"], "nothing half-written stays"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    with pytest.raises(FileExistsError, match="precious.*not a SavedModel"):
        export_saved_model(translator, tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "kept"
