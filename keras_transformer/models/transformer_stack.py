"""What encoder and decoder have in common: an embedding, dropout, blocks, a final norm if pre-norm.

Paper, sections 3.1 and 5.4.
"""

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.models.config import TransformerConfig


class TransformerStack(keras.layers.Layer):
    """Embedded tokens through `num_blocks` blocks; base of both stacks.

    Args:
        config: `TransformerConfig`.
        embedding: `PositionalEmbedding`. Both stacks hold the same one if it is shared.
    """

    block_class = None

    def __init__(self, config, embedding, num_blocks, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.embedding = embedding
        self.dropout_layer = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        self.blocks = [
            self.block_class(
                num_heads=config.num_heads,
                key_dim=config.key_dim,
                intermediate_dim=config.intermediate_dim,
                value_dim=config.value_dim,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                activation_dropout=config.activation_dropout,
                activation=config.activation,
                normalize_first=config.normalize_first,
                layer_norm_epsilon=config.layer_norm_epsilon,
                use_bias=config.use_bias,
                dtype=self.dtype_policy,
                name=f"block_{index}",
            )
            for index in range(num_blocks)
        ]
        if config.normalize_first:
            self.layer_norm = keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
            )

    def _build(self, *block_shapes):
        if not self.embedding.built:
            self.embedding.build()
        self.dropout_layer.build()
        for block in self.blocks:
            block.build(*block_shapes)
        if self.config.normalize_first:
            self.layer_norm.build(block_shapes[0])

    def compute_output_spec(self, token_ids, *args, **kwargs):
        if any(kwargs.get(name) for name in ("return_attention_scores", "cache")):
            return super().compute_output_spec(token_ids, *args, **kwargs)
        # Stated, not traced: a trace has a made-up length, which may exceed the learned positions.
        shape = (*token_ids.shape, self.config.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _embed(self, token_ids, start_index=0, training=None):
        embedded = self.embedding(token_ids, start_index=start_index)
        return self.dropout_layer(embedded, training=training)

    def _normalize(self, outputs):
        return self.layer_norm(outputs) if self.config.normalize_first else outputs

    def get_config(self):
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
        }

    @classmethod
    def from_config(cls, config):
        return cls(
            TransformerConfig.from_dict(config.pop("config")),
            keras.saving.deserialize_keras_object(config.pop("embedding")),
            **config,
        )
