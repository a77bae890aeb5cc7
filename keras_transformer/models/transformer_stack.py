"""Base class of encoder and decoder: embedding, dropout, blocks; with pre-norm, a layer norm.

Paper, sections 3.1 and 5.4.
"""

import inspect
from typing import Any, ClassVar, Self

import keras

from keras_transformer.layers.arguments import arguments_of, as_mask, require_axes
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.parts import PartsInConfig
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.layers.transformer_block import TransformerBlock
from keras_transformer.models.config import TransformerConfig

# Arguments of `call` in encoder and decoder whose shapes are checked.
INPUTS = "token_ids", "encoder_output", "padding_mask", "encoder_padding_mask"


class TransformerStack(PartsInConfig):
    """Embeds tokens and applies the blocks. Subclasses set `block_class`, `num_blocks_field`.

    Args:
        config: sizes and options.
        embedding: embeds the tokens. Encoder and decoder share one instance if embeddings are tied.
    """

    block_class: ClassVar[type[TransformerBlock]]
    num_blocks_field: ClassVar[str]

    def __init__(
        self, config: TransformerConfig, embedding: PositionalEmbedding, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.embedding = embedding
        self.dropout_layer = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        arguments = arguments_of(TransformerBlock, config)
        shared = {"trainable": self.trainable, "dtype": self.dtype_policy}
        self.blocks = [
            self.block_class(**arguments, **shared, name=f"block_{index}")
            for index in range(getattr(config, self.num_blocks_field))
        ]
        if config.normalize_first:
            self.layer_norm = LayerNormalization(
                epsilon=config.layer_norm_epsilon, **shared, name="layer_norm"
            )

    def _build(self, *block_shapes):
        if not self.embedding.built:
            self.embedding.build()
        self.dropout_layer.build()
        for block in self.blocks:
            block.build(*block_shapes)
        if self.config.normalize_first:
            self.layer_norm.build(block_shapes[0])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(self.call).bind(*args, **kwargs).arguments
        if any(arguments.get(name) for name in ("return_attention_scores", "cache")):
            return super().compute_output_spec(*args, **kwargs)
        # Otherwise Keras traces `call`, which takes longer.
        self._checked_mask(**{name: arguments[name] for name in INPUTS if name in arguments})
        shape = (*arguments["token_ids"].shape, self.config.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _checked_mask(self, token_ids, encoder_output=None, **padding_mask):
        """Checks the inputs, and returns the padding mask as bool, or `None` without one.

        Args:
            **padding_mask: the mask under its argument name, which errors then name.
        """
        require_axes("BT", token_ids=token_ids)
        require_axes("BSD", encoder_output=encoder_output)
        return as_mask("BS", **padding_mask) if padding_mask else None

    def _embed(self, token_ids, start_index=0, training=None):
        embedded = self.embedding(token_ids, start_index=start_index)
        return self.dropout_layer(embedded, training=training)

    def _normalize(self, outputs):
        return self.layer_norm(outputs) if self.config.normalize_first else outputs

    def get_config(self) -> dict[str, Any]:
        # Keras marks an object as shared from the second time on, so serialise it twice.
        keras.saving.serialize_keras_object(self.embedding)
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        config = dict(config)
        config["config"] = TransformerConfig.from_dict(config["config"])
        config["embedding"] = keras.saving.deserialize_keras_object(config["embedding"])
        return super().from_config(config)

    def _parts(self):
        """All parts but the embedding: another stack may share it, and it has its own config."""
        left_out = {id(part) for part in (self.embedding, *self.embedding.weights)}
        parts = super()._parts()
        return {path: part for path, part in parts.items() if id(part) not in left_out}
