"""The backend of a command: the one that the user chose, else the one that is installed."""

import os
import subprocess
import sys

import pytest

from keras_transformer.cli import backend
from keras_transformer.lazy_names import is_installed
from tests.processes import run

ALL = ("tensorflow", "jax", "torch")


@pytest.mark.parametrize(
    "variable, file, installed, expected",
    [
        (None, None, ALL, "tensorflow"),
        (None, None, ("jax", "torch"), "jax"),
        (None, None, ("torch",), "torch"),
        (None, None, (), "tensorflow"),  # its absence is an error, which says what to install
        ("torch", '{"backend": "jax"}', ALL, "torch"),
        ("jax", None, (), "jax"),
        ("", '{"backend": "torch"}', ALL, "torch"),
        (None, '{"backend": "jax"}', ALL, "jax"),
        # Keras writes this file itself.
        (None, '{"backend": "tensorflow"}', ("torch",), "torch"),
        (None, '{"floatx": "float32"}', ("jax",), "jax"),
        *((None, damaged, ALL, "tensorflow") for damaged in ("{", "[]", '{"backend": 3}')),
    ],
)
def test_backend_is_chosen_by_variable_file_and_what_is_installed(
    variable, file, installed, expected, tmp_path, monkeypatch
):
    monkeypatch.delenv("KERAS_BACKEND")
    if variable is not None:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if file is not None:
        (tmp_path / "keras.json").write_text(file, "utf-8")
    monkeypatch.setattr(backend, "is_installed", installed.__contains__)
    assert backend.backend_name() == expected


def test_backend_is_chosen_without_a_home(monkeypatch):
    for name in ("KERAS_BACKEND", "KERAS_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # no entry
    monkeypatch.setattr(backend, "is_installed", {"jax"}.__contains__)
    assert backend.backend_name() == "jax"


def test_empty_folder_of_a_package_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "half_removed").mkdir()
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert [*map(is_installed, ("half_removed", "whole", "missing"))] == [False, True, False]


# A finder that notes who looks for TensorFlow.
ANOTHER_BACKEND = """
import importlib.machinery, sys
asked = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text"):
            asked.append(name)
sys.meta_path.insert(0, Finder())
from keras_transformer.cli.backend import import_backend
import_backend()
import keras
keras.utils.set_random_seed(1)  # Keras would import TensorFlow here
keras.Sequential([keras.layers.Dense(1)]).save("model.keras")  # and here
print(keras.config.backend(), asked, bool(sys.modules.get("tensorflow")))
"""


@pytest.mark.backends("jax", "torch")
def test_on_another_backend_nothing_imports_tensorflow(tmp_path):
    command = [sys.executable, "-c", ANOTHER_BACKEND]
    ran = run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.split()[1:] == ["[]", "False"], ran.stderr
    assert ran.stdout.split()[0] == os.environ["KERAS_BACKEND"]


UNUSED = """
import sys
from keras_transformer.cli.backend import UNUSED, import_backend
import_backend()
import keras
for name in UNUSED:
    if name != keras.config.backend():
        assert name not in sys.modules
        try:
            __import__(name)
        except KeyboardInterrupt:  # of the module itself
            print(name)
"""


@pytest.mark.slow
def test_backend_imports_nothing_that_no_command_uses(tmp_path):
    """Afterwards a command finds them, such as `plot`."""
    expected = [name for name in backend.UNUSED if name != os.environ["KERAS_BACKEND"]]
    for name in expected:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise KeyboardInterrupt", "utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", UNUSED]
    environment = os.environ | {"PYTHONPATH": path}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.stdout.split() == expected, ran.stderr
