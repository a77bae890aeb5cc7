"""Chooses and imports the backend that a command runs on."""

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from keras_transformer.lazy_names import is_installed

BACKENDS = ("tensorflow", "jax", "torch")  # the first that is installed is the default
SAVED_MODEL = ("tensorflow", "tensorflow_text")  # what a SavedModel needs
# TensorFlow and Keras import these if installed, which takes seconds. No command needs them.
UNUSED = ("jax", "matplotlib", "pandas")


def import_backend() -> None:
    """Imports Keras with the backend of `backend_name`.

    With another backend than TensorFlow, nothing can import TensorFlow from then on.
    """
    name = backend_name()
    if name not in BACKENDS:
        must = f"`KERAS_BACKEND`, or `backend` in keras.json, must be one of {', '.join(BACKENDS)}."
        raise ValueError(f"{must} Received: {name}")
    os.environ["KERAS_BACKEND"] = name
    if name != "tensorflow":
        # Keras would import TensorFlow to set seeds and to save a model. `None` prevents that.
        modules: dict[str, Any] = sys.modules
        modules.setdefault("tensorflow", None)
    import_quietly("keras")


def backend_name() -> str:
    """Returns `KERAS_BACKEND`, else the backend of `keras.json`, else the first in `BACKENDS`.

    A backend in `keras.json` that is not installed is ignored: Keras writes that file itself, with
    TensorFlow in it. If no backend is installed, returns `"tensorflow"`.
    """
    if name := os.environ.get("KERAS_BACKEND"):
        return name
    names = list(BACKENDS)
    # A `RuntimeError`: there is no home.
    with contextlib.suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):
        home = Path(os.environ.get("KERAS_HOME") or Path("~/.keras").expanduser())
        names.insert(0, json.loads((home / "keras.json").read_text("utf-8"))["backend"])
    return next(filter(is_installed, names), "tensorflow")


def import_quietly(*modules: str) -> None:
    """Imports modules with `UNUSED` hidden, and without TensorFlow's logs on standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        with _hidden(name for name in UNUSED if name != os.environ.get("KERAS_BACKEND")):
            for name in modules:
                importlib.import_module(name)
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextlib.contextmanager
def _hidden(names):
    """Hides modules that are not imported yet, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def require_tensorflow() -> None:
    """Raises an `ImportError` unless `SAVED_MODEL` is installed; does not import it."""
    if not all(map(is_installed, SAVED_MODEL)):
        raise ImportError(
            "A SavedModel needs TensorFlow and TensorFlow Text: pip install tensorflow "
            "tensorflow-text. A model for CTranslate2 does not: `export --format ctranslate2`"
        )
