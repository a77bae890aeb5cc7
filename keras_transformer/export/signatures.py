"""The functions of a SavedModel: tensors of strings and numbers in and out."""

import inspect

import tensorflow as tf

from keras_transformer.decoding.translator import Translator
from keras_transformer.export.graph_translator import GraphTranslator, Options


class Signatures(tf.Module):
    """Weights, tokenizers and functions of a translator.

    Args:
        translator: `Translator`.

    Attributes:
        functions: dict from names of signatures to `tf.function`. They are also attributes.
    """

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        graph = GraphTranslator(translator)
        functions = {
            **_translations(graph),
            "align": _function(graph.align, "text", "target"),
            "search_tree": _function(graph.search_tree, "text"),
            "score": _function(graph.score, "source", "target"),
            "tokenize": _function(graph.tokenize, "text"),
            "detokenize": tf.function(
                graph.detokenize,
                input_signature=[tf.TensorSpec([None, None], tf.int32, name="token_ids")],
                autograph=False,
            ),
        }
        for name, function in functions.items():
            setattr(self, name, function)
        self.functions = {"serving_default": functions.pop("serve"), **functions}
        self.weights = [weight.value for weight in translator.model.weights]
        self.tokenizers = graph.source_tokenizer, graph.target_tokenizer


def _translations(graph):
    """`serve` and `translate_n_best`. Both call one graph, which is in the SavedModel once."""
    most, no_language = graph.settings.max_hypotheses, tf.constant([""])
    one, all_of_beam = (Options.default(graph.settings, n_best) for n_best in (1, most))
    specs = [tf.TensorSpec([None], each.dtype) for each in (no_language, no_language, *one)]

    @tf.function(input_signature=specs, autograph=False)
    def search(text, languages, *options):
        return graph.translate(text, Options(*options), languages)

    def serve(text):
        found = search(text, no_language, *one)
        return {
            "translation": found.texts[:, 0],
            "score": found.scores[:, 0],
            "truncated": found.truncated,
            "unfinished": found.unfinished[:, 0],
        }

    def translate_n_best(text, target_language=no_language, **options):
        found = search(text, target_language, *Options(**options))
        longest = tf.clip_by_value(tf.reduce_max(options["n_best"]), 1, most)
        return {
            "translations": found.texts[:, :longest],
            "scores": found.scores[:, :longest],
            "lengths": found.lengths[:, :longest],
            "truncated": found.truncated,
            "unfinished": found.unfinished[:, :longest],
        }

    defaults = all_of_beam._asdict()
    if graph.languages:
        defaults["target_language"] = no_language
    n_best = _function(translate_n_best, "text", **defaults)
    return {"serve": _function(serve, "text"), "translate_n_best": n_best}


def _function(method, *texts, **options):
    """Returns a `tf.function` of vectors.

    Args:
        method: callable that gets them by name, and returns the outputs by name.
        *texts: names of vectors of strings.
        **options: the defaults of the others.
    """
    empty = inspect.Parameter.empty
    defaults = dict.fromkeys(texts, empty) | options
    specs = [
        tf.TensorSpec([None], tf.string if default is empty else default.dtype, name=name)
        for name, default in defaults.items()
    ]

    def call(*tensors):
        return method(**_vectors(dict(zip(defaults, tensors, strict=True)), options))

    # TensorFlow reads the names and the defaults of the arguments in the signature.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, default=value) for n, value in defaults.items()]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return tf.function(call, input_signature=specs, autograph=False)


def _vectors(tensors, options):
    """Returns tensors; raises, when the graph runs, unless each is a vector with a row for a line.

    A loaded signature does not check it.

    Args:
        tensors: dict of tensors by name; the first has the lines.
        options: names of those that may have one row for all lines.
    """
    checked, (text, *_) = {}, tensors.values()
    for name, tensor in tensors.items():
        shape, rows = tf.shape(tensor), tf.size(tensor)
        may_be_one = name in options
        # `tf.rank` is the constant 1 of the signature; `tf.shape` is that of the actual input.
        is_right = tf.equal(tf.math.count_nonzero(shape >= 0), 1)
        is_right &= (rows == tf.size(text)) | (may_be_one & (rows == 1))
        one = ", or one row" if may_be_one else ""
        must = f"`{name}` must be a vector, with one row for each line{one}. Received: lines, shape"
        check = tf.debugging.Assert(is_right, [must, tf.size(text), shape])
        with tf.control_dependencies([check]):
            checked[name] = tf.identity(tensor)
    return checked
