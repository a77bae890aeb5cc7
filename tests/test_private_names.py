"""The private names of Keras and TensorFlow in use are those of the table in CONTRIBUTING.md."""

import ast
import functools
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import sys

import keras
import pytest

pytestmark = pytest.mark.tensorflow_only
ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_transformer"
PRIVATE = re.compile(r"_[a-z]\w*|__internal__")
PRIVATE_MODULE = re.compile(r"(keras\.src|tensorflow\.python|tensorflow_text\.python)\b[\w.]*")
# Documented in spite of the underscore: `NamedTuple`, `os`, `sys`, IPython,
# `tf.saved_model.experimental`.
DOCUMENTED = {"_replace", "_asdict", "_exit", "_repr_png_", "_create_resource", "_current_frames"}
# | `name` | `folder/file.py`, `folder/other.py` | why | [`test`](tests/folder/test_file.py) |
ROW = r"\| `([\w.]+)` \| (`[^|]+`) \| [^|]+ \| \[`(\w+)`\]\((tests/[\w/]+\.py)\) \|"

FILES = sorted(PACKAGE.rglob("*.py"))


def rows():
    """(name, files, test, file of the test) of each row of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return re.findall(ROW, text.partition("## Private names")[2])


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


def defined_names(tree):
    """Yields the names that a file defines: functions, classes, variables and own attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif is_own_store(node):
            yield node.attr


def is_own_store(node):
    """Whether the node is the target in `self.name = ...`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def used_names(tree):
    """Yields attributes, also those named in `getattr` and the like, and private modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own_store(node):
            yield {"src": "keras.src"}.get(node.attr, node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr"):
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))
        elif isinstance(node, ast.Constant) and PRIVATE_MODULE.fullmatch(str(node.value)):
            yield node.value
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def names_of_others():
    """Yields (name, file) of names that no file of the package defines, and private modules."""
    own = {name for path in FILES for name in defined_names(tree_of(path))} | DOCUMENTED
    for path in FILES:
        for name in used_names(tree_of(path)):
            is_private = PRIVATE.fullmatch(name) and name not in own
            if is_private or PRIVATE_MODULE.fullmatch(name):
                yield name, path


@functools.cache
def private_names(cls):
    """The private attributes that a class of Python reads, sets or defines."""
    if not hasattr(sys.modules[cls.__module__], "__file__"):
        return set()
    nodes = ast.walk(tree_of(pathlib.Path(sys.modules[cls.__module__].__file__)))
    tree = next((n for n in nodes if getattr(n, "name", None) == cls.__name__), ast.Pass())
    attributes = (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return set(filter(PRIVATE.fullmatch, [*attributes, *defined_names(tree)]))


def own_classes():
    """Yields the classes of the package."""
    unimportable = ["__main__"]
    if importlib.util.find_spec("torch") is None:  # the extra `dev` does not install it
        unimportable.append("_torch")
    for info in pkgutil.walk_packages([str(PACKAGE)], "keras_transformer."):
        if not info.name.endswith(tuple(unimportable)):
            module = importlib.import_module(info.name)
            for _, cls in inspect.getmembers(module, inspect.isclass):
                if cls.__module__ == info.name:
                    yield cls


def overridden_names():
    """Yields (name, file) of methods and attributes of our classes that a foreign base also has."""
    tensor = keras.Input((1,))
    functional = type(keras.Model(tensor, tensor)).__mro__
    functional += (importlib.import_module("keras.src.backend.jax.trainer").JAXTrainer,)
    for cls in own_classes():
        # Keras adds `Functional` to the bases of a model when the first one is made; and the
        # trainer of another backend takes the place of TensorFlow's. `KeptState` is a base of
        # models on JAX alone.
        is_model = issubclass(cls, keras.Model) or cls.__name__ == "KeptState"
        bases = cls.__mro__ + (functional if is_model else ())
        if issubclass(cls, keras.metrics.Metric):
            bases += keras.callbacks.EarlyStopping.__mro__  # which reads attributes of metrics
        own = [base for base in bases if base.__module__.startswith("keras_transformer")]
        foreign = set().union(*(private_names(base) for base in bases if base not in own))
        for base in own:
            path = pathlib.Path(sys.modules[base.__module__].__file__)
            yield from ((name, path) for name in (private_names(base) & foreign) - DOCUMENTED)


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def test_table_has_every_private_name_in_use():
    listed = {(name, file) for name, files, *_ in rows() for file in re.findall("`(.+?)`", files)}
    used = {(name, relative(path)) for name, path in [*names_of_others(), *overridden_names()]}
    missing = sorted(used - listed)
    assert not missing, (
        f"{missing}: private names of Keras and TensorFlow may change in any release. Where there "
        "is no public one, add a row to the table in CONTRIBUTING: | `name` | `layers/file.py` | "
        "why | [`test_that_fails_without_it`](tests/folder/test_file.py) |. If it is a name of "
        "yours that a base class of Keras also has, rename it."
    )
    assert not listed - used, "in the table, but not in use"


def test_tests_of_the_table_exist():
    for name, _, test, where in rows():
        names = {getattr(node, "name", None) for node in ast.walk(tree_of(ROOT / where))}
        assert test in names, f"{name}: {where} has no {test}"
