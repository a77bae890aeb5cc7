"""What the encoder's and the decoder's blocks have in common: arguments and sub-layers.

Paper, section 3.1.
"""

import keras

from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.residual import Residual


class TransformerBlock(keras.layers.Layer):
    """Self-attention and feed-forward network, each in its residual; base of both blocks.

    Args: those of `EncoderBlock` and `DecoderBlock`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        intermediate_dim,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        use_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.intermediate_dim = intermediate_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.self_attention = self._attention("self_attention")
        self.self_attention_residual = self._residual("self_attention_residual")
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            dropout=activation_dropout,
            use_bias=use_bias,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def build(self, inputs_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual.build(inputs_shape)

    def _attention(self, name):
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            dtype=self.dtype_policy,
            name=name,
        )

    def _residual(self, name):
        return Residual(
            dropout=self.dropout,
            normalize_first=self.normalize_first,
            layer_norm_epsilon=self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "intermediate_dim": self.intermediate_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": keras.activations.serialize(self.activation),
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "use_bias": self.use_bias,
        }
