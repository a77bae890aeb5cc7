"""One block of the encoder: self-attention, then the feed-forward network.

Paper, section 3.1, left half of figure 1.
"""

from typing import Any

import keras

from keras_transformer.layers.arguments import require_axes
from keras_transformer.layers.transformer_block import TransformerBlock
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(TransformerBlock):
    """Self-attention over all positions, then a feed-forward network at each position.

    `x = residual(x, self_attention)`, `x = residual(x, feed_forward)`. Letters: B batch, S source
    length, N heads, D the width of the input and of the output.

    Args:
        num_heads: number of attention heads.
        intermediate_dim: width of the feed-forward network's hidden layer.
        key_dim: width of each head's queries and keys. Defaults to `D // num_heads`.
        value_dim: width of each head's values. Defaults to `key_dim`.
        dropout: dropout rate of each sub-layer's output, in [0, 1). Defaults to `0.1`, the
            paper's; KerasHub's is 0.
        attention_dropout: dropout rate of the attention scores. Defaults to `0.0`, the paper's;
            KerasHub uses `dropout` here too.
        activation_dropout: dropout rate inside the feed-forward network. Defaults to `0.0`.
        activation: name or callable, of the feed-forward network. Defaults to `"relu"`.
        normalize_first: pre-norm instead of the paper's post-norm. Defaults to `False`.
        layer_norm_epsilon: added to the variance. Defaults to `1e-6`; KerasHub's is `1e-5`.
        use_bias: whether the projections add a bias. Defaults to `True`.
        attention_gain: factor on the initial kernels of query, key and value. Defaults to `1.0`.
        max_relative_position: of self-attention, as in `MultiHeadAttention`. Defaults to none.
        **kwargs: `kernel_initializer`, `bias_initializer`, `kernel_regularizer`,
            `bias_regularizer`, `kernel_constraint`, `bias_constraint` of every projection and
            `seed` of every dropout, which mean the same as in `MultiHeadAttention`;
            `activity_regularizer` of the block's outputs, as in KerasHub; and
            `keras.layers.Layer` arguments such as `name` and `dtype`.

    Attributes:
        self_attention_class: class of the sub-layer, `MultiHeadAttention`. A subclass of the block
            may set another one, which must accept the same arguments, also in calls:

                @keras.saving.register_keras_serializable()
                class MyBlock(EncoderBlock):
                    self_attention_class = MyAttention  # has another `attend`, for example

    Call arguments:
        inputs: float tensor `(B, S, D)`.
        attention_mask: bool tensor `(B, S, S)` or `(B, 1, S)`, `True` = may attend. Pass a padding
            mask `(B, S)` as `mask[:, None, :]`. Optional.
        return_attention_scores: defaults to `False`.
        training: dropout is active only if `True`.
        use_causal_mask: whether to also mask the positions after each position. Defaults to
            `False`.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores`, a pair with the scores, float32
        `(B, N, S, S)`.

    Raises:
        ValueError: if `num_heads` does not divide D and `key_dim` is not given, `inputs` or
            `attention_mask` does not have 3 axes, or `attention_mask` holds floats.

    Masking: an implicit Keras mask of `inputs` applies in addition to `attention_mask` (in
        KerasHub, an explicit mask replaces it), and is propagated to the output. KerasHub's
        `padding_mask` is `attention_mask=padding_mask[:, None, :]`.
    Precision: softmax and layer-norm statistics are always float32.
    Departures from the paper: the attention projections have biases; see `MultiHeadAttention`.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=2, intermediate_dim=32)
    >>> tuple(block(np.zeros((3, 5, 8))).shape)
    (3, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    def build(self, inputs_shape: Shape) -> None:
        self._build(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Any, ...]:
        require_axes("BSD", inputs=inputs)
        x, scores = self._attend_to_itself(
            inputs, training, attention_mask=attention_mask, use_causal_mask=use_causal_mask
        )
        x = self._feed(x, training)
        return (x, scores) if return_attention_scores else x
