"""A SavedModel that takes raw strings and returns translations.

Tokenizer, model and search are all in its graph: whoever loads it needs `tensorflow` and
`tensorflow_text`, nothing of this package.
"""

import contextlib
import tempfile
from pathlib import Path

import tensorflow as tf

from keras_transformer.atomic_file import replace_folder


def export_saved_model(translator, path):
    """Writes a translator as a SavedModel.

    Its signature `serving_default` takes `text`, a string tensor `(B,)`, and returns `translation`,
    a string tensor `(B,)`: one translation for each line, an empty one for an empty line. A scalar
    or a matrix is refused when it is called, by an `InvalidArgumentError` that names the shape.

    It searches by the settings of the translator. A line of more than `max_source_tokens` tokens is
    treated as `on_too_long` says: by default it is translated in pieces, joined by a space. However
    many and however long the lines are, 64 pieces are decoded together, fewer where they are long.

    A SavedModel that is at `path` already stays until the new one is whole. On Linux the two then
    change places in one step, so there is a whole model at `path` at every moment. Where the
    operating system or the file system cannot do that, the old one is first renamed to
    `PATH.old-*`; it is put back if the new one cannot take its place, and a process that is killed
    between the two steps leaves it there. A server that loads while `path` is replaced may read
    files of both: export to a new folder for each version, as TensorFlow Serving expects.

    Files that the user put into the folder, such as `assets.extra`, go with the old model. If
    `path` is a symbolic link, the folder that it points to is replaced.

    Args:
        translator: `Translator`.
        path: path of the folder to write. A SavedModel that is there is replaced.

    Returns:
        `pathlib.Path`, the folder.

    Raises:
        FileExistsError: if `path` exists and is not a SavedModel.
        OSError: if it cannot be written; what was at `path` is as it was.

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
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and then moved: whoever looks there never sees half a model.
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as temporary:
        written = Path(temporary) / "new"
        with _quiet():  # it would name the temporary folder
            signatures = {"serving_default": module.translate}
            tf.saved_model.save(module, str(written), signatures=signatures)
        replace_folder(written, place)
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
        return {"translation": translator.translate(_require_vector(text))}

    module = tf.Module()
    # Those of a frozen translator are in the graph.
    module.weights = translate.get_concrete_function().variables
    module.tokenizers = [translator.source_tokenizer, translator.target_tokenizer]
    module.translate = translate
    return module


def _require_vector(text):
    """Refuses a scalar or a matrix, for which a loaded signature does not check its input."""
    shape = tf.shape(text)
    # `tf.rank` is 1 when the graph is made, whatever comes; the shape is what comes.
    is_vector = tf.equal(tf.math.count_nonzero(shape >= 0), 1)
    message = "`text` must be a vector of strings, one for each line. Received: a tensor of shape"
    with tf.control_dependencies([tf.debugging.Assert(is_vector, [message, shape])]):
        return tf.identity(text)
