"""The functions of a SavedModel: tensors of strings and numbers in and out."""

import inspect
from typing import Any

import tensorflow as tf

from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.translator import Translator
from keras_transformer.export.graph_lines import token_ids_of
from keras_transformer.export.graph_translator import GraphTranslator, Options


def _column(name, dtype=tf.string):
    return tf.TensorSpec([None], dtype, name=name)


_IDS = tf.TensorSpec([None, None], tf.int32, name="token_ids")


class Signatures(tf.Module):
    """Weights, tokenizers and functions of a translator.

    Args:
        translator: `Translator`.
        frozen: bool, as in `export_saved_model`.

    Attributes:
        functions: dict from names of signatures to `tf.function`. They are also attributes.
    """

    def __init__(self, translator: Translator, frozen: bool) -> None:
        super().__init__()
        model, tokenizers = translator.model, translator.tokenizers
        decoder = FrozenTransformer(model) if frozen else model
        graph = GraphTranslator(model, decoder, *tokenizers)
        most = translator.settings.max_hypotheses
        functions = {
            **_translations(graph, translator.settings, most),
            **_pictures(graph, translator.settings),
            **_scores(graph),
            **_tokens(graph.source_tokenizer, graph.target_tokenizer, model.config.pad_token_id),
        }
        for name, function in functions.items():
            setattr(self, name, function)
        self.functions = {"serving_default": functions.pop("serve"), **functions}
        self.weights = [weight.value for weight in model.weights]
        self.tokenizers = graph.source_tokenizer, graph.target_tokenizer


def _translations(graph, settings, most):
    """`serve` and `translate_n_best`. Both call one graph, which is in the SavedModel once."""
    defaults = Options.default(settings, most)._asdict()
    specs = [_column(name, option.dtype) for name, option in defaults.items()]
    no_language = tf.constant([""])

    @tf.function(
        input_signature=[_column("text"), _column("target_language"), *specs], autograph=False
    )
    def search(text, languages, *options):
        return graph.translate(text, settings, Options(*options), languages)

    @tf.function(input_signature=[_column("text")], autograph=False)
    def serve(text):
        found = search(*_vectors(text=text).values(), no_language, *Options.default(settings))
        return {
            "translation": found.texts[:, 0],
            "score": found.scores[:, 0],
            "truncated": found.truncated,
        }

    if graph.languages:
        defaults["target_language"] = no_language
        specs.append(_column("target_language"))

    def translate_n_best(text, *options):
        options = dict(zip(defaults, options, strict=True))
        options = _vectors(may_be_one=True, text=text, **options)
        text, language = options.pop("text"), options.pop("target_language", no_language)
        found = search(text, language, *Options(**options))
        longest = tf.clip_by_value(tf.reduce_max(options["n_best"]), 1, most)
        return {
            "translations": found.texts[:, :longest],
            "scores": found.scores[:, :longest],
            "lengths": found.lengths[:, :longest],
            "truncated": found.truncated,
        }

    # TensorFlow reads the names and the defaults of the options in the signature.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, default=value) for n, value in defaults.items()]
    signature = inspect.Signature([inspect.Parameter("text", kind), *parameters])
    vars(translate_n_best)["__signature__"] = signature
    wrapped = tf.function(
        translate_n_best, input_signature=[_column("text"), *specs], autograph=False
    )
    return {"serve": serve, "translate_n_best": wrapped}


def _scores(graph):
    """`score`, of given translations."""

    @tf.function(input_signature=[_column("source"), _column("target")], autograph=False)
    def score(source, target):
        log_probs, tokens = graph.score(**_vectors(source=source, target=target))
        perplexity = tf.exp(-log_probs / tf.cast(tokens, tf.float32))
        return {"log_prob": log_probs, "tokens": tokens, "perplexity": perplexity}

    return {"score": score}


def _pictures(graph, settings):
    """`align` and `search_tree`: what a user looks at."""

    @tf.function(input_signature=[_column("text"), _column("target")], autograph=False)
    def align(text, target):
        scores, source_ids, target_ids = graph.align(*_vectors(text=text, target=target).values())
        answer = {"attention": scores}
        sides = {"source": source_ids, "target": target_ids}
        tokenizers = graph.source_tokenizer, graph.target_tokenizer
        for (side, token_ids), tokenizer in zip(sides.items(), tokenizers, strict=True):
            is_token = token_ids != graph.model.config.pad_token_id
            answer[f"{side}_tokens"] = tf.where(is_token, tokenizer.tokens(token_ids), "")
            answer[f"{side}_lengths"] = tf.math.count_nonzero(is_token, axis=1, dtype=tf.int32)
        return answer

    @tf.function(input_signature=[_column("text")], autograph=False)
    def search_tree(text):
        names = "tokens", "parents", "log_probs", "is_winner"
        return dict(
            zip(names, graph.search_tree(**_vectors(text=text), settings=settings), strict=True)
        )

    return {"align": align, "search_tree": search_tree}


def _tokens(source_tokenizer, target_tokenizer, pad_token_id):
    """`tokenize` and `detokenize`."""

    @tf.function(input_signature=[_column("text")], autograph=False)
    def tokenize(text):
        token_ids = token_ids_of(source_tokenizer, **_vectors(text=text))
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        return {"token_ids": token_ids.to_tensor(pad_token_id), "lengths": lengths}

    @tf.function(input_signature=[_IDS], autograph=False)
    def detokenize(token_ids):
        return {"text": target_tokenizer.detokenize(token_ids)}

    return {"tokenize": tokenize, "detokenize": detokenize}


def _vectors(may_be_one: bool = False, **tensors: Any) -> dict[str, tf.Tensor]:
    """Returns tensors; raises, when the graph runs, unless each is a vector with a row for a line.

    A loaded signature does not check it.

    Args:
        may_be_one: whether all but the first, the text, may have one row for all lines.
        **tensors: tensors by name.
    """
    checked, (text, *_) = {}, tensors.values()
    for name, tensor in tensors.items():
        shape, rows = tf.shape(tensor), tf.size(tensor)
        # `tf.rank` is the constant 1 of the signature; `tf.shape` is that of the actual input.
        is_right = tf.equal(tf.math.count_nonzero(shape >= 0), 1)
        is_right &= (rows == tf.size(text)) | (may_be_one & (rows == 1))
        one = ", or one row" if may_be_one else ""
        must = f"`{name}` must be a vector, with one row for each line{one}. Received: lines, shape"
        check = tf.debugging.Assert(is_right, [must, tf.size(text), shape])
        with tf.control_dependencies([check]):
            checked[name] = tf.identity(tensor)
    return checked
