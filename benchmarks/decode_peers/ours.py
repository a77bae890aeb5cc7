"""Our search with our model, frozen as in `load_run`, and compiled for few sentences.

To force the length, the end token is an id outside the vocabulary, which costs nothing.
"""

import contextlib
import types

import keras

from decode_peers import until
from keras_transformer.decoding.frozen import copy_model, freeze
from keras_transformer.decoding.model_search import compiled_shape, search_model
from keras_transformer.decoding.search_settings import SearchSettings


class Ours:
    """Decodes with a frozen copy of `model` in `dtype`; `scoring`: settings of the search."""

    def __init__(self, model, dtype="float32", stopping="exhaustive", compiled=True, **scoring):
        self.name = f"ours {dtype}" + ("" if stopping == "exhaustive" else f", {stopping}")
        self.name += "" if compiled else ", graph"
        self.config = model.config
        self._settings = {"stopping": stopping, **scoring}
        copy = copy_model(model, dtype)
        ends = model.config.end_token_id, model.config.vocabulary_size
        # For the graph frozen, for XLA not: each natural, and with an end that never comes.
        kinds = freeze(copy, is_shared=False), copy
        self._models = [WithEnd(one, end) for one in kinds for end in ends]
        self._is_compiled = compiled and dtype == "float32"

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
        shape = None
        if self._is_compiled:
            with contextlib.suppress(ValueError):  # larger ones are searched in the graph
                shape = compiled_shape(*source.shape, settings, self.config)
        model = self._models[is_forced if shape is None else 2 + is_forced]
        found = search_model(model, source, settings, shape=shape)
        rows = zip(found.token_ids[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True)
        ids = [until(row[:size], model.config.end_token_id) for row, size in rows]
        return list(zip(ids, found.scores[:, 0].tolist(), strict=True))


class WithEnd:
    """A model with another end token."""

    def __init__(self, model, end_token_id):
        self.config = types.SimpleNamespace(**vars(model.config) | {"end_token_id": end_token_id})
        self.init_cache, self.decode_step = model.init_cache, model.decode_step
        self.weights = getattr(model, "weights", [])


def padded(sentences, pad_token_id):
    """Pads lists of token ids to one int32 array `(B, S)`."""
    return keras.utils.pad_sequences(sentences, padding="post", value=pad_token_id)
