"""The encoder: source tokens to one state per position.

Paper, section 3.1, left half of figure 1.
"""

import keras

from keras_transformer.layers.encoder_block import EncoderBlock
from keras_transformer.models.transformer_stack import TransformerStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerEncoder(TransformerStack):
    """Embeds source tokens and passes them through `num_encoder_layers` encoder blocks.

    Letters: B batch, S source length, N heads, D `hidden_dim`.

    Args:
        config: `TransformerConfig`.
        embedding: `PositionalEmbedding` of the source tokens.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, S)`.
        padding_mask: bool tensor `(B, S)`, `True` = real token. Optional.
        return_attention_scores: bool. Defaults to `False`.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores`, a pair with a list of one float32
        `(B, N, S, S)` per block.

    Masking: padding is never attended to; the states at padded positions mean nothing.
    Departures from the paper: with `normalize_first`, a layer normalisation ends the stack.

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

    def __init__(self, config, embedding, **kwargs):
        super().__init__(config, embedding, config.num_encoder_layers, **kwargs)

    def build(self, token_ids_shape):
        self._build((*token_ids_shape, self.config.hidden_dim))

    def call(self, token_ids, padding_mask=None, return_attention_scores=False, training=None):
        # (B, S) -> (B, 1, S): every query sees the same keys.
        attention_mask = None if padding_mask is None else padding_mask[:, None, :]
        x = self._embed(token_ids, training=training)
        all_scores = []
        for block in self.blocks:
            x, scores = block(
                x, attention_mask=attention_mask, return_attention_scores=True, training=training
            )
            all_scores.append(scores)
        x = self._normalize(x)
        return (x, all_scores) if return_attention_scores else x
