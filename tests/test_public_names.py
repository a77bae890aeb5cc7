"""Public names are exported and fully annotated."""

import importlib
import inspect
import pathlib

import pytest

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
FOLDERS = ["", *sorted(f".{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))]
OWN_METHODS = ("__init__", "__call__")

pytestmark = pytest.mark.tensorflow_only


def public_objects():
    """Returns {full name: class or function} of all exported names and all commands."""
    objects = {}
    for folder in FOLDERS:
        module = importlib.import_module(f"keras_transformer{folder}")
        for name in getattr(module, "__all__", ()):
            objects[f"{module.__name__}.{name}"] = getattr(module, name)
    from keras_transformer.cli import app

    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            objects[f"command {command.callback.__name__}"] = command.callback
    return {name: value for name, value in objects.items() if not inspect.ismodule(value)}


@pytest.mark.parametrize(
    ("name", "constructor"), [("WordTokenizer", "words"), ("MarianTokenizer", "from_marian")]
)
def test_name_that_has_gone_says_what_takes_its_place(name, constructor):
    for module in (keras_transformer, keras_transformer.data):
        with pytest.raises(ImportError, match=f"^`{name}` has gone: use `Tokenizer.{constructor}`"):
            getattr(module, name)


def methods_of(cls):
    """Yields the public methods and properties of a class that this package defines."""
    for owner in cls.__mro__:
        if not owner.__module__.startswith("keras_transformer"):
            continue
        for name, member in vars(owner).items():
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if not getattr(member, "__module__", owner.__module__).startswith("keras_transformer"):
                continue  # the constructor of a `Protocol`, and wrapped methods of Keras
            if inspect.isfunction(member) and (name in OWN_METHODS or not name.startswith("_")):
                yield f"{owner.__name__}.{name}", member


def missing_annotations(function):
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls") and parameter.annotation is parameter.empty:
            yield parameter.name
    if signature.return_annotation is signature.empty:
        yield "return"


def test_every_public_callable_is_annotated():
    missing, objects = [], public_objects()
    assert len(objects) > 60
    for full_name, value in objects.items():
        functions = methods_of(value) if inspect.isclass(value) else [(full_name, value)]
        for name, function in functions:
            if callable(function) and (names := list(missing_annotations(function))):
                missing.append(f"{name} in {inspect.getmodule(function).__name__}: {names}")
    assert not missing, "\n".join(sorted(set(missing)))
