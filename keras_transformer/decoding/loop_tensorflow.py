"""The search on TensorFlow: graphs in which tensors grow and finished sentences leave the batch."""

import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops, tree

from keras_transformer.decoding.programs import ProgramKey, find_or_compile
from keras_transformer.decoding.scores import NOT_FINITE
from keras_transformer.present_weights import present_weights

# Compact the batch once 1 / _COMPACTION_DIVISOR of its sentences is done.
_COMPACTION_DIVISOR = 10


def select(nest: Any, slots: Any) -> Any:
    """Gathers hypotheses, axis 1 of every tensor, by the indices `slots`, `(B, ...)`."""
    return tree.map_structure(lambda tensor: tf.gather(tensor, slots, batch_dims=1), nest)


def pick(values: Any, indices: Any) -> Any:
    """Gathers along the last axis; the other axes are equal."""
    return tf.gather(values, indices, batch_dims=values.shape.rank - 1)


def with_shape(tensor: Any, shape: Any) -> Any:
    """Returns the tensor with a static shape, or `None` if it has another shape."""
    return tf.ensure_shape(tensor, shape) if tensor.shape.is_compatible_with(shape) else None


def require_numbers(result: Any) -> Any:
    """Returns a `SearchResult` as it is.

    Raises:
        InvalidArgumentError: if the score of a sentence is NaN; in a graph, when the graph runs.
    """
    has_numbers = ~ops.any(ops.isnan(result.scores))
    with tf.control_dependencies([tf.debugging.Assert(has_numbers, [NOT_FINITE])]):
        return tf.nest.map_structure(tf.identity, result)


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Compiles and runs `function(model, *static, *inputs)`, with XLA for the kind "xla"."""
    is_xla = kind == "xla"
    shapes = tuple(array.shape if is_xla else array.ndim for array in inputs)
    weights = tuple(map(id, present_weights(model)))
    key = ProgramKey(function, static, shapes, weights, is_xla)
    program = find_or_compile(model, key, lambda: _compile(function, model, static, inputs, is_xla))
    return program(*map(tf.constant, inputs))


def _compile(function, model, static, inputs, is_xla):
    reference = weakref.ref(model)
    specs = []
    for array in inputs:
        shape = array.shape if is_xla else [None] * array.ndim
        specs.append(tf.TensorSpec(shape, array.dtype))

    def compute(*inputs):
        return function(reference(), *static, *inputs)

    program = tf.function(compute, specs, autograph=False, jit_compile=is_xla or None)
    return program.get_concrete_function()


def run_growing(search: Any, state: Any, compaction: bool) -> Any:
    """Runs a loop in which tensors grow and the batch shrinks.

    Args:
        search, state: as in `run_loop`.
        compaction: bool. Whether finished sentences leave the batch.

    Returns:
        `SearchResult`, not trimmed.
    """
    results = tf.nest.map_structure(tf.zeros_like, search.final(state))
    shapes = tf.TensorShape([]), loop_shapes(state)  # of the index and the state
    divisor = _COMPACTION_DIVISOR if compaction else 1  # 1: the batch stays until all are done

    def few_are_done(index, state):
        done = tf.math.count_nonzero(state.sentences.done, dtype=tf.int32)
        return done * divisor < tf.size(state.sentences.done)

    def advance(index, state):
        return index + 1, search.step(index, state)

    def run_and_compact(index, state, results):
        index, state = tf.while_loop(few_are_done, advance, (index, state), shape_invariants=shapes)
        is_done = state.sentences.done
        done, others = tf.where(is_done)[:, 0], tf.where(~is_done)[:, 0]
        rows = tf.gather(state.sentences.row, done)[:, None]
        length = tf.maximum(index, 1)  # `tensor_scatter_nd_update` rejects outputs of size 0
        finished = tf.nest.map_structure(lambda leaf: tf.gather(leaf, done), search.final(state))
        results = tf.nest.map_structure(
            lambda old, new: tf.tensor_scatter_nd_update(old, rows, new),
            _padded(results, length),
            _padded(finished, length),
        )
        return index, tf.nest.map_structure(lambda leaf: tf.gather(leaf, others), state), results

    result_shapes = tf.nest.map_structure(_any_length, results)
    _, _, results = tf.while_loop(
        lambda index, state, results: tf.size(state.sentences.done) > 0,
        run_and_compact,
        (tf.constant(0), state, results),
        shape_invariants=(*shapes, result_shapes),
    )
    return results


def _padded(result, length):
    """Returns a `SearchResult` with tokens and log-probs padded to `length` by zeros."""
    padding = [[0, 0], [0, 0], [0, length - tf.shape(result.token_ids)[2]]]
    return result._replace(
        token_ids=tf.pad(result.token_ids, padding), log_probs=tf.pad(result.log_probs, padding)
    )


def loop_shapes(state: Any) -> Any:
    """Returns shape invariants of a loop: axis 1 is static, except in a cache; no other axis is."""
    shapes = tf.nest.map_structure(_static_slots, state)
    cache = tf.nest.map_structure(_any_length, state.sentences.cache)
    return shapes._replace(sentences=shapes.sentences._replace(cache=cache))


def _static_slots(tensor):
    return tf.TensorShape([None, *tensor.shape[1:2], *[None] * (tensor.shape.rank - 2)])


def _any_length(tensor):
    return tf.TensorShape([None] * tensor.shape.rank)
