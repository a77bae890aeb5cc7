"""Our search with our model, frozen as in `load_run`.

To force the length, the end token is an id outside the vocabulary, which costs nothing.
"""

import functools

import keras
import tensorflow as tf

from decode_peers import longest, until
from keras_transformer.decoding import StepOutput, beam_search, greedy_search
from keras_transformer.decoding.frozen import FrozenTransformer


class Ours:
    """Decodes with a frozen copy of `model` in `dtype`."""

    def __init__(self, model, dtype="float32"):
        self.name = f"ours {dtype}"
        self.config = model.config
        self.model = FrozenTransformer(model, dtype)
        self._search = functools.cache(self._make_search)

    def decode(self, sentences, beam_size, length=None):
        end_token_id = self.config.end_token_id if length is None else self.config.vocabulary_size
        result = self._search(beam_size, end_token_id)(
            padded(sentences, self.config.pad_token_id),
            tf.constant([length or longest(sentence) for sentence in sentences]),
        )
        rows = zip(result.token_ids[:, 0].numpy(), result.lengths[:, 0].numpy(), strict=True)
        return [until(row[:size].tolist(), end_token_id) for row, size in rows]

    def _make_search(self, beam_size, end_token_id):
        config = self.config
        many = beam_size > 1
        search = functools.partial(beam_search, beam_size=beam_size) if many else greedy_search

        def step(token_ids, parents, cache, index):
            parents = parents if many else None
            return StepOutput(*self.model.decode_step(token_ids, cache, index, parents=parents))

        ids, lengths = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)

        @tf.function(input_signature=[ids, lengths], autograph=False)
        def run(encoder_token_ids, max_lengths):
            return search(
                step,
                self.model.init_cache(encoder_token_ids),
                max_lengths,
                config.start_token_id,
                end_token_id,
                config.pad_token_id,
            )

        return run


def padded(sentences, pad_token_id):
    """Pads lists of token ids to one int32 tensor `(B, S)`."""
    ids = keras.utils.pad_sequences(sentences, padding="post", value=pad_token_id)
    return tf.constant(ids, tf.int32)
