"""One block of the decoder: masked self-attention, encoder-decoder attention, feed-forward network.

Paper, section 3.1, right half of figure 1.
"""

import keras

from keras_transformer.layers.arguments import require_mask
from keras_transformer.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(TransformerBlock):
    """Lets every target position look back, then at the source, then transforms each on its own.

    `x = residual(x, causal self_attention)`, `x = residual(x, encoder_attention)`,
    `x = residual(x, feed_forward)`. Letters: B batch, T target length, S source length, N heads,
    D the width of the input and of the output.

    Args:
        num_heads: int. Number of attention heads.
        key_dim: int. Width of each head's queries and keys.
        intermediate_dim: int. Width of the feed-forward network's hidden layer.
        value_dim: int. Width of each head's values. Defaults to `key_dim`.
        dropout: float in [0, 1). Dropout of each sub-layer's output. Defaults to `0.1`.
        attention_dropout: float in [0, 1). Dropout of the attention scores. Defaults to `0.0`.
        activation_dropout: float in [0, 1). Dropout inside the feed-forward network. Defaults to
            `0.0`.
        activation: name or callable. The feed-forward network's. Defaults to `"relu"`.
        normalize_first: bool. Pre-norm instead of the paper's post-norm. Defaults to `False`.
        layer_norm_epsilon: float. Defaults to `1e-6`.
        use_bias: bool. Whether the projections add a bias. Defaults to `True`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        encoder_output: float tensor `(B, S, D')`. Not needed with a `cache`.
        attention_mask: bool tensor `(B, T, T)` or `(B, 1, T)`, beside the causal mask. With a
            `cache` it covers cached and new positions. Optional.
        encoder_attention_mask: bool tensor `(B, T, S)` or `(B, 1, S)`. Optional. A padding mask
            `(B, S)` goes in as `mask[:, None, :]`, here and above.
        use_causal_mask: bool. `False` if `attention_mask` says all, as where the positions are
            rival next tokens. Defaults to `True`.
        return_attention_scores: bool. Defaults to `False`.
        cache: from `init_cache` or the call before: then `inputs` are only the new positions.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` and with `cache` a tuple
        `(outputs[, scores][, cache])`, where scores are
        `{"self": (B, N, T, T), "encoder": (B, N, T, S)}`, float32.

    Raises:
        ValueError: if neither `encoder_output` nor `cache` is given, or a mask has not 3 axes.

    Masking: self-attention is causal. Implicit Keras masks of `inputs` and `encoder_output`
        are honoured beside the arguments.
    Precision: softmax and layer-norm statistics are always float32.
    Departures from the paper: the attention projections have biases; see `MultiHeadAttention`.

    Example:

    >>> block = keras_transformer.layers.DecoderBlock(num_heads=2, key_dim=4, intermediate_dim=32)
    >>> tuple(block(np.zeros((3, 5, 8)), np.zeros((3, 7, 8))).shape)
    (3, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    def __init__(self, num_heads, key_dim, intermediate_dim, **kwargs):
        super().__init__(num_heads, key_dim, intermediate_dim, **kwargs)
        self.encoder_attention = self._attention("encoder_attention")
        self.encoder_attention_residual = self._residual("encoder_attention_residual")

    def build(self, inputs_shape, encoder_output_shape):
        super().build(inputs_shape)
        self.encoder_attention.build(inputs_shape, encoder_output_shape)
        self.encoder_attention_residual.build(inputs_shape)

    def init_cache(self, encoder_output):
        """Returns the cache before the first target position.

        Args:
            encoder_output: float tensor `(B, S, D')`.

        Returns:
            dict: `"self"`, the empty keys and values of self-attention, and `"encoder"`, those of
            encoder-decoder attention, computed here once. Each is a dict `"key"`, `"value"` of
            `(B, N, length, width)` tensors.
        """
        batch_size = encoder_output.shape[0] or keras.ops.shape(encoder_output)[0]
        return {
            "self": self.self_attention.init_cache(batch_size),
            "encoder": self.encoder_attention.make_cache(encoder_output),
        }

    def call(
        self,
        inputs,
        encoder_output=None,
        attention_mask=None,
        encoder_attention_mask=None,
        use_causal_mask=True,
        return_attention_scores=False,
        cache=None,
        training=None,
    ):
        if cache is None and encoder_output is None:
            raise ValueError(
                "`encoder_output` or `cache` must be given. "
                "Received: encoder_output=None, cache=None"
            )
        require_mask("BTS", encoder_attention_mask=encoder_attention_mask)
        cache_given = cache is not None

        def attend(x):
            return self.self_attention(
                query=x,
                value=x,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=True,
                cache=cache["self"] if cache_given else None,
                training=training,
            )

        def attend_to_encoder(x):
            return self.encoder_attention(
                query=x,
                value=None if cache_given else encoder_output,
                attention_mask=encoder_attention_mask,
                return_attention_scores=True,
                cache=cache["encoder"] if cache_given else None,
                training=training,
            )

        x, scores, *grown = self.self_attention_residual(inputs, sublayer=attend, training=training)
        x, encoder_scores, *same = self.encoder_attention_residual(
            x, sublayer=attend_to_encoder, training=training
        )
        x = self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)
        extras = ({"self": scores, "encoder": encoder_scores},) * return_attention_scores
        if cache_given:
            extras += ({"self": grown[0], "encoder": same[0]},)
        return (x, *extras) if extras else x
