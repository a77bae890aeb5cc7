"""Every `>>>` in a docstring runs, and every public class has one."""

import doctest
import importlib
import inspect
import pathlib

import numpy as np
import pytest

import keras_transformer

pytestmark = pytest.mark.tensorflow_only

ROOT = pathlib.Path(keras_transformer.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "keras_transformer").rglob("*.py")
    if path.stem != "__init__" and ">>> " in path.read_text("utf-8")
)


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {"np": np, "keras_transformer": keras_transformer}
    assert doctest.testmod(module, extraglobs=names).failed == 0


def test_public_classes_and_names_of_layers_have_an_example():
    layers = keras_transformer.layers
    classes = [name for name in keras_transformer.__all__ if name[0].isupper()]
    public = [getattr(keras_transformer, name) for name in classes]
    public += [getattr(layers, name) for name in layers.__all__]
    assert not [value for value in public if ">>> " not in (inspect.getdoc(value) or "")]
