"""Multi-head attention: project, split into heads, attend, join, project.

One layer does self-attention, encoder-decoder attention, and decoding steps with cached keys and
values. Paper, section 3.2.2.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.arguments import arguments_of, as_mask, require_axes, require_positive
from keras_transformer.layers.attention import (
    causal_mask,
    combine_masks,
    scaled_dot_product_attention,
)
from keras_transformer.layers.caches import FixedCache, GrowingCache
from keras_transformer.layers.composite_layer import CompositeLayer, outer_shape, project
from keras_transformer.layers.relative_positions import relative_similarity
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(CompositeLayer):
    """Attends in `num_heads` subspaces in parallel.

    `Concat(head_1, ..., head_N) W_O` with `head_n = attention(Q W_Q_n, K W_K_n, V W_V_n)`. Letters:
    B batch, T target length, S source length, N heads, K `key_dim`, V `value_dim`, D width.

    Args:
        num_heads: number of heads `N`.
        key_dim: width of each head's queries and keys. Defaults to the width of the query divided
            by `num_heads`.
        value_dim: width of each head's values. Defaults to `key_dim`.
        output_dim: width of the output, Keras's `output_shape`. Defaults to the width of the query.
        dropout: fraction of the attention scores dropped, in [0, 1). Defaults to `0.0`.
        use_bias: whether the four projections add a bias. Defaults to `True`.
        gain: factor on the initial kernels of query, key and value. Defaults to `1.0`; fairseq's is
            `2**-0.5`.
        max_relative_position: int, `M`. Adds `q . r[distance]` to the product of each query with
            each key, where `r` is a learned vector for each distance from -M to M, in tokens; keys
            that are further away count as M away. For self-attention only. Defaults to none:
            without it, positions matter only as far as the inputs contain them.
        **kwargs: `kernel_initializer`, `bias_initializer`, `kernel_regularizer`,
            `bias_regularizer`, `activity_regularizer`, `kernel_constraint` and `bias_constraint`
            of every projection and `seed` of dropout, with the meaning and the defaults of
            `keras.layers.MultiHeadAttention`, except that a seeded initialiser draws other numbers
            for each projection; and `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        query: float tensor `(B, T, D)`.
        value: float tensor `(B, S, D)`. With a `cache`, `None` attends to the cached positions only
            and appends nothing.
        key: float tensor `(B, S, D)`. Defaults to `value`.
        attention_mask: bool tensor `(B, T, S)` or `(B, 1, S)`, `True` = may attend. Pass a padding
            mask `(B, S)` as `mask[:, None, :]`. Optional.
        use_causal_mask: whether to also mask the keys after each query. Query `t` attends to the
            keys 0 to `t`, also if T and S differ, as in Keras; with a `cache`, to the cached
            positions and to the new keys 0 to `t`. Defaults to `False`.
        return_attention_scores: defaults to `False`.
        cache: projected keys and values of earlier positions, a named tuple of tensors. For
            self-attention, start with `init_cache`; each call appends `value`. For encoder-decoder
            attention, call `make_cache` once and pass `value=None`. Masks cover cached and new
            positions; with a cache of fixed length, all its positions. With `max_relative_position`
            and without `use_causal_mask`, the new positions of a call are alternatives for one
            position, as in beam search, and every call must append the same number of them.
            Optional.
        value_mask: implicit Keras mask of `value`, `(B, S)`; Keras passes it.
        key_mask: implicit Keras mask of `key`, `(B, S)`; Keras passes it.
        training: dropout is active only if `True`.

    Returns:
        float tensor `(B, T, output_dim)` in the compute dtype. With `return_attention_scores`,
        `cache` or both, a tuple `(outputs[, scores][, cache])`: the scores before dropout, float32
        `(B, N, T, S)`; the cache, extended by the new positions.

    Raises:
        ValueError: if a width is not positive, `num_heads` does not divide the width of the query
            and `key_dim` is not given, neither `value` nor `cache` is given, an input or
            `attention_mask` does not have 3 axes (`keras.layers.MultiHeadAttention` reads masks of
            2 axes as `(T, S)` and of 4 as `(B, N, T, S)`), or `attention_mask` holds floats.

    Masking: implicit Keras masks of `value` and `key` apply in addition to `attention_mask`, but
        not with a `cache`. The mask of `query` is propagated to the output; masked queries attend
        like others (in Keras they attend to nothing or to everything). The output of a query that
        may attend to nothing is the output bias, and its scores are 0. Masked values must be
        finite, because 0 * inf is NaN.
    Precision: softmax and scores are always float32.
    Departures from the paper: the projections add biases, as most implementations do;
        `use_bias=False` leaves them out.

    Example:

    >>> layer = keras_transformer.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = np.zeros((3, 5, 8))
    >>> outputs, scores = layer(query=x, value=x, return_attention_scores=True)
    >>> tuple(outputs.shape), tuple(scores.shape)
    ((3, 5, 8), (3, 2, 5, 5))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.2; relative positions:
        [Shaw et al., 2018](https://arxiv.org/abs/1803.02155), equation (4), keys alone.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        output_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        gain: float = 1.0,
        max_relative_position: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(use_bias, **kwargs)
        self.num_heads = require_positive(num_heads=num_heads)
        self.key_dim = require_positive(optional=True, key_dim=key_dim)
        self.value_dim = require_positive(optional=True, value_dim=value_dim)
        self.output_dim = require_positive(optional=True, output_dim=output_dim)
        self.dropout = dropout
        self.gain = float(gain)
        self.max_relative_position = require_positive(
            optional=True, max_relative_position=max_relative_position
        )
        self.dropout_layer = self._dropout(dropout)

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> None:
        if value_shape is None:
            raise ValueError("`value` must be given in the first call. Received: value=None")
        width = query_shape[-1]
        if self.key_dim is None and width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the query unless `key_dim` is given. "
                f"Received: num_heads={self.num_heads}, a query of width {width}"
            )
        self.key_dim = self.key_dim or width // self.num_heads
        self.value_dim = self.value_dim or self.key_dim
        self.query_dense = self._dense(self.num_heads * self.key_dim, "query", gain=self.gain)
        self.key_dense = self._dense(self.num_heads * self.key_dim, "key", gain=self.gain)
        self.value_dense = self._dense(self.num_heads * self.value_dim, "value", gain=self.gain)
        self.output_dense = self._dense(self.output_dim or width, "output")
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.value_dim))
        self.dropout_layer.build()
        if self.max_relative_position:
            distances = 2 * self.max_relative_position + 1
            self.relative_dense = self._dense(distances, "relative", use_bias=False)
            self.relative_dense.build((*query_shape[:-1], self.key_dim))

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        cache: GrowingCache | FixedCache | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        require_axes("BTD", query=query)
        attention_mask = as_mask("BTS", attention_mask=attention_mask)
        if value is None and cache is None:
            raise ValueError("`value` or `cache` must be given. Received: value=None, cache=None")
        keys_values = self._keys_and_values(value, key, cache)
        if cache is not None:
            # The implicit masks cover only the new positions.
            value_mask = key_mask = None
        causal = self._causal_mask(query, value, keys_values, cache) if use_causal_mask else None
        mask = self._mask(attention_mask, causal, value_mask, key_mask)
        query_heads = self._split_heads(self.query_dense, query)
        options = {}
        if self.max_relative_position:
            extended = None if value is None else cache
            options["bias"] = self._relative_bias(
                query_heads, keys_values, extended, use_causal_mask
            )
        # (B, N, T, K), (B, N, S, K), (B, N, S, V) -> (B, N, T, V), (B, N, T, S)
        outputs, scores = self.attend(
            query_heads,
            keys_values.key,
            keys_values.value,
            attention_mask=mask,
            dropout=lambda scores: self.dropout_layer(scores, training=training),
            **options,
        )
        outer = outer_shape(query)
        outputs = self._join_heads(outputs, outer)
        outputs = project(self.output_dense, outputs, (*outer, self.output_dense.units))
        if cache is None:
            return (outputs, scores) if return_attention_scores else outputs
        new_cache = keys_values
        return (outputs, scores, new_cache) if return_attention_scores else (outputs, new_cache)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compares queries with keys, and averages the values. Override it to use another score.

        Args:
            query, key, value, attention_mask, dropout: as in `scaled_dot_product_attention`, after
                the projections.
            bias: the term of relative positions; given only with `max_relative_position`.

        Returns:
            the same as `scaled_dot_product_attention`.
        """
        return scaled_dot_product_attention(
            query, key, value, attention_mask, dropout=dropout, bias=bias
        )

    def init_cache(
        self, batch_size: int | Tensor, length: int | None = None
    ) -> GrowingCache | FixedCache:
        """Returns an empty cache for self-attention.

        Args:
            batch_size: int or int tensor, `B`.
            length: int. Fixed length of the cache, as a compiled loop needs: each call overwrites
                the positions from `cache.index` on. Positions after the new ones must be masked, by
                `use_causal_mask=True` or `attention_mask`. New positions beyond the length
                overwrite the last ones; on PyTorch they raise an error. Defaults to a cache that
                grows.

        Returns:
            named tuple of `key`, `(B, N, 0, K)`, and `value`, `(B, N, 0, V)`; with `length`, of
            `key`, `(B, N, length, K)`, `value`, `(B, N, length, V)`, and `index`, an int32 scalar.
        """
        shape = batch_size, self.num_heads, length or 0
        key = ops.zeros((*shape, self.key_dim), self.compute_dtype)
        value = ops.zeros((*shape, self.value_dim), self.compute_dtype)
        if length is None:
            return GrowingCache(key, value)
        return FixedCache(key, value, index=ops.zeros((), "int32"))

    def make_cache(self, value: Tensor, key: Tensor | None = None) -> GrowingCache:
        """Projects keys and values once, for all later queries.

        Args:
            value: float tensor `(B, S, D)`.
            key: float tensor `(B, S, D)`. Defaults to `value`.

        Returns:
            named tuple of `key`, `(B, N, S, K)`, and `value`, `(B, N, S, V)`.
        """
        require_axes("BSD", value=value, key=key)
        return GrowingCache(
            self._split_heads(self.key_dense, value if key is None else key),
            self._split_heads(self.value_dense, value),
        )

    def _keys_and_values(self, value, key, cache):
        """Returns the cached keys and values, followed by the new ones."""
        if value is None:
            return cache
        new = self.make_cache(value, key)
        return new if cache is None else cache.append(new)

    def _causal_mask(self, query, value, keys_values, cache):
        """Returns the mask, or `None` if the only query may attend to every key.

        It may if it is the last position, and the cache has no room for later ones.
        """
        is_step = query.shape[1] == 1 and (value is None or value.shape[1] == 1)
        if is_step and not keys_values.has_room:
            return None
        start_index = 0 if cache is None else cache.num_cached
        return causal_mask(shape_of(query)[1], shape_of(keys_values.key)[2], start_index)

    def _mask(self, attention_mask, causal, value_mask, key_mask):
        """Combines all masks into one that broadcasts to `(B, N, T, S)`; `None` without any."""
        # (B, S) -> (B, 1, S). Keras's masks may have any dtype.
        implicit = [
            ops.cast(mask, "bool")[:, None, :]
            for mask in (value_mask, key_mask)
            if mask is not None
        ]
        mask = combine_masks(attention_mask, causal, *implicit)
        # (B, T, S) -> (B, 1, T, S)
        return None if mask is None else ops.expand_dims(mask, 1)

    def _relative_bias(self, query, keys_values, cache, is_causal):
        """Returns the term of relative positions; `cache` is what the new positions extend."""
        start_index, slots = 0, 1
        if cache is not None:
            start_index = cache.num_cached
            # Without a causal mask, the new positions are beam slots of one position.
            slots = 1 if is_causal else shape_of(query)[2]
        length = shape_of(keys_values.key)[2]
        return relative_similarity(query, self.relative_dense, length, start_index, slots)

    def _split_heads(self, dense, inputs):
        dim = dense.units // self.num_heads
        if inputs.shape[1] == 1:  # a decoding step: no axes to swap
            return project(dense, inputs, (-1, self.num_heads, 1, dim))
        # (B, T, D) -> (B, T, N, K) -> (B, N, T, K)
        heads = project(dense, inputs, (*outer_shape(inputs), self.num_heads, dim))
        return ops.swapaxes(heads, 1, 2)

    def _join_heads(self, outputs, outer):
        # (B, N, T, V) -> (B, T, N, V) -> (B, T, N * V)
        if outputs.shape[2] != 1:
            outputs = ops.swapaxes(outputs, 1, 2)
        return ops.reshape(outputs, (*outer, self.num_heads * self.value_dim))

    def compute_output_shape(self, *shapes: Shape, **named_shapes: Shape) -> Shape:
        query_shape = super().compute_output_shape(*shapes, **named_shapes)
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **arguments_of(MultiHeadAttention, self)}
