"""Base class of the encoder block and the decoder block: arguments and shared sub-layers.

Paper, section 3.1.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from keras_transformer.layers.arguments import arguments_of, require_positive
from keras_transformer.layers.composite_layer import CompositeLayer, part_seed
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.residual import Residual


class TransformerBlock(CompositeLayer):
    """Self-attention and a feed-forward network, each with a residual connection.

    Args: see `EncoderBlock` and `DecoderBlock`.
    """

    self_attention_class: ClassVar[type[keras.layers.Layer]] = MultiHeadAttention

    def __init__(
        self,
        *,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str | Callable = "relu",
        normalize_first: bool = False,
        layer_norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        attention_gain: float = 1.0,
        max_relative_position: int | None = None,
        **kwargs: Any,
    ) -> None:
        activity_regularizer = kwargs.pop("activity_regularizer", None)
        super().__init__(use_bias, **kwargs)
        # Not passed to the projections: it applies to the output of the block.
        self.activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.num_heads = require_positive(num_heads=num_heads)
        self.intermediate_dim = require_positive(intermediate_dim=intermediate_dim)
        self.key_dim = require_positive(optional=True, key_dim=key_dim)
        self.value_dim = require_positive(optional=True, value_dim=value_dim)
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_gain = attention_gain
        self.max_relative_position = max_relative_position
        self.self_attention = self._attention(
            self.self_attention_class,
            "self_attention",
            max_relative_position=max_relative_position,
        )
        self.self_attention_residual = self._residual("self_attention_residual")
        self.feed_forward = self._part(
            FeedForward,
            "feed_forward",
            self.intermediate_dim,
            activation=activation,
            dropout=activation_dropout,
        )
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _build(self, inputs_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual.build(inputs_shape)

    def _attend_to_itself(self, inputs, training, **options):
        """Applies self-attention and its residual connection.

        Returns:
            outputs, attention scores and, if `options` has a `cache`, the new cache.
        """
        x = self.self_attention_residual.sublayer_input(inputs)
        attended, *scores_and_cache = self.self_attention(
            query=x, value=x, return_attention_scores=True, training=training, **options
        )
        outputs = self.self_attention_residual(inputs, attended, training=training)
        return outputs, *scores_and_cache

    def _feed(self, inputs, training):
        """Applies the feed-forward network and its residual connection."""
        x = self.feed_forward_residual.sublayer_input(inputs)
        hidden = self.feed_forward(x, training=training)
        return self.feed_forward_residual(inputs, hidden, training=training)

    def _attention(self, attention_class, name, **options):
        return self._part(
            attention_class,
            name,
            self.num_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            gain=self.attention_gain,
            **options,
        )

    def _residual(self, name):
        return Residual(
            dropout=self.dropout,
            normalize_first=self.normalize_first,
            layer_norm_epsilon=self.layer_norm_epsilon,
            seed=part_seed(self.seed, name),
            **self._shared(name),
        )

    def get_config(self) -> dict[str, Any]:
        serialized = {
            "activation": keras.activations.serialize(self.activation),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
        }
        return {**super().get_config(), **arguments_of(TransformerBlock, self), **serialized}
