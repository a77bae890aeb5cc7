"""One block of the encoder: self-attention, then the feed-forward network.

Paper, section 3.1, left half of figure 1.
"""

import keras

from keras_transformer.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(TransformerBlock):
    """Lets every source position look at all others, then transforms each on its own.

    `x = residual(x, self_attention)`, `x = residual(x, feed_forward)`. Letters: B batch, S source
    length, N heads, D the width of the input and of the output.

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
        inputs: float tensor `(B, S, D)`.
        attention_mask: bool tensor `(B, S, S)` or `(B, 1, S)`, `True` = may attend. A padding mask
            `(B, S)` goes in as `mask[:, None, :]`. Optional.
        return_attention_scores: bool. Defaults to `False`.
        training: bool. Dropout is active only if `True`.
        use_causal_mask: bool. Also hide what comes after each position. Defaults to `False`.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores`, a pair with the scores, float32
        `(B, N, S, S)`.

    Raises:
        ValueError: if `attention_mask` has not 3 axes.

    Masking: an implicit Keras mask of `inputs` is honoured beside `attention_mask`, and passed on.
    Precision: softmax and layer-norm statistics are always float32.
    Departures from the paper: the attention projections have biases; see `MultiHeadAttention`.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=2, key_dim=4, intermediate_dim=32)
    >>> tuple(block(np.zeros((3, 5, 8))).shape)
    (3, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    def call(
        self,
        inputs,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        def attend(x):
            return self.self_attention(
                query=x,
                value=x,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=True,
                training=training,
            )

        x, scores = self.self_attention_residual(inputs, sublayer=attend, training=training)
        x = self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)
        return (x, scores) if return_attention_scores else x
