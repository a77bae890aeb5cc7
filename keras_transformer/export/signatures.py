"""The functions of a SavedModel: tensors of strings, ids and numbers in and out."""

import inspect
from functools import partial

import tensorflow as tf

from keras_transformer.data.language_codes import LANGUAGES, find_language
from keras_transformer.decoding.translator import Translator
from keras_transformer.export.graph_translator import GraphTranslator


class Signatures(tf.Module):
    """Weights, tokenizers and functions of a translator.

    Args:
        translator: `Translator`.
        for_inspection: bool. Whether there are `attend` and `search_tree`. Defaults to
            `False`.

    Attributes:
        functions: dict from names of signatures to `tf.function`. They are also attributes.
    """

    def __init__(self, translator: Translator, for_inspection: bool = False) -> None:
        super().__init__()
        graph = GraphTranslator(translator)
        languages = _languages(translator)
        if graph.language_ids:
            score = _of_strings(graph.score, "source", "target", **languages)
        else:
            score = _of_strings(partial(graph.score, **languages), "source", "target")
        functions = {
            **_translations(graph, translator),
            "score": score,
            "search": graph.search,
            "score_ids": graph.score_ids,
            "tokenize": _of_strings(graph.tokenize, "text"),
            "detokenize": _of_ids(graph.detokenize, "token_ids"),
        }
        if for_inspection:
            functions["attend"] = _of_ids(graph.attend, "token_ids", "target_ids")
            functions["search_tree"] = _of_ids(graph.search_tree, "token_ids")
        for name, function in functions.items():
            setattr(self, name, function)
        self.functions = {"serving_default": functions.pop("serve"), **functions}
        self.weights = [weight.value for weight in translator.model.weights]
        # The state of a sampler's random numbers.
        states = getattr(translator.settings.sampler, "variables", ())
        self.random_states = [state.value for state in states]
        self.tokenizers = graph.tokenizers


def _languages(translator):
    """Returns the default languages, as codes of the model; "" where the translator has none."""
    settings, ids = translator.text_settings, translator.source_tokenizer.language_ids
    codes = {name: getattr(settings, name) or "" for name in LANGUAGES}
    if ids:
        codes = {name: code and find_language(code, name, ids) for name, code in codes.items()}
    return {name: tf.constant([code]) for name, code in codes.items()}


def _translations(graph, translator):
    """Returns `serve` and `translate_n_best`. Both call one graph: the SavedModel has it once."""
    settings = graph.settings
    defaults = {
        **_languages(translator),
        "n_best": tf.constant([settings.max_hypotheses]),
        "alpha": tf.constant([float(settings.alpha)]),
        "max_length": tf.constant([settings.most_tokens]),
        "target_prefix": tf.constant([""]),
    }
    specs = [tf.TensorSpec([None], default.dtype) for default in defaults.values()]
    text = tf.TensorSpec([None], tf.string)
    translate = tf.function(graph.translate, [text, *specs], autograph=False)

    def serve(text):
        outputs = translate(text, **defaults | {"n_best": tf.constant([1])})
        return {
            "translation": outputs["translations"][:, 0],
            "score": outputs["scores"][:, 0],
            "truncated": outputs["truncated"],
            "unfinished": outputs["unfinished"][:, 0],
        }

    def translate_n_best(text, **options):
        outputs = translate(text, **defaults | options)
        most = tf.clip_by_value(tf.reduce_max(options["n_best"]), 1, settings.max_hypotheses)
        truncated = outputs.pop("truncated")
        ranks = {name: values[:, :most] for name, values in outputs.items()}
        return ranks | {"truncated": truncated}

    options = dict(defaults)
    if not graph.language_ids:
        del options["source_language"]
    if not (graph.languages or graph.language_ids):
        del options["target_language"]
    return {
        "serve": _of_strings(serve, "text"),
        "translate_n_best": _of_strings(translate_n_best, "text", **options),
    }


def _of_ids(method, *names):
    """Returns a `tf.function` of int32 matrices."""
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in names]
    return tf.function(method, specs, autograph=False)


def _of_strings(method, *texts, **options):
    """Returns a `tf.function` of vectors, such as `f(text, n_best=[1], alpha=[0.6])`.

    Args:
        method: callable that takes the vectors as keyword arguments, and returns a dict of outputs.
        *texts: names of the vectors of strings that have no default.
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
    """Returns tensors; raises, when the graph runs, unless each is a vector with a row per line.

    The signature of a loaded SavedModel does not check shapes.

    Args:
        tensors: dict of tensors by name; the first has the lines.
        options: names of those that may have one row for all lines.
    """
    text, *_ = tensors.values()
    checks = []
    for name, tensor in tensors.items():
        shape, rows = tf.shape(tensor), tf.size(tensor)
        may_be_one = name in options
        # The rank of the actual input: `tf.rank` would be the constant 1 of the signature.
        rank = tf.math.count_nonzero(shape >= 0)
        is_right = tf.equal(rank, 1)
        is_right &= (rows == tf.size(text)) | (may_be_one & (rows == 1))
        or_one = ", or one row" if may_be_one else ""
        must = (
            f"`{name}` must be a vector, with one row for each line{or_one}. Received: lines, shape"
        )
        checks.append(tf.debugging.Assert(is_right, [must, tf.size(text), shape]))
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(tf.identity, tensors)
