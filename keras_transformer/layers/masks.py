"""Boolean masks: `True` = may be attended.

The model computes them once from the token ids and passes them to the layers as arguments. Paper,
section 3.2.3.
"""

import operator
from functools import reduce
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.arguments import as_bool, require_axes
from keras_transformer.types import Tensor


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

    Query `t` attends to the keys up to `start_index + t`. The lengths may differ: as in Keras,
    query and key 0 have the same position unless `start_index` says otherwise.

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
    queries = ops.arange(query_length, dtype="int32") + start_index
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
    given = [as_bool(mask=mask) for mask in masks if mask is not None]
    return reduce(ops.logical_and, given) if given else None


@keras.saving.register_keras_serializable(package="keras_transformer")
class PaddingMask(keras.layers.Layer):
    """`padding_mask` as a layer, so that the summary of a functional model shows it by name.

    Args:
        pad_token_id: the id that fills up short rows. Defaults to `0`.
        **kwargs: `keras.layers.Layer` arguments such as `name`.

    Call arguments:
        token_ids: int tensor `(B, S)`.

    Returns:
        bool tensor `(B, S)`, `True` at real tokens.

    Raises:
        ValueError: if `token_ids` does not have 2 axes.

    Example:

    >>> ops.convert_to_numpy(PaddingMask()(np.array([[7, 8, 0]]))).tolist()
    [[True, True, False]]
    """

    def __init__(self, pad_token_id: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pad_token_id = operator.index(pad_token_id)

    def call(self, token_ids: Tensor) -> Tensor:
        return padding_mask(token_ids, self.pad_token_id)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pad_token_id": self.pad_token_id}
