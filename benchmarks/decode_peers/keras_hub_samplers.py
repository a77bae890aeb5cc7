"""KerasHub's samplers with our model, used as in KerasHub's translation example.

`next` runs the whole model over the whole prompt for every token: KerasHub has no cache for a
custom encoder-decoder. Without stop tokens the samplers fill the prompt, which forces the length.
"""

import functools

import keras_hub
import tensorflow as tf

from decode_peers import longest, until
from decode_peers.ours import padded

# Some 50 seconds at 100 GFLOP/s per core.
MAX_OPERATIONS = 5e12


class KerasHub:
    name = "KerasHub"

    def __init__(self, model):
        self.model = model
        self.config = model.config
        self.parameters = model.count_params()
        self._generate = functools.cache(self._make_generate)

    def decode(self, sentences, beam_size, length=None):
        prompt_length = 1 + (length or max(longest(sentence) for sentence in sentences))
        source = padded(sentences, self.config.pad_token_id)
        prompts = self._generate(beam_size, length is None)(source, tf.constant(prompt_length))
        rows = prompts[:, 1:].numpy().tolist()
        if length is not None:
            return rows
        # Cut at the sentence's own maximum length, then at the end token if there is one.
        cut = (r[: longest(s)] for r, s in zip(rows, sentences, strict=True))
        return [until(row, self.config.end_token_id) for row in cut]

    def takes_minutes(self, sentences, beam_size, length):
        """Estimates the time of a decode: two operations per weight, token and step."""
        operations = 2 * self.parameters * sentences * beam_size * (length + 1) * length
        return operations > MAX_OPERATIONS

    def _make_generate(self, beam_size, stops):
        samplers = keras_hub.samplers
        sampler = samplers.BeamSampler(beam_size) if beam_size > 1 else samplers.GreedySampler()

        @tf.function(
            input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)]
        )
        def generate(source, prompt_length):
            sources = tf.repeat(source, beam_size, axis=0)

            def next_logits(prompt, cache, index):
                inputs = {"encoder_token_ids": sources, "decoder_token_ids": prompt}
                return self.model(inputs, training=False)[:, index - 1], None, cache

            sentences = tf.shape(source)[0]
            prompt = tf.concat(
                [
                    tf.fill([sentences, 1], self.config.start_token_id),
                    tf.fill([sentences, prompt_length - 1], self.config.pad_token_id),
                ],
                axis=1,
            )
            stop_token_ids = [self.config.end_token_id] if stops else None
            return sampler(next_logits, prompt, index=1, stop_token_ids=stop_token_ids)

        return generate
