"""Public names, imported on first use; what is not installed is said in one line.

Pure Python.
"""

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import lazy_loader

# Modules whose distribution has another name.
DISTRIBUTIONS = {"yaml": "pyyaml", "google": "protobuf", "tensorflow_text": "tensorflow-text"}
OTHER_BACKENDS = ". Or install jax or torch, and set KERAS_BACKEND to it"


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package, from the stub at its file."""
    get, list_names, names = lazy_loader.attach_stub(package, file)

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except (ImportError, AttributeError) as error:
            if explained := explanation(f"`{name}`", error):
                raise ImportError(explained) from error
            raise

    return get_or_explain, list_names, names


def explanation(what: str, error: BaseException) -> str | None:
    """Returns a line on the package whose absence caused an error, or `None`.

    If only the empty folder of a package is left, the package counts as not installed.

    Args:
        what: what needs the package, as the subject of a sentence.
        error: raised by an import, or by the use of a module.
    """
    module = (error.name or "") if isinstance(error, ImportError) else ""
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
        module = error.obj.__name__
    module = module.partition(".")[0]
    if not module or is_installed(module):
        return None
    name = DISTRIBUTIONS.get(module, module)
    # If Keras is imported, its backend is there, and TensorFlow is needed for something else.
    others = OTHER_BACKENDS if name == "tensorflow" and "keras" not in sys.modules else ""
    return f"{what} needs {name}, which is not installed: pip install {name}{others}"


def is_installed(module: str) -> bool:
    """Whether a top-level module can be found; an empty folder of its name is none."""
    try:
        found = importlib.util.find_spec(module)
    except ValueError:  # a module that was made by hand
        return True
    return found is not None and found.origin is not None
