"""Functions of a search that JAX and PyTorch share."""

from typing import Any

from keras import ops, tree

from keras_transformer.decoding.scores import NOT_FINITE


def select(nest: Any, slots: Any) -> Any:
    """Gathers hypotheses, axis 1 of every tensor, by the indices `slots`, `(B, ...)`."""
    sentences = ops.reshape(ops.arange(slots.shape[0]), (-1, *[1] * (slots.ndim - 1)))
    return tree.map_structure(lambda tensor: tensor[sentences, slots], nest)


def pick(values: Any, indices: Any) -> Any:
    """Gathers along the last axis; the other axes of both tensors are equal."""
    return ops.take_along_axis(values, indices, axis=-1)


def with_shape(tensor: Any, shape: Any) -> Any:
    """Returns the tensor, or `None` if it has another shape."""
    return tensor if tensor.shape == shape else None


def require_numbers(result: Any) -> Any:
    """Returns a `SearchResult` as it is.

    Raises:
        ValueError: if the score of a sentence is NaN.
    """
    if ops.any(ops.isnan(result.scores)):
        raise ValueError(NOT_FINITE)
    return result


def run_growing(search: Any, state: Any, compaction: bool) -> Any:
    """Runs a search whose tensors grow; finished sentences stay in the batch.

    Args:
        search, state: as in `run_loop`.
        compaction: ignored.

    Returns:
        `SearchResult`, not trimmed.
    """
    index = ops.zeros((), "int32")
    while not ops.all(state.sentences.done):
        state, index = search.step(index, state), index + 1
    return search.final(state)
