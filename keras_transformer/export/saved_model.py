"""Exports a translator as a SavedModel that takes and returns strings.

Tokenizer, model and search are in its graph: to load it takes `tensorflow` and `tensorflow_text`,
but not this package.
"""

import contextlib
from pathlib import Path

import tensorflow as tf

from keras_transformer import types
from keras_transformer.atomic_file import atomic_folder
from keras_transformer.decoding.translator import Translator


def export_saved_model(translator: Translator, path: types.Path) -> Path:
    """Writes a translator as a SavedModel.

    Its signature `serving_default` takes `text`, a string tensor `(B,)`, and returns `translation`,
    a string tensor `(B,)`: one translation per line, empty for an empty line. A call with a scalar
    or a matrix raises an `InvalidArgumentError` that names the shape.

    It searches by the settings of the translator. A line of more than `max_source_tokens` tokens is
    treated as `on_too_long` says: by default it is translated in pieces, joined by a space. At most
    64 pieces are decoded together; batches of long pieces hold fewer.

    A SavedModel at `path` is replaced when the new one is complete. On Linux the two are exchanged
    in one step, so `path` always holds a complete model. Where the operating system or the file
    system cannot do that, the old one is renamed to `PATH.old-*` first. It is renamed back if the
    new one cannot be moved; a process that is killed between the two steps leaves it there. A
    server that loads during the exchange may read files of both: export every version to a new
    folder, as TensorFlow Serving expects.

    Files that a user added to the folder, such as `assets.extra`, are deleted with the old model.
    If `path` is a symbolic link, the folder that it points to is replaced.

    Args:
        translator: `Translator`.
        path: path of the folder to write. A SavedModel that is there is replaced.

    Returns:
        `pathlib.Path`, the folder.

    Raises:
        TypeError: if a tokenizer is not a `tf.Module`.
        FileExistsError: if `path` exists and is not a SavedModel.
        OSError: if it cannot be written; `path` is unchanged.

    Example, on the serving side:

        import tensorflow as tf
        import tensorflow_text  # registers the tokenizer's operations

        served = tf.saved_model.load("served")
        served.signatures["serving_default"](text=tf.constant(["twenty-one"]))["translation"]
    """
    path = Path(path)
    _require_modules(translator)
    if path.exists() and not tf.saved_model.contains_saved_model(str(path)):
        raise FileExistsError(f"{str(path)!r} exists and is not a SavedModel.")
    module = _module(translator)
    # The log would name the temporary folder.
    with atomic_folder(path) as written, _quiet():
        signatures = {"serving_default": module.translate}
        tf.saved_model.save(module, str(written), signatures=signatures)
    return path


def _require_modules(translator):
    for tokenizer in (translator.source_tokenizer, translator.target_tokenizer):
        if not isinstance(tokenizer, tf.Module):
            raise TypeError(
                "To export a translator, its tokenizers must be a `tf.Module`, so that the "
                f"SavedModel contains their tables. Received: {type(tokenizer).__name__}"
            )


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
    """Returns a `tf.Module` with the function, weights and tokenizers; no optimizer or metrics."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(text):
        return {"translation": translator.translate(_require_vector(text))}

    module = tf.Module()
    # None for a frozen translator: its weights are constants of the graph.
    module.weights = translate.get_concrete_function().variables
    module.tokenizers = [translator.source_tokenizer, translator.target_tokenizer]
    module.translate = translate
    return module


def _require_vector(text):
    """Raises, when the graph runs, on a scalar or a matrix: a loaded signature does not check."""
    shape = tf.shape(text)
    # `tf.rank` is the constant 1 of the signature; `tf.shape` is that of the actual input.
    is_vector = tf.equal(tf.math.count_nonzero(shape >= 0), 1)
    message = "`text` must be a vector of strings, one for each line. Received: a tensor of shape"
    with tf.control_dependencies([tf.debugging.Assert(is_vector, [message, shape])]):
        return tf.identity(text)
