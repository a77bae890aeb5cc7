"""The Transformer's layers: plain Keras 3, on TensorFlow, JAX and PyTorch.

Each layer also works alone in any other Keras model. Paper, section 3.
"""

from keras_transformer.layers.attention import (
    PaddingMask,
    additive_attention,
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.layers.positional_encoding import PositionalEncoding, sinusoidal_encoding

__all__ = [
    "DecoderBlock",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "PaddingMask",
    "PositionalEmbedding",
    "PositionalEncoding",
    "additive_attention",
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]
