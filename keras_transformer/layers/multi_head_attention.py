"""Multi-head attention: project, split into heads, attend, join, project.

One layer serves as self-attention, as encoder-decoder attention, and as one step of decoding with
cached keys and values. Paper, section 3.2.2.
"""

import keras
from keras import ops

from keras_transformer.layers.arguments import require_mask, require_positive
from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import causal_mask, combine_masks
from keras_transformer.layers.projection import outer_shape, project


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Attends in `num_heads` subspaces at once.

    `Concat(head_1, ..., head_N) W_O` with `head_n = attention(Q W_Q_n, K W_K_n, V W_V_n)`. Letters:
    B batch, T target length, S source length, N heads, K `key_dim`, V `value_dim`, D widths.

    Args:
        num_heads: int. Number of heads `N`.
        key_dim: int. Width of each head's queries and keys.
        value_dim: int. Width of each head's values. Defaults to `key_dim`.
        output_dim: int. Width of the output. Defaults to the width of the query.
        dropout: float in [0, 1). Fraction of the attention scores dropped. Defaults to `0.0`.
        use_bias: bool. Whether the four projections add a bias. Defaults to `True`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        query: float tensor `(B, T, D)`.
        value: float tensor `(B, S, D)`. `None` with a `cache`: attend over the cache as it stands.
        key: float tensor `(B, S, D)`. Defaults to `value`.
        attention_mask: bool tensor `(B, T, S)` or `(B, 1, S)`, `True` = may attend. A padding mask
            `(B, S)` goes in as `mask[:, None, :]`. Optional.
        use_causal_mask: bool. Also hide what comes after each query. Defaults to `False`.
        return_attention_scores: bool. Defaults to `False`.
        cache: dict `{"key": (B, N, S', K), "value": (B, N, S', V)}` of what was projected before,
            from `init_cache` (self-attention: each call appends `value`) or `make_cache`
            (encoder-decoder attention: projected once, then `value=None`). Masks cover cached and
            new positions together.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, output_dim)` in the compute dtype. With `return_attention_scores` and
        with `cache` a tuple `(outputs[, scores][, cache])`: scores before dropout, float32
        `(B, N, T, S)`; the cache, grown by the new positions.

    Raises:
        ValueError: if a width is not positive, neither `value` nor `cache` is given, or
            `attention_mask` has not 3 axes. (`keras.layers.MultiHeadAttention` reads 2 axes as
            `(T, S)` and 4 as `(B, N, T, S)`.)

    Masking: implicit Keras masks of `value` and `key` are honoured beside `attention_mask`, unless
        there is a `cache`; that of `query` is passed on. A query that may attend to nothing gets
        the output bias alone, and scores of 0. What is masked must be finite.
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
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.2.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        output_dim=None,
        dropout=0.0,
        use_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.output_dim = output_dim
        self.dropout = dropout
        self.use_bias = use_bias
        require_positive(num_heads=num_heads, key_dim=key_dim, value_dim=self.value_dim)
        self.query_dense = self._dense(num_heads * self.key_dim, "query")
        self.key_dense = self._dense(num_heads * self.key_dim, "key")
        self.value_dense = self._dense(num_heads * self.value_dim, "value")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, query_shape, value_shape=None, key_shape=None):
        if value_shape is None:
            raise ValueError("`value` must be given in the first call. Received: value=None")
        self.output_dense = self._dense(self.output_dim or query_shape[-1], "output")
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.value_dim))
        self.dropout_layer.build()

    def call(
        self,
        query,
        value=None,
        key=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        cache=None,
        value_mask=None,
        key_mask=None,
        training=None,
    ):
        require_mask("BTS", attention_mask=attention_mask)
        cache_given = cache is not None
        if value is not None:
            new = self.make_cache(value, key)
            cache = self._append(cache, new) if cache_given else new
        elif not cache_given:
            raise ValueError("`value` or `cache` must be given. Received: value=None, cache=None")
        if cache_given:
            # They cover the new positions only.
            value_mask = key_mask = None
        mask = self._mask(query, cache, attention_mask, use_causal_mask, value_mask, key_mask)
        # (B, N, T, K), (B, N, S, K), (B, N, S, V) -> (B, N, T, V), (B, N, T, S)
        outputs, scores = scaled_dot_product_attention(
            self._split_heads(project(self.query_dense, query)),
            cache["key"],
            cache["value"],
            attention_mask=mask,
            dropout=lambda scores: self.dropout_layer(scores, training=training),
        )
        outputs = project(self.output_dense, self._join_heads(outputs))
        extras = (scores,) * return_attention_scores + (cache,) * cache_given
        return (outputs, *extras) if extras else outputs

    def init_cache(self, batch_size):
        """Returns the cache of self-attention before its first position: length 0.

        Args:
            batch_size: int or int tensor, `B`.

        Returns:
            dict `{"key": (B, N, 0, K), "value": (B, N, 0, V)}`.
        """
        return {
            name: ops.zeros((batch_size, self.num_heads, 0, dim), dtype=self.compute_dtype)
            for name, dim in (("key", self.key_dim), ("value", self.value_dim))
        }

    def make_cache(self, value, key=None):
        """Projects keys and values, once for all queries to come.

        Args:
            value: float tensor `(B, S, D)`.
            key: float tensor `(B, S, D)`. Defaults to `value`.

        Returns:
            dict `{"key": (B, N, S, K), "value": (B, N, S, V)}`.
        """
        return {
            "key": self._split_heads(project(self.key_dense, value if key is None else key)),
            "value": self._split_heads(project(self.value_dense, value)),
        }

    def _dense(self, units, name):
        return keras.layers.Dense(units, use_bias=self.use_bias, dtype=self.dtype_policy, name=name)

    def _append(self, cache, new):
        return {name: ops.concatenate([cache[name], new[name]], axis=2) for name in cache}

    def _mask(self, query, cache, attention_mask, use_causal_mask, value_mask, key_mask):
        """Everything that hides keys, as one mask that broadcasts to `(B, N, T, S)`."""
        # (B, S) -> (B, 1, S)
        implicit = [mask[:, None, :] for mask in (value_mask, key_mask) if mask is not None]
        causal = None
        if use_causal_mask and query.shape[1] != 1:  # the last query sees every key
            causal = causal_mask(ops.shape(query)[1], ops.shape(cache["key"])[2])
        if attention_mask is not None:
            attention_mask = ops.cast(attention_mask, "bool")
        mask = combine_masks(attention_mask, causal, *implicit)
        # (B, T, S) -> (B, 1, T, S)
        return None if mask is None else ops.expand_dims(mask, 1)

    def _split_heads(self, projected):
        # (B, T, N * K) -> (B, T, N, K) -> (B, N, T, K)
        dim = projected.shape[-1] // self.num_heads
        if projected.shape[1] == 1:  # one step of decoding: nothing to swap
            return ops.reshape(projected, (-1, self.num_heads, 1, dim))
        shape = (*outer_shape(projected), self.num_heads, dim)
        return ops.swapaxes(ops.reshape(projected, shape), 1, 2)

    def _join_heads(self, outputs):
        # (B, N, T, V) -> (B, T, N, V) -> (B, T, N * V)
        dim = self.num_heads * self.value_dim
        if outputs.shape[2] == 1:
            return ops.reshape(outputs, (-1, 1, dim))
        outputs = ops.swapaxes(outputs, 1, 2)
        return ops.reshape(outputs, (*outer_shape(outputs)[:2], dim))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }
