"""Every `>>>` in a docstring runs, and every public name has one."""

import doctest
import importlib
import inspect
import pathlib

import numpy as np
import pytest

import keras_transformer

ROOT = pathlib.Path(keras_transformer.__file__).parents[1]
MODULES = sorted(
    ".".join(p.relative_to(ROOT).with_suffix("").parts)
    for p in (ROOT / "keras_transformer").rglob("*.py")
    if p.stem != "__init__"
)
TENSORFLOW_ONLY = ("data", "decoding", "export", "training")


def marked(names, module_of=lambda name: name):
    return [
        pytest.param(name, marks=[pytest.mark.tensorflow_only] * needs_tensorflow(module_of(name)))
        for name in names
    ]


def needs_tensorflow(module):
    return module.removeprefix("keras_transformer.").startswith(TENSORFLOW_ONLY)


@pytest.mark.parametrize("name", marked(MODULES))
def test_examples_of_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {"np": np, "keras_transformer": keras_transformer}
    assert doctest.testmod(module, extraglobs=names).failed == 0


CLASSES = {name: module for name, module in keras_transformer._MODULES.items() if name[0].isupper()}


@pytest.mark.parametrize("name", marked(CLASSES, CLASSES.get))
def test_public_class_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(keras_transformer, name))


@pytest.mark.parametrize("name", keras_transformer.layers.__all__)
def test_public_name_of_layers_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(keras_transformer.layers, name))
