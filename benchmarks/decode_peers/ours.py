"""Our search with our model, frozen as in `load_run`, and compiled for few sentences.

To force the length, the end token is an id outside the vocabulary, which costs nothing.
"""

import functools
import types

import keras
import tensorflow as tf

from decode_peers import until
from keras_transformer.decoding.compiled import IDS, RUNTIME_SPECS, CompiledSearches
from keras_transformer.decoding.frozen import FrozenTransformer, copy_model
from keras_transformer.decoding.model_search import runtime_inputs, search_model
from keras_transformer.decoding.search_settings import SearchSettings


class Ours:
    """Decodes with a frozen copy of `model` in `dtype`; `scoring`: settings of the search."""

    def __init__(self, model, dtype="float32", stopping="exhaustive", compiled=True, **scoring):
        self.name = f"ours {dtype}" + ("" if stopping == "exhaustive" else f", {stopping}")
        self.name += "" if compiled else ", graph"
        self.config = model.config
        self._settings = {"stopping": stopping, **scoring}
        copy = copy_model(model, dtype)
        self.model = FrozenTransformer(copy)
        self._graph = functools.cache(self._make_graph)
        models = (with_end(copy, self._end(forced)) for forced in (False, True))
        mode = compiled and dtype == "float32"
        self._compiled = [CompiledSearches(one, mode) for one in models]

    def decode(self, sentences, beam_size, length=None):
        limits = {} if length is None else {"length_ratio": 0.0, "extra_length": length}
        found = self._hypotheses(sentences, beam_size, length is not None, **limits)
        return [token_ids for token_ids, _ in found]

    def scored(self, sentences, beam_size, max_length):
        """Returns the best hypothesis of each sentence, without its end token, and its score."""
        limits = {"length_ratio": 0.0, "extra_length": max_length}
        return self._hypotheses(sentences, beam_size, False, **limits)

    def _hypotheses(self, sentences, beam_size, is_forced, **limits):
        settings = SearchSettings(beam_size=beam_size, **self._settings, **limits)
        source = padded(sentences, self.config.pad_token_id)
        search = self._compiled[is_forced].for_call(settings, 1, False)(source.shape)
        search = search or self._graph(settings.graph_settings, is_forced)
        result = search(runtime_inputs(settings), source)
        best = (tensor[:, 0].numpy() for tensor in (result.token_ids, result.lengths))
        end = self._end(is_forced)
        rows = [until(row[:size].tolist(), end) for row, size in zip(*best, strict=True)]
        return list(zip(rows, result.scores[:, 0].numpy().tolist(), strict=True))

    def _end(self, is_forced):
        return self.config.vocabulary_size if is_forced else self.config.end_token_id

    def _make_graph(self, settings, is_forced):
        model = with_end(self.model, self._end(is_forced))

        @tf.function(input_signature=[RUNTIME_SPECS, IDS], autograph=False)
        def search(runtime_values, source):
            return search_model(model, source, settings, runtime_values)

        return search.get_concrete_function()


def with_end(model, end_token_id):
    """Returns the model with another end token."""
    config = types.SimpleNamespace(**vars(model.config) | {"end_token_id": end_token_id})
    return types.SimpleNamespace(
        config=config, init_cache=model.init_cache, decode_step=model.decode_step
    )


def padded(sentences, pad_token_id):
    """Pads lists of token ids to one int32 tensor `(B, S)`."""
    ids = keras.utils.pad_sequences(sentences, padding="post", value=pad_token_id)
    return tf.constant(ids, tf.int32)
