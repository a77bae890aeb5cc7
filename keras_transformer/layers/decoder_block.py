"""One block of the decoder: masked self-attention, encoder-decoder attention, feed-forward network.

Paper, section 3.1, right half of figure 1.
"""

from typing import Any, ClassVar

import keras

from keras_transformer.layers.arguments import as_mask, require_axes
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.transformer_block import TransformerBlock
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(TransformerBlock):
    """Causal self-attention, attention over the encoder output, then a feed-forward network.

    `x = residual(x, causal self_attention)`, `x = residual(x, encoder_attention)`,
    `x = residual(x, feed_forward)`. Letters: B batch, T target length, S source length, N heads,
    D the width of the input and of the output.

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
        self_attention_class, encoder_attention_class: classes of the sub-layers,
            `MultiHeadAttention`. Set them in a subclass, as in `EncoderBlock`. The sub-layers also
            need `init_cache` and `make_cache`, respectively.

    Call arguments:
        inputs: float tensor `(B, T, D)`; with a `cache`, the new positions only.
        encoder_output: float tensor `(B, S, D')`. Not needed with a `cache`.
        attention_mask: bool tensor `(B, T, T)` or `(B, 1, T)`, which applies in addition to the
            causal mask. With a `cache` it covers cached and new positions. Optional.
        encoder_attention_mask: bool tensor `(B, T, S)` or `(B, 1, S)`. Optional. Pass a padding
            mask `(B, S)` as `mask[:, None, :]`, here and above.
        use_causal_mask: pass `False` if `attention_mask` replaces the causal mask, as in beam
            search, where the new positions are alternative next tokens. Defaults to `True`.
        return_attention_scores: defaults to `False`.
        cache: from `init_cache` or the previous call. Optional.
        training: dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores`, `cache` or both, a tuple
        `(outputs[, scores][, cache])`, where scores are
        `{"self": (B, N, T, T), "encoder": (B, N, T, S)}`, float32.

    Raises:
        ValueError: if `num_heads` does not divide D and `key_dim` is not given, neither
            `encoder_output` nor `cache` is given, an input or a mask does not have 3 axes, or a
            mask holds floats.

    Masking: self-attention is causal. Implicit Keras masks of `inputs` and `encoder_output` apply
        in addition to the arguments (in KerasHub, explicit masks replace them). KerasHub's
        `encoder_padding_mask` is `encoder_attention_mask=encoder_padding_mask[:, None, :]`. For a
        decoder without an encoder, use `EncoderBlock` with `use_causal_mask=True`.
    Precision: softmax and layer-norm statistics are always float32.
    Departures from the paper: the attention projections have biases; see `MultiHeadAttention`.

    Example:

    >>> block = keras_transformer.layers.DecoderBlock(num_heads=2, intermediate_dim=32)
    >>> tuple(block(np.zeros((3, 5, 8)), np.zeros((3, 7, 8))).shape)
    (3, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1.
    """

    encoder_attention_class: ClassVar[type[keras.layers.Layer]] = MultiHeadAttention

    def __init__(self, *, num_heads: int, intermediate_dim: int, **kwargs: Any) -> None:
        super().__init__(num_heads=num_heads, intermediate_dim=intermediate_dim, **kwargs)
        self.encoder_attention = self._attention(self.encoder_attention_class, "encoder_attention")
        self.encoder_attention_residual = self._residual("encoder_attention_residual")

    def build(self, inputs_shape: Shape, encoder_output_shape: Shape) -> None:
        self._build(inputs_shape)
        self.encoder_attention.build(inputs_shape, encoder_output_shape)
        self.encoder_attention_residual.build(inputs_shape)

    def init_cache(self, encoder_output: Tensor, length: int | None = None) -> Cache:
        """Returns the cache before the first target position.

        Args:
            encoder_output: float tensor `(B, S, D')`.
            length: int, the fixed length of the cache of self-attention, as in
                `MultiHeadAttention.init_cache`. Defaults to a cache that grows.

        Returns:
            dict: `"self"`, the empty keys and values of self-attention, and `"encoder"`, the keys
            and values of encoder-decoder attention, which do not change. They are what
            `MultiHeadAttention.init_cache` and `MultiHeadAttention.make_cache` return.
        """
        require_axes("BSD", encoder_output=encoder_output)
        return {
            "self": self.self_attention.init_cache(shape_of(encoder_output)[0], length),
            "encoder": self.encoder_attention.make_cache(encoder_output),
        }

    def call(
        self,
        inputs: Tensor,
        encoder_output: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_causal_mask: bool = True,
        return_attention_scores: bool = False,
        cache: Cache | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        if cache is None and encoder_output is None:
            raise ValueError(
                "`encoder_output` or `cache` must be given. "
                "Received: encoder_output=None, cache=None"
            )
        require_axes("BTD", inputs=inputs)
        require_axes("BSD", encoder_output=encoder_output)
        encoder_attention_mask = as_mask("BTS", encoder_attention_mask=encoder_attention_mask)
        x, self_scores, *self_cache = self._attend_to_itself(
            inputs,
            training,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            cache=None if cache is None else cache["self"],
        )
        attended, encoder_scores, *encoder_cache = self.encoder_attention(
            query=self.encoder_attention_residual.sublayer_input(x),
            value=encoder_output if cache is None else None,
            attention_mask=encoder_attention_mask,
            return_attention_scores=True,
            cache=None if cache is None else cache["encoder"],
            training=training,
        )
        x = self.encoder_attention_residual(x, attended, training=training)
        x = self._feed(x, training)
        scores = {"self": self_scores, "encoder": encoder_scores}
        if cache is None:
            return (x, scores) if return_attention_scores else x
        new_cache = {"self": self_cache[0], "encoder": encoder_cache[0]}
        return (x, scores, new_cache) if return_attention_scores else (x, new_cache)
