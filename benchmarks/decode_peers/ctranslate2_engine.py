"""CTranslate2, an engine in C++, with our weights.

It takes and returns token strings, so its time includes their look-up, and the conversion from and
to ids. Its length penalty is n ** alpha, and n counts the end token, whether or not the
end token is returned (4.8.5). It stops at `beam_size` finished hypotheses.
Free-running, it has one maximum length for the batch.
"""

import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import Activation, TransformerSpec

import keras_transformer as kt
from decode_peers import longest

# Number of positions in the file: CTranslate2 reads a table and has no formula.
POSITIONS = 1024


class CTranslate2:
    def __init__(self, model, compute_type, threads):
        self.name = f"CTranslate2 {compute_type}"
        with tempfile.TemporaryDirectory() as folder:
            convert(model, folder)
            self.translator = ctranslate2.Translator(
                folder, compute_type=compute_type, intra_threads=threads, inter_threads=1
            )

    def decode(self, sentences, beam_size, length=None):
        options = {
            "length_penalty": 0.6,
            "min_decoding_length": length or 1,
            "max_decoding_length": length or max(longest(sentence) for sentence in sentences),
        }
        results = self._translate(sentences, beam_size, **options)
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    def scored(self, sentences, beam_size, max_length, alpha):
        """Returns the best hypothesis of each sentence, without its end token, and its score.

        An empty hypothesis is allowed; by default CTranslate2 forbids it.
        """
        options = {
            "length_penalty": alpha,
            "min_decoding_length": 0,
            "max_decoding_length": max_length,
            "return_scores": True,
        }
        results = self._translate(sentences, beam_size, **options)
        return [([int(token) for token in r.hypotheses[0]], r.scores[0]) for r in results]

    def _translate(self, sentences, beam_size, **options):
        return self.translator.translate_batch(
            [[str(token_id) for token_id in sentence] for sentence in sentences],
            beam_size=beam_size,
            max_batch_size=0,
            max_input_length=0,  # the default cuts longer sentences without a message
            **options,
        )


def convert(model, folder):
    """Writes a `Transformer` as a CTranslate2 model whose token strings are the token ids.

    Raises:
        ValueError: if the model has options that this conversion does not support.
    """
    config = model.config
    if (config.tie_embeddings, config.activation, config.use_bias) != ("all", "relu", True):
        raise ValueError(
            "The model must have tied embeddings, ReLU and biases. Received: "
            f"tie_embeddings={config.tie_embeddings!r}, activation={config.activation!r}, "
            f"use_bias={config.use_bias}"
        )
    spec = TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.normalize_first,
        activation=Activation.RELU,
    )
    embedding = model.encoder.embedding
    matrix = np.array(embedding.embeddings)
    spec.encoder.embeddings[0].weight = matrix
    spec.decoder.embeddings.weight = matrix
    spec.decoder.projection.weight = matrix
    positions = np.array(embedding.encode_positions(np.arange(POSITIONS)))
    for stack, ours in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        stack.position_encodings.encodings = positions
        for layer, block in zip(stack.layer, ours.blocks, strict=True):
            _copy_block(layer, block)
        if config.normalize_first:
            _copy_norm(stack.layer_norm, ours.layer_norm)

    tokens = [str(token_id) for token_id in range(config.vocabulary_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = tokens[config.start_token_id]
    spec.config.eos_token = tokens[config.end_token_id]
    spec.config.unk_token = tokens[config.unk_token_id]
    spec.config.add_source_eos = False  # the sentences have an end token
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.validate()
    spec.optimize()
    spec.save(folder)


def _copy_block(layer, block):
    attention = block.self_attention
    fused, output = layer.self_attention.linear
    _copy_dense(fused, attention.query_dense, attention.key_dense, attention.value_dense)
    _copy_dense(output, attention.output_dense)
    _copy_norm(layer.self_attention.layer_norm, block.self_attention_residual.layer_norm)
    if isinstance(block, kt.layers.DecoderBlock):
        attention = block.encoder_attention
        query, fused, output = layer.attention.linear
        _copy_dense(query, attention.query_dense)
        _copy_dense(fused, attention.key_dense, attention.value_dense)
        _copy_dense(output, attention.output_dense)
        _copy_norm(layer.attention.layer_norm, block.encoder_attention_residual.layer_norm)
    _copy_dense(layer.ffn.linear_0, block.feed_forward.intermediate)
    _copy_dense(layer.ffn.linear_1, block.feed_forward.output_dense)
    _copy_norm(layer.ffn.layer_norm, block.feed_forward_residual.layer_norm)


def _copy_dense(linear, *layers):
    """Copies dense layers: Keras kernels are (in, out), CTranslate2's are (out, in)."""
    linear.weight = np.concatenate([np.array(layer.kernel).T for layer in layers])
    linear.bias = np.concatenate([np.array(layer.bias) for layer in layers])


def _copy_norm(norm, layer):
    norm.gamma, norm.beta = np.array(layer.gamma), np.array(layer.beta)
