"""The decoder: target tokens and encoder states to one state per position.

The full pass of training and the single step of decoding share one `call`. Paper, section 3.1,
right half of figure 1.
"""

import keras
from keras import ops

from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.models.transformer_stack import TransformerStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerDecoder(TransformerStack):
    """Embeds target tokens and passes them through `num_decoder_layers` decoder blocks.

    Letters: B batch, T target length, S source length, N heads, D `hidden_dim`.

    Args:
        config: `TransformerConfig`.
        embedding: `PositionalEmbedding` of the target tokens.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, T)`: all target tokens; with `cache`, only the new ones; with
            `parents`, `(B, W)`, one new token of each of W rival hypotheses.
        encoder_output: float tensor `(B, S, D)`. Not needed with `cache`.
        encoder_padding_mask: bool tensor `(B, S)`, `True` = real token. Optional; with `cache`, the
            one given to `init_cache` is used.
        cache: from `init_cache` or the call before.
        parents: int tensor `(B, W)`, with `cache`: the hypothesis of the call before that each of
            these extends; in the first call 0. Optional.
        start_index: int or int tensor: how many tokens came before. Defaults to `0`.
        return_attention_scores: bool. Defaults to `False`.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` and with `cache` a tuple
        `(outputs[, scores][, cache])`, where scores are a list of one dict
        `{"self": (B, N, T, T), "encoder": (B, N, T, S)}` per block.

    Masking: a position sees itself and those before it, so padding must stand on the right; the
        source's padding is never attended to.
    Departures from the paper: with `normalize_first`, a layer normalisation ends the stack.

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

    def __init__(self, config, embedding, **kwargs):
        super().__init__(config, embedding, config.num_decoder_layers, **kwargs)

    def build(self, token_ids_shape, encoder_output_shape):
        self._build((*token_ids_shape, self.config.hidden_dim), encoder_output_shape)

    def init_cache(self, encoder_output, encoder_padding_mask=None):
        """Returns the cache before the first target token.

        Args:
            encoder_output: float tensor `(B, S, D)`.
            encoder_padding_mask: bool tensor `(B, S)`. Optional.

        Returns:
            dict: `"blocks"`, a list of each block's cache; `"encoder_padding_mask"`; and
            `"ancestors"`, bool `(B, W, length)`: which cached positions each of W rival hypotheses
            descends from. Every tensor in it has the sentences as its first axis.
        """
        return {
            "blocks": [block.init_cache(encoder_output) for block in self.blocks],
            "encoder_padding_mask": encoder_padding_mask,
            "ancestors": ops.zeros((ops.shape(encoder_output)[0], 1, 0), dtype="bool"),
        }

    def call(
        self,
        token_ids,
        encoder_output=None,
        encoder_padding_mask=None,
        cache=None,
        parents=None,
        start_index=0,
        return_attention_scores=False,
        training=None,
    ):
        ancestors = None
        if cache is not None:
            encoder_padding_mask, ancestors = cache["encoder_padding_mask"], cache["ancestors"]
        # (B, S) -> (B, 1, S): every query sees the same keys.
        mask = None if encoder_padding_mask is None else encoder_padding_mask[:, None, :]
        if parents is None:
            x = self._embed(token_ids, start_index, training=training)
        else:
            ancestors = _extend_ancestors(ancestors, parents)
            x = self._embed_rivals(token_ids, start_index)
        all_scores, caches = [], []
        for index, block in enumerate(self.blocks):
            x, scores, *grown = block(
                x,
                encoder_output,
                attention_mask=None if parents is None else ancestors,
                encoder_attention_mask=mask,
                use_causal_mask=parents is None,
                return_attention_scores=True,
                cache=None if cache is None else cache["blocks"][index],
                training=training,
            )
            all_scores.append(scores)
            caches.extend(grown)
        extras = (all_scores,) * return_attention_scores
        if cache is not None:
            cache = {"encoder_padding_mask": encoder_padding_mask, "ancestors": ancestors}
            extras += ({"blocks": caches, **cache},)
        x = self._normalize(x)
        return (x, *extras) if extras else x

    def _embed_rivals(self, token_ids, start_index):
        """Embeds `(B, W)` tokens that all stand at the same position."""
        # (B, W) -> (B * W, 1) -> (B, W, D)
        embedded = self._embed(ops.reshape(token_ids, (-1, 1)), start_index)
        return ops.reshape(embedded, (*ops.shape(token_ids), self.config.hidden_dim))


def _extend_ancestors(ancestors, parents):
    """Each hypothesis descends from what its parent descends from, and from its own new token."""
    rivals = ops.shape(parents)[1]
    # Which parent, as a matrix product: (B, W, W') @ (B, W', length) -> (B, W, length)
    of_parent = ops.one_hot(parents, ops.shape(ancestors)[1])
    inherited = ops.matmul(of_parent, ops.cast(ancestors, of_parent.dtype)) > 0
    own = ops.broadcast_to(ops.eye(rivals, dtype="bool"), (ops.shape(parents)[0], rivals, rivals))
    return ops.concatenate([inherited, own], axis=2)
