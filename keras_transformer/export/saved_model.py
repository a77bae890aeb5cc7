"""A SavedModel that takes raw strings and returns translations.

Tokenizer, model and search are all in its graph: whoever loads it needs `tensorflow` and
`tensorflow_text`, nothing of this package.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf


def export_saved_model(translator, path):
    """Writes a translator as a SavedModel.

    Its signature `serving_default` takes `text`, a string tensor `(B,)`, and returns `translation`,
    a string tensor `(B,)`: one translation for each line, an empty one for an empty line.

    Args:
        translator: `Translator`.
        path: path of the folder to write. A SavedModel that is there is replaced.

    Returns:
        `pathlib.Path`, the folder.

    Raises:
        FileExistsError: if `path` exists and is not a SavedModel.

    Example, on the serving side:

        import tensorflow as tf
        import tensorflow_text  # registers the tokenizer's operations

        served = tf.saved_model.load("served")
        served.signatures["serving_default"](text=tf.constant(["twenty-one"]))["translation"]
    """
    path = Path(path)
    if path.exists() and not tf.saved_model.contains_saved_model(str(path)):
        raise FileExistsError(f"{str(path)!r} exists and is not a SavedModel.")
    module = _module(translator)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and then moved: whoever looks there never sees half a model.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary:
        written = Path(temporary) / "new"
        with _quiet():  # it would name the temporary folder
            signatures = {"serving_default": module.translate}
            tf.saved_model.save(module, str(written), signatures=signatures)
        if path.exists():
            shutil.move(path, Path(temporary) / "old")
        shutil.move(written, path)
    return path


@contextlib.contextmanager
def _quiet():
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


def _module(translator):
    """Owns what the graph needs and no more: optimizer and metrics stay behind."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(text):
        return {"translation": translator.translate(text)}

    module = tf.Module()
    # Those of a frozen translator are in the graph.
    module.weights = translate.get_concrete_function().variables
    module.tokenizers = [translator.source_tokenizer, translator.target_tokenizer]
    module.translate = translate
    return module
