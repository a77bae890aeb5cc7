"""The encoder maps source tokens to one hidden state per position.

Paper, section 3.1, left half of figure 1.
"""

from typing import Any

import keras

from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.models.transformer_stack import TransformerStack
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerEncoder(TransformerStack):
    """Embeds source tokens and applies `num_encoder_layers` encoder blocks.

    Letters: B batch, S source length, N heads, D `hidden_dim`.

    Args:
        config: sizes and options.
        embedding: embeds the source tokens. The decoder may share it.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, S)`.
        padding_mask: bool tensor `(B, S)`, `True` = real token. Optional.
        return_attention_scores: defaults to `False`.
        training: dropout is active only if `True`.

    Returns:
        float tensor `(B, S, D)`. With `return_attention_scores`, a pair: this tensor, and a list of
        the scores of each block, float32 `(B, N, S, S)`.

    Raises:
        ValueError: if an argument has another number of axes, or `padding_mask` holds floats.

    Masking: padding is masked; ignore the states at padded positions.
    Departures from the paper: with `normalize_first`, the stack ends with a layer normalisation.

    Example:

    >>> config = keras_transformer.TransformerConfig.tiny(vocabulary_size=50)
    >>> embedding = keras_transformer.layers.PositionalEmbedding(50, config.hidden_dim)
    >>> encoder = TransformerEncoder(config, embedding)
    >>> tuple(encoder(np.array([[5, 6, 7, 2]])).shape)
    (1, 4, 128)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    block_class = EncoderBlock
    num_blocks_field = "num_encoder_layers"

    def build(self, token_ids_shape: Shape) -> None:
        self._build((*token_ids_shape, self.config.hidden_dim))

    def call(
        self,
        token_ids: Tensor,
        padding_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        padding_mask = self._checked_mask(token_ids, padding_mask=padding_mask)
        # (B, S) -> (B, 1, S): the same mask for every query.
        attention_mask = None if padding_mask is None else padding_mask[:, None, :]
        x = self._embed(token_ids, training=training)
        all_scores: list[Tensor] = []
        # An `activity_regularizer` of the block counts all that the block returns.
        for block in self.blocks:
            outputs = block(
                x,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            x, *scores = outputs if return_attention_scores else [outputs]
            all_scores.extend(scores)
        x = self._normalize(x)
        return (x, all_scores) if return_attention_scores else x
