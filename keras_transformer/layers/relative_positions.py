"""Relative positions: a term of attention for the distance between query and key.

Shaw et al., 2018, not in the paper.
"""

from typing import Any

from keras import ops

from keras_transformer.layers.composite_layer import project
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor


def relative_similarity(
    query: Tensor, dense: Any, key_length: int | Tensor, start_index: int | Tensor, slots: Any
) -> Tensor:
    """Returns the dot product of each query with the vector of its distance from each key.

    `q[t] . r[clip(s - t, -M, M)] / sqrt(K)`, equation (4) of Shaw et al. without its first term.
    Letters: B batch, N heads, T target length, S source length, K key width, M the largest
    distance. All heads share the vectors. The distances are whole numbers under every dtype policy.

    Unlike the biases of T5, the term depends on the content of the query. Unlike with rotary
    positions, the keys stay as they are, so that caches and masks of ancestors need no change.
    Values have no such term, because it did not help Shaw et al. (table 3).

    Args:
        query: float tensor `(B, N, T, K)`.
        dense: projection from K to `2 M + 1` without a bias; its kernel holds the vectors.
        key_length: int or int tensor, S.
        start_index: int or int tensor, the number of keys before the first query.
        slots: int or int tensor: this number of consecutive queries, and of consecutive keys, have
            the same position.

    Returns:
        float tensor `(B, N, T, S)`. It needs memory for `(T, S, 2 M + 1)`.
    """
    largest = dense.units // 2
    queries = (ops.arange(shape_of(query)[2], dtype="int32") + start_index) // slots
    keys = ops.arange(key_length, dtype="int32") // slots
    distances = ops.clip(keys[None, :] - queries[:, None], -largest, largest)
    is_distance = ops.one_hot(distances + largest, dense.units, dtype=query.dtype)
    # (B, N, T, K) -> (B, N, T, 2 M + 1)
    products = project(dense, query * query.shape[-1] ** -0.5)
    # Multiply by one-hot rows: the gradient of a lookup would be slow.
    return ops.einsum("bntr,tsr->bnts", products, is_distance)
