"""Exports a translator as a SavedModel that takes and returns strings.

Tokenizer, model and search are in its graph: to load it takes `tensorflow` and `tensorflow_text`,
but not this package.
"""

import contextlib
from pathlib import Path

import tensorflow as tf

from keras_transformer import types
from keras_transformer.atomic_file import atomic_folder
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.graph_translator import GraphTranslator
from keras_transformer.decoding.lines import token_ids_of
from keras_transformer.decoding.translator import Translator


def export_saved_model(translator: Translator, path: types.Path, *, frozen: bool = False) -> Path:
    """Writes a translator as a SavedModel.

    Its signatures take and return named tensors; B lines:

    - `serving_default`: `text`, string `(B,)`; returns `translation`, string `(B,)`, one for each
      line and empty for an empty line; `score`, float32 `(B,)`, as `Hypothesis.score`; and
      `truncated`, bool `(B,)`, whether the end of the line was left out. `serve` of the loaded
      object is the same function.
    - `score`: `source` and `target`, string `(B,)`; returns `log_prob`, float32 `(B,)`, the
      log-probability of each target with its end token; `tokens`, int32 `(B,)`, their number; and
      `perplexity`, float32 `(B,)`. They are NaN for lines of more tokens than 2,048 or the learned
      positions.
    - `tokenize`: `text`, string `(B,)`; returns `token_ids`, int32 `(B, S)`, those of the source
      without end tokens, padded, and `lengths`, int32 `(B,)`.
    - `detokenize`: `token_ids`, int32 `(B, T)`, those of the target, padded; returns `text`, string
      `(B,)`.

    A call with a scalar or a matrix of strings raises an `InvalidArgumentError` that names the
    shape.

    It searches by the settings of the translator. A line of more than `max_source_tokens` tokens is
    treated as `on_too_long` says: by default it is translated in pieces, joined by a space.

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
        frozen: bool. Whether the search has a copy of the weights as constants of its graph: it is
            faster, the folder is larger, and the copy is limited to 2 GB. Defaults to `False`: the
            weights are in the folder once, as variables.

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
        served.serve(tf.constant(["twenty-one"]))["translation"]
    """
    path = Path(path)
    _require_modules(translator)
    if path.exists() and not tf.saved_model.contains_saved_model(str(path)):
        raise FileExistsError(f"{str(path)!r} exists and is not a SavedModel.")
    module, signatures = _module(translator, frozen)
    # The log would name the temporary folder.
    with atomic_folder(path) as written, _quiet():
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


def _module(translator, frozen):
    """Returns a `tf.Module` with weights, tokenizers and functions, and the signatures."""
    model, settings = translator.model, translator.settings
    source_tokenizer, target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
    decoder = FrozenTransformer(model) if frozen else model
    graph = GraphTranslator(model, decoder, source_tokenizer, target_tokenizer)
    pad_token_id = model.config.pad_token_id

    @tf.function(input_signature=[_strings("text")])
    def serve(text):
        found = graph.translate(_require_vector("text", text), settings)
        return {
            "translation": found.texts,
            "score": found.scores,
            "truncated": found.truncated,
        }

    @tf.function(input_signature=[_strings("source"), _strings("target")])
    def score(source, target):
        source, target = _require_vector("source", source), _require_vector("target", target)
        message = "`source` and `target` must have the same number of lines."
        sizes = tf.size(source), tf.size(target)
        with tf.control_dependencies([tf.debugging.assert_equal(*sizes, message)]):
            log_probs, tokens = graph.score(source, target)
        perplexity = tf.exp(-log_probs / tf.cast(tokens, tf.float32))
        return {"log_prob": log_probs, "tokens": tokens, "perplexity": perplexity}

    @tf.function(input_signature=[_strings("text")])
    def tokenize(text):
        token_ids = token_ids_of(source_tokenizer, _require_vector("text", text))
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        return {"token_ids": token_ids.to_tensor(pad_token_id), "lengths": lengths}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="token_ids")])
    def detokenize(token_ids):
        return {"text": target_tokenizer.detokenize(token_ids)}

    functions = {"score": score, "tokenize": tokenize, "detokenize": detokenize}
    module = tf.Module()
    traced = (function.get_concrete_function() for function in (serve, *functions.values()))
    module.weights = list({id(v): v for one in traced for v in one.variables}.values())
    module.tokenizers = [source_tokenizer, target_tokenizer]
    module.serve = serve
    return module, {"serving_default": serve, **functions}


def _strings(name):
    return tf.TensorSpec([None], tf.string, name=name)


def _require_vector(name, text):
    """Raises, when the graph runs, on a scalar or a matrix: a loaded signature does not check."""
    shape = tf.shape(text)
    # `tf.rank` is the constant 1 of the signature; `tf.shape` is that of the actual input.
    is_vector = tf.equal(tf.math.count_nonzero(shape >= 0), 1)
    message = (
        f"`{name}` must be a vector of strings, one for each line. Received: a tensor of shape"
    )
    with tf.control_dependencies([tf.debugging.Assert(is_vector, [message, shape])]):
        return tf.identity(text)
