"""The decoder maps target tokens and encoder states to one hidden state per position.

Training and decoding steps run the same `call`. Paper, section 3.1, right half of figure 1.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.arguments import as_mask
from keras_transformer.layers.caches import FixedAncestors, GrowingAncestors
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.models.transformer_stack import TransformerStack
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerDecoder(TransformerStack):
    """Embeds target tokens and applies `num_decoder_layers` decoder blocks.

    Letters: B batch, T target length, S source length, W beam slots, N heads, D `hidden_dim`.

    Args:
        config: sizes and options.
        embedding: embeds the target tokens. The encoder may share it.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, T)`, all target tokens. With `cache`, the new tokens only. With
            `parents`, `(B, W)`: the new token of each hypothesis.
        encoder_output: float tensor `(B, S, D)`. Not needed with `cache`.
        encoder_padding_mask: bool tensor `(B, S)`, `True` = real token. Optional. Not used with
            `cache`, which holds the mask given to `init_cache`.
        cache: from `init_cache` or the previous call. Optional.
        parents: int tensor `(B, W)`, only with `cache`. Hypothesis `w` of sentence `b` extends the
            hypothesis that had beam slot `parents[b, w]` in the previous call; 0 in the first
            call. Optional.
        start_index: int or int tensor, the number of earlier tokens. Defaults to `0`.
        return_attention_scores: defaults to `False`.
        training: dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores`, `cache` or both, a tuple
        `(outputs[, scores][, cache])`, where scores are a list with one dict per block,
        `{"self": (B, N, T, T), "encoder": (B, N, T, S)}`.

    Raises:
        ValueError: if an argument has another number of axes, or `encoder_padding_mask` holds
            floats.

    Masking: self-attention is causal, so padding must be on the right; source padding is masked.
    Departures from the paper: with `normalize_first`, the stack ends with a layer normalisation.

    Example:

    >>> config = keras_transformer.TransformerConfig.tiny(vocabulary_size=50)
    >>> embedding = keras_transformer.layers.PositionalEmbedding(50, config.hidden_dim)
    >>> decoder = TransformerDecoder(config, embedding)
    >>> tuple(decoder(np.array([[1, 6, 7]]), np.zeros((1, 4, 128))).shape)
    (1, 3, 128)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    block_class = DecoderBlock
    num_blocks_field = "num_decoder_layers"

    def build(self, token_ids_shape: Shape, encoder_output_shape: Shape) -> None:
        self._build((*token_ids_shape, self.config.hidden_dim), encoder_output_shape)

    def init_cache(
        self,
        encoder_output: Tensor,
        encoder_padding_mask: Tensor | None = None,
        max_length: int | None = None,
        beam_size: int = 1,
    ) -> Cache:
        """Returns the cache before the first target token.

        Args:
            encoder_output: float tensor `(B, S, D)`.
            encoder_padding_mask: bool tensor `(B, S)`. Optional.
            max_length: int. The cache then has room for this number of target tokens from the
                start, and its shapes do not change. A step beyond it gives wrong states, on PyTorch
                an error. Defaults to a cache that grows.
            beam_size: int, `W`, the number of hypotheses of each sentence. Needed with
                `max_length` only. Defaults to `1`.

        Returns:
            dict: `"blocks"`, a list of each block's cache; `"encoder_padding_mask"`; and
            `"ancestors"`, `GrowingAncestors` or, with `max_length`, `FixedAncestors`. The batch
            is the first axis of every tensor, except of the scalars `index` of fixed caches.
        """
        encoder_padding_mask = as_mask("BS", encoder_padding_mask=encoder_padding_mask)
        batch_size = shape_of(encoder_output)[0]
        # Each step adds W positions: one token of each hypothesis.
        length = None if max_length is None else beam_size * max_length
        mask = ops.zeros((batch_size, beam_size, length or 0), dtype="bool")
        if length is None:
            ancestors: GrowingAncestors | FixedAncestors = GrowingAncestors(mask)
        else:
            ancestors = FixedAncestors(mask, ops.zeros((), "int32"))
        return {
            "blocks": [block.init_cache(encoder_output, length) for block in self.blocks],
            "encoder_padding_mask": encoder_padding_mask,
            "ancestors": ancestors,
        }

    def call(
        self,
        token_ids: Tensor,
        encoder_output: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        cache: Cache | None = None,
        parents: Tensor | None = None,
        start_index: int | Tensor = 0,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        encoder_padding_mask = self._checked_mask(
            token_ids, encoder_output, encoder_padding_mask=encoder_padding_mask
        )
        ancestors: Any = None
        if parents is not None and cache is None:
            raise ValueError("`parents` needs `cache`. Received: cache=None")
        if cache is not None:
            encoder_padding_mask, ancestors = cache["encoder_padding_mask"], cache["ancestors"]
        encoder_attention_mask = None
        if encoder_padding_mask is not None:
            # (B, S) -> (B, 1, S): the same mask for every query.
            encoder_attention_mask = encoder_padding_mask[:, None, :]
        if parents is None:
            x = self._embed(token_ids, start_index, training=training)
        else:
            ancestors = ancestors.extended(parents)
            # The hypotheses' tokens have the same position: (B, W) -> (B * W, 1) -> (B, W, D)
            x = self._embed(ops.reshape(token_ids, (-1, 1)), start_index)
            x = ops.reshape(x, (*shape_of(token_ids), self.config.hidden_dim))
        all_scores: list[Tensor] = []
        block_caches: list[Any] = []
        # An `activity_regularizer` of the block counts all that the block returns.
        has_scores = return_attention_scores or cache is not None
        for index, block in enumerate(self.blocks):
            outputs = block(
                x,
                encoder_output,
                attention_mask=None if parents is None else ancestors.mask,
                encoder_attention_mask=encoder_attention_mask,
                use_causal_mask=parents is None,
                return_attention_scores=has_scores,
                cache=None if cache is None else cache["blocks"][index],
                training=training,
            )
            x, *others = outputs if has_scores else [outputs]  # scores, then cache
            all_scores.extend(others[:1])
            block_caches.extend(others[1:])
        x = self._normalize(x)
        if cache is None:
            return (x, all_scores) if return_attention_scores else x
        new_cache = {**cache, "blocks": block_caches, "ancestors": ancestors}
        return (x, all_scores, new_cache) if return_attention_scores else (x, new_cache)
