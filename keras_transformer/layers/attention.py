"""Scaled dot-product attention, additive attention, and their masks: `True` = may be attended to.

Both attentions take queries, keys and values that are already projected and split into heads, and
return the outputs and the attention scores. Paper, sections 3.2.1 and 3.2.3.
"""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import (
    arguments_of,
    as_bool,
    as_index,
    as_mask,
    require_axes,
)
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
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Averages `value`, weighted by the dot products of `query` and `key`.

    `softmax(query @ key^T / sqrt(K) + bias) @ value`. Letters: B batch, N heads, T target length, S
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
        bias: float tensor that broadcasts to `(B, N, T, S)`, added to the products. Optional.

    Returns:
        float tensor `(B, N, T, V)` in the dtype of `value`, and the scores before dropout, float32
        `(B, N, T, S)`. Both are 0 in fully masked rows.

    Raises:
        ValueError: if `query`, `key`, `value` or `attention_mask` does not have 4 axes, or the mask
            holds floats.

    Example:

    >>> one_head = np.eye(2, dtype="float32")[None, None]
    >>> outputs, scores = scaled_dot_product_attention(one_head, one_head, one_head)
    >>> tuple(outputs.shape), tuple(scores.shape)
    ((1, 1, 2, 2), (1, 1, 2, 2))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1, equation (1).
    """
    require_axes("BNLD", query=query, key=key, value=value)
    if scaled:
        # Scaling the queries equals scaling the products, and touches fewer numbers.
        query = query * (query.shape[-1] ** -0.5)
    # (B, N, T, K), (B, N, S, K) -> (B, N, T, S)
    similarity = ops.matmul(query, ops.swapaxes(key, -1, -2))
    if bias is not None:
        similarity = ops.cast(similarity, "float32") + ops.cast(bias, "float32")
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
        ValueError: if `query`, `key`, `value` or `attention_mask` does not have 4 axes, or the mask
            holds floats.

    Example:

    >>> one_head = np.eye(2, dtype="float32")[None, None]
    >>> outputs, scores = additive_attention(one_head, one_head, one_head, np.ones(2, "float32"))
    >>> tuple(outputs.shape), tuple(scores.shape)
    ((1, 1, 2, 2), (1, 1, 2, 2))

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2; compared in
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    require_axes("BNLD", query=query, key=key, value=value)
    # (B, N, T, 1, K) + (B, N, 1, S, K) -> (B, N, T, S, K) -> (B, N, T, S)
    hidden = ops.tanh(ops.expand_dims(query, 3) + ops.expand_dims(key, 2))
    similarity = ops.sum(hidden * ops.cast(score_vector, hidden.dtype), axis=-1)
    return _weighted_average(similarity, value, attention_mask, dropout)


def _weighted_average(similarity, value, attention_mask, dropout):
    """Softmax over the keys that are not masked, then the weighted sum of the values."""
    similarity = ops.cast(similarity, "float32")
    attention_mask = as_mask("BNTS", attention_mask=attention_mask)
    if attention_mask is None:
        scores = _softmax(similarity)
    else:
        scores = _softmax(ops.where(attention_mask, similarity, MASKED_SIMILARITY))
        # Masked scores become exactly 0, also in fully masked rows.
        scores = scores * ops.cast(attention_mask, "float32")
    weights = scores if dropout is None else dropout(scores)
    # (B, N, T, S), (B, N, S, V) -> (B, N, T, V)
    return ops.matmul(ops.cast(weights, value.dtype), value), scores


def _softmax(similarity):
    if similarity.shape[-1] == 1:
        # Keras warns about a softmax over one element; the first decoding step has one key.
        return ops.ones_like(similarity)
    return ops.softmax(similarity, axis=-1)


def padding_mask(token_ids: Tensor, pad_token_id: int = 0) -> Tensor:
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int tensor `(B, S)`.
        pad_token_id: the id that fills up short rows. Defaults to `0`.

    Returns:
        bool tensor `(B, S)`, `True` at real tokens.

    Raises:
        ValueError: if `token_ids` does not have 2 axes.

    Example:

    >>> ops.convert_to_numpy(padding_mask(np.array([[7, 8, 0]]))).tolist()
    [[True, True, False]]
    """
    require_axes("BS", token_ids=token_ids)
    return ops.not_equal(token_ids, pad_token_id)


def causal_mask(
    query_length: int | Tensor,
    key_length: int | Tensor | None = None,
    start_index: int | Tensor = 0,
) -> Tensor:
    """Lets each position attend to itself and to earlier positions.

    Query `t` attends to the keys up to `start_index + t`. The lengths may differ: query 0 is at
    position `start_index`, key 0 at position 0, as in Keras.

    Args:
        query_length: int or int tensor, `T`.
        key_length: int or int tensor, `S`. Defaults to `query_length`.
        start_index: int or int tensor, the position of the first query; in decoding with a cache,
            the number of cached positions. Defaults to `0`.

    Returns:
        bool tensor `(1, T, S)`.

    Raises:
        ValueError: if `query_length` is `None`, as `ops.shape(x)[1]` is in a functional model of
            unknown length. Call the layer with `use_causal_mask=True` there.

    Example:

    >>> ops.convert_to_numpy(causal_mask(2, 3, start_index=1)).astype(int).tolist()
    [[[1, 1, 0], [1, 1, 1]]]
    """
    if query_length is None:
        raise ValueError(
            "`query_length` must be an int or an int tensor. Received: query_length=None. "
            "If the length is unknown, call the layer with `use_causal_mask=True`."
        )
    queries = ops.arange(query_length, dtype="int32") + as_index(start_index)
    keys = ops.arange(query_length if key_length is None else key_length, dtype="int32")
    return ops.expand_dims(queries[:, None] >= keys[None, :], 0)


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Combines masks by a logical and.

    Args:
        *masks: bool or integer tensors of shapes that broadcast together, or `None` (no
            restriction).

    Returns:
        bool tensor of the broadcast shape; `None` if every mask is `None`.

    Raises:
        ValueError: if a mask holds floats.

    Example:

    >>> mask = combine_masks(np.array([True, True]), None, np.array([True, False]))
    >>> ops.convert_to_numpy(mask).tolist()
    [True, False]
    """
    bools = [as_bool(mask=mask) for mask in masks if mask is not None]
    return reduce(ops.logical_and, bools) if bools else None


@keras.saving.register_keras_serializable(package="keras_transformer")
class PaddingMask(keras.layers.Layer):
    """`padding_mask` as a layer, so that the summary of a functional model shows it by name.

    Args:
        pad_token_id: the id that fills up short rows. Defaults to `0`.
        end_token_id: the id of end tokens, if they are masked too. Optional.
        **kwargs: `keras.layers.Layer` arguments such as `name`.

    Call arguments:
        token_ids: int tensor `(B, S)`.

    Returns:
        bool tensor `(B, S)`, `True` at the tokens that are not masked.

    Raises:
        ValueError: if `token_ids` does not have 2 axes.

    Example:

    >>> ops.convert_to_numpy(PaddingMask()(np.array([[7, 8, 0]]))).tolist()
    [[True, True, False]]
    """

    def __init__(
        self, pad_token_id: int = 0, end_token_id: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pad_token_id = operator.index(pad_token_id)
        self.end_token_id = None if end_token_id is None else operator.index(end_token_id)

    def call(self, token_ids: Tensor) -> Tensor:
        mask = padding_mask(token_ids, self.pad_token_id)
        if self.end_token_id is None:
            return mask
        return combine_masks(mask, ops.not_equal(token_ids, self.end_token_id))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **arguments_of(PaddingMask, self)}
