"""Scaled dot-product attention and additive attention, which the paper's section 3.2.1 compares.

Both take queries, keys and values that are already projected and split into heads, and return the
outputs and the attention scores.
"""

from collections.abc import Callable

import numpy as np
from keras import ops

from keras_transformer.layers.arguments import as_mask, require_axes
from keras_transformer.types import Tensor

# Far below any similarity, yet finite: a row that may attend to nothing must not become NaN.
MASKED_SIMILARITY = float(np.finfo("float32").min)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaled: bool = True,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Averages `value`, weighted by the dot products of `query` and `key`.

    `softmax(query @ key^T / sqrt(K)) @ value`. Letters: B batch, N heads, T target length, S
    source length, K key width, V value width.

    Args:
        query: float tensor `(B, N, T, K)`.
        key: float tensor `(B, N, S, K)`.
        value: float tensor `(B, N, S, V)`.
        attention_mask: bool tensor of 4 axes that broadcasts to `(B, N, T, S)`, `True` = may
            attend. Optional.
        scaled: whether to divide by `sqrt(K)`. Without the division, the dot products have
            variance `K`, and for large `K` the softmax saturates: its gradient vanishes.
        dropout: callable applied to the scores before they weight the values. Optional.

    Returns:
        float tensor `(B, N, T, V)` in the dtype of `value`, and the scores before dropout, float32
        `(B, N, T, S)`. Both are 0 in fully masked rows.

    Raises:
        ValueError: if an argument does not have 4 axes, or `attention_mask` holds floats.

    Example:

    >>> one_head = np.eye(2, dtype="float32")[None, None]
    >>> outputs, scores = scaled_dot_product_attention(one_head, one_head, one_head)
    >>> tuple(outputs.shape), tuple(scores.shape)
    ((1, 1, 2, 2), (1, 1, 2, 2))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1, equation (1).
    """
    _require_heads(query, key, value)
    if scaled:
        # Scaling the queries equals scaling the products, and touches fewer numbers.
        query = query * (query.shape[-1] ** -0.5)
    # (B, N, T, K), (B, N, S, K) -> (B, N, T, S)
    similarity = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return _weighted_average(similarity, value, attention_mask, dropout)


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_vector: Tensor,
    attention_mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Averages `value`, weighted by a one-layer network of `query` and `key`.

    `softmax(score_vector . tanh(query + key)) @ value`. Needs memory for `(B, N, T, S, K)`.

    Args:
        query: float tensor `(B, N, T, K)`.
        key: float tensor `(B, N, S, K)`.
        value: float tensor `(B, N, S, V)`.
        score_vector: float tensor `(K,)`, or one that broadcasts to `(B, N, T, S, K)`.
        attention_mask: bool tensor of 4 axes that broadcasts to `(B, N, T, S)`, `True` = may
            attend. Optional.
        dropout: callable applied to the scores before they weight the values. Optional.

    Returns:
        The same as `scaled_dot_product_attention`.

    Raises:
        ValueError: if an argument does not have 4 axes, or `attention_mask` holds floats.

    Example:

    >>> one_head = np.eye(2, dtype="float32")[None, None]
    >>> outputs, scores = additive_attention(one_head, one_head, one_head, np.ones(2, "float32"))
    >>> tuple(outputs.shape), tuple(scores.shape)
    ((1, 1, 2, 2), (1, 1, 2, 2))

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2; compared in
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    _require_heads(query, key, value)
    # (B, N, T, 1, K) + (B, N, 1, S, K) -> (B, N, T, S, K) -> (B, N, T, S)
    hidden = ops.tanh(ops.expand_dims(query, 3) + ops.expand_dims(key, 2))
    similarity = ops.sum(hidden * ops.cast(score_vector, hidden.dtype), axis=-1)
    return _weighted_average(similarity, value, attention_mask, dropout)


def _require_heads(query, key, value):
    require_axes("BNTK", query=query)
    require_axes("BNSK", key=key)
    require_axes("BNSV", value=value)


def _weighted_average(similarity, value, attention_mask, dropout):
    """Softmax over the keys that are not masked, then the weighted sum of the values."""
    similarity = ops.cast(similarity, "float32")
    attention_mask = as_mask("BNTS", attention_mask=attention_mask)
    if attention_mask is None:
        scores = _softmax(similarity)
    else:
        scores = _softmax(ops.where(attention_mask, similarity, MASKED_SIMILARITY))
        # Exact zeros, also in fully masked rows.
        scores = scores * ops.cast(attention_mask, "float32")
    weights = scores if dropout is None else dropout(scores)
    # (B, N, T, S), (B, N, S, V) -> (B, N, T, V)
    return ops.matmul(ops.cast(weights, value.dtype), value), scores


def _softmax(similarity):
    if similarity.shape[-1] == 1:
        # Keras warns of a softmax over one element; the first step of decoding has one key.
        return ops.ones_like(similarity)
    return ops.softmax(similarity, axis=-1)
