"""The same encoder-decoder with other layers in place of self-attention, at equal parameters.

Embeddings, encoder-decoder attention, residual connections, loss, training step and search are the
package's.
"""

import keras

import keras_transformer as kt
from keras_transformer import layers
from layer_types.mixers import (
    AdditiveAttention,
    BidirectionalLSTM,
    CausalConvolution,
    CausalLSTM,
    Convolution,
    UnscaledAttention,
)


def exchange(name, encoder, decoder, encoder_decoder=layers.MultiHeadAttention):
    """Returns a subclass of `Transformer` with other sub-layers.

    Args:
        name: string, the beginning of the names of the new classes.
        encoder, decoder: layer classes in place of self-attention.
        encoder_decoder: layer class in place of encoder-decoder attention.
    """

    def subclass(base, **attributes):
        new = type(f"{name}{base.__name__}", (base,), attributes)
        return keras.saving.register_keras_serializable(package="layer_types")(new)

    encoder_block = subclass(layers.EncoderBlock, self_attention_class=encoder)
    decoder_block = subclass(
        layers.DecoderBlock, self_attention_class=decoder, encoder_attention_class=encoder_decoder
    )
    return subclass(
        kt.Transformer,
        encoder_class=subclass(kt.models.TransformerEncoder, block_class=encoder_block),
        decoder_class=subclass(kt.models.TransformerDecoder, block_class=decoder_block),
    )


def with_scores(name, attention):
    """Returns a Transformer whose attention layers are all of one class."""
    return exchange(name, attention, attention, attention)


# The layers of the paper's Table 1.
LAYER_TYPES = {
    "self-attention": kt.Transformer,
    "recurrent": exchange("Recurrent", BidirectionalLSTM, CausalLSTM, AdditiveAttention),
    "convolutional": exchange("Convolutional", Convolution, CausalConvolution),
}
# The scores of the paper's section 3.2.1.
SCORES = {
    "scaled": kt.Transformer,
    "unscaled": with_scores("Unscaled", UnscaledAttention),
    "additive": with_scores("Additive", AdditiveAttention),
}
# The width of the feed-forward networks, in widths of the model, that makes the parameters equal.
# In units of D^2, a pair of blocks has: attention 4 + 2 * 4, LSTMs 6 + 8 + 4, convolutions
# 6 + 6 + 4; and two feed-forward networks of 2 * width.
FEED_FORWARD = {"self-attention": 2, "recurrent": 0.5, "convolutional": 1}


def make_model(layer_type, vocabulary_size, hidden_dim=128, **fields):
    """Returns a model of `LAYER_TYPES`, with as many parameters as the others of these sizes."""
    width = int(FEED_FORWARD[layer_type] * hidden_dim)
    return LAYER_TYPES[layer_type](
        vocabulary_size=vocabulary_size, hidden_dim=hidden_dim, intermediate_dim=width, **fields
    )
