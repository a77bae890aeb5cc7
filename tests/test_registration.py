"""Keras loads files with the package's classes, whichever of the two is imported first."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, paper_optimizer
from keras_transformer.layers import EncoderBlock, PositionalEmbedding
from keras_transformer.models import TransformerConfig
from tests.builders import ROOT, randomize, to_numpy
from tests.processes import run

TOKEN_IDS = np.array([[3, 1, 2]])
KERAS_FIRST = "import keras, keras_transformer"
# As without Keras; then it is installed.
KERAS_LATER = """
import sys
sys.modules["keras"] = None
import keras_transformer
try:
    import keras
except ImportError:
    del sys.modules["keras"]
import keras
"""
# One thread imports Keras while the other one imports our modules, which import Keras.
TWO_THREADS = """
import importlib, threading
start = threading.Barrier(2)
def load(name):
    start.wait()
    importlib.import_module(name)
names = "keras", "keras_transformer.layers.positional_encoding"
threads = [threading.Thread(target=load, args=[name]) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import keras
"""
LOAD = """
import sys
import numpy as np
assert "keras_transformer.models.transformer" not in sys.modules, "imported on first use"
names = [name for name in keras.saving.get_custom_objects() if "keras_transformer>" in name]
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[2], keras.ops.convert_to_numpy(model(np.array([[3, 1, 2]]))))
import keras_transformer
layer = type(model.layers[1])
assert keras.saving.get_registered_object("keras_transformer>PositionalEmbedding") is layer
assert layer is keras_transformer.layers.PositionalEmbedding
assert model.optimizer.beta_2 == 0.98
left = [finder for finder in sys.meta_path if type(finder).__module__.startswith("keras_transf")]
print(len(left), *sorted(names))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a compiled model with layers of the package, and the model."""
    inputs = keras.Input((None,), dtype="int32")
    hidden = PositionalEmbedding(10, 8)(inputs)
    outputs = keras.layers.Dense(10)(EncoderBlock(num_heads=2, intermediate_dim=8)(hidden))
    model = randomize(keras.Model(inputs, outputs))
    config = TransformerConfig.tiny(10)
    model.compile(paper_optimizer(config), SmoothedCrossEntropy(), metrics=[TokenAccuracy()])
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path, model


def registered_in_the_source():
    decorated = r'^@keras.saving.register_keras_serializable\(package="(.+)"\)\nclass (\w+)'
    files = (ROOT / "keras_transformer").rglob("*.py")
    pairs = [re.findall(decorated, path.read_text("utf-8"), re.MULTILINE) for path in files]
    return sorted(">".join(pair) for found in pairs for pair in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "start"),
    [
        (KERAS_FIRST, run),  # a process in which Keras is imported already
        pytest.param(KERAS_LATER, subprocess.run, marks=pytest.mark.long),
        pytest.param(TWO_THREADS, subprocess.run, marks=pytest.mark.long),
    ],
    ids=["Keras first", "Keras later", "two threads"],
)
def test_keras_loads_a_file_with_our_layers_in_a_new_process(saved, tmp_path, imports, start):
    path, model = saved
    command = [sys.executable, "-c", imports + LOAD, str(path), str(tmp_path / "outputs.npy")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = start(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["0", *registered_in_the_source()]
    outputs = np.load(tmp_path / "outputs.npy")
    np.testing.assert_allclose(outputs, to_numpy(model(TOKEN_IDS)), rtol=1e-5, atol=1e-6)


@pytest.mark.tensorflow_only  # the same on each backend
def test_import_of_the_package_alone_imports_no_keras():
    code = "import sys, keras_transformer; print(sys.modules.keys() & {'keras', 'tensorflow'})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT) == "set()\n"
