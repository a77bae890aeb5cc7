"""Names that are imported on first use: the public ones, and the classes that Keras can load.

An error says in one line which package is not installed. Pure Python.
"""

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import lazy_loader

# Module -> the package to install, where their names differ.
DISTRIBUTIONS = {"yaml": "pyyaml", "google": "protobuf", "tensorflow_text": "tensorflow-text"}
# Public names of earlier versions -> what to use instead.
GONE = {
    **{
        name: f"`{name}` has gone: use `Tokenizer.{constructor}`, or `Tokenizer.load` for a file"
        for name, constructor in {
            "CharacterTokenizer": "characters",
            "WordTokenizer": "words",
            "SentencePieceTokenizer": "from_sentencepiece",
            "MarianTokenizer": "from_marian",
            "KerasHubTokenizer": "from_keras_hub",
        }.items()
    },
    "import_marian": "`import_marian` is now `import_model`",
    "CTranslate2Translator": "`CTranslate2Translator` has gone: keras_transformer.load_translator("
    "folder) returns a `Translator` above CTranslate2",
}
OTHER_BACKENDS = ". Or install jax or torch, and set KERAS_BACKEND to it"
# Module -> its classes that are registered with Keras.
REGISTERED = {
    "layers": (
        "DecoderBlock",
        "Dropout",
        "EncoderBlock",
        "FeedForward",
        "MultiHeadAttention",
        "PaddingMask",
        "PositionalEmbedding",
        "PositionalEncoding",
    ),
    "models": ("Transformer", "TransformerDecoder", "TransformerEncoder"),
    "models.output_bias": ("OutputBias",),
    "training": (
        "Adam",
        "Perplexity",
        "SmoothedCrossEntropy",
        "TokenAccuracy",
        "WarmupSchedule",
    ),
}


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: name of the package.
        file: path of its `__init__.py`; the `__init__.pyi` beside it lists the public names.
    """
    get, list_names, names = lazy_loader.attach_stub(package, file)

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except (ImportError, AttributeError) as error:
            if message := GONE.get(name) or explanation(f"`{name}`", error):
                raise ImportError(message) from error
            raise

    return get_or_explain, list_names, names


def explanation(what: str, error: BaseException) -> str | None:
    """Returns a line on the missing package that caused an error; `None` for other errors.

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
    # If Keras is imported, it has a backend, so TensorFlow is needed for something else.
    needs_backend = name == "tensorflow" and "keras" not in sys.modules
    advice = OTHER_BACKENDS if needs_backend else ""
    return f"{what} needs {name}, which is not installed: pip install {name}{advice}"


def is_installed(module: str) -> bool:
    """Whether a top-level module can be found. An empty folder with its name does not count."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # an imported module without a spec: a program made it itself
        return True
    return spec is not None and spec.origin is not None


def register_with_keras() -> None:
    """Lets Keras load files with our classes: now if Keras is imported, else once it is."""
    watcher = KerasWatcher()
    sys.meta_path.insert(0, watcher)
    if sys.modules.get("keras") is not None:
        try:
            keras = importlib.import_module("keras")  # waits while another thread imports it
        except Exception:  # raised in that thread too
            return
        watcher.register(keras)


class KerasWatcher:
    """A finder that waits for the import of Keras, registers our classes, and removes itself.

    It finds only Keras, and asks the other finders where that is.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "keras":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.origin is not None:  # not an empty folder
            # Replace `exec_module` for one call, to register as soon as Keras is imported.
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_register(module):
                loader.exec_module = execute
                execute(module)
                self.register(module)

            loader.exec_module = execute_and_register
        return spec

    def register(self, keras: Any) -> None:
        registered = keras.saving.get_custom_objects()
        for module, class_names in REGISTERED.items():
            for class_name in class_names:
                deferred = DeferredClass(f"keras_transformer.{module}", class_name)
                registered.setdefault(f"keras_transformer>{class_name}", deferred)
        # A new list: a thread that goes through the old one would skip the finder after this one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


class DeferredClass:
    """Stands for a class in Keras's registry, until the class is imported and takes its place.

    A call or `from_config` imports the class.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._imported()(*args, **kwargs)

    def from_config(self, config: dict[str, Any], **options: Any) -> Any:
        return self._imported().from_config(config, **options)

    def _imported(self):
        return getattr(importlib.import_module(self.module), self.name)
