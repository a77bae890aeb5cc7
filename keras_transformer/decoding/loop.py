"""How each backend runs the loop of a search, and the operations that backends do differently.

The rules of the search are the same on every backend: see `search.py` and `beam.py`.
"""

import contextlib
import re
import threading
import weakref
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from keras_transformer.decoding.forks import require_own_process
from keras_transformer.decoding.scores import NOT_FINITE
from keras_transformer.present_weights import present_weights

BACKEND = keras.config.backend()
if BACKEND == "tensorflow":
    import tensorflow as tf
elif BACKEND == "torch":
    import torch

_NO_VALUE = re.compile("symbolic|trace[dr]", re.IGNORECASE)  # in errors of TensorFlow and of JAX
# Compact the batch once 1 / _COMPACTION_DIVISOR of its sentences is done.
_COMPACTION_DIVISOR = 10
_KEPT_PROGRAMS = 32
_programs: Any = weakref.WeakKeyDictionary()  # {model: {what it was made for: program}}
_locks = {is_xla: threading.Lock() for is_xla in (True, False)}


def select(nest: Any, slots: Any) -> Any:
    """Gathers along axis 1, the hypotheses, in every tensor; `slots` `(B, ...)` are indices."""

    def selected(tensor):
        if BACKEND == "tensorflow":
            return tf.gather(tensor, slots, batch_dims=1)
        return tensor[ops.reshape(ops.arange(len(slots)), (-1, *[1] * (slots.ndim - 1))), slots]

    return tree.map_structure(selected, nest)


def pick(values: Any, indices: Any) -> Any:
    """Gathers along the last axis; the other axes are equal."""
    if BACKEND == "tensorflow":
        return tf.gather(values, indices, batch_dims=values.shape.rank - 1)
    return ops.take_along_axis(values, indices, axis=-1)


def first_k(values: Any, k: int) -> tuple[Any, Any]:
    """Returns the k highest values of the last axis and their indices; ties: the lower index."""
    if BACKEND != "torch":
        values, indices = ops.top_k(values, k)
        return values, indices
    indices = ops.argsort(-values)[..., :k]  # stable: `torch.topk` has no order among ties
    return pick(values, indices), indices


def processed(
    processor: Any, log_probs: Any, token_ids: Any, index: Any, has_room: bool, is_compiled: bool
) -> Any:
    """Returns the log-probs after a processor, which receives the same on every backend.

    Args:
        processor: as in `decoding.processors`. One with the attribute `takes_room = True` receives
            `token_ids` as they are.
        log_probs: float32 tensor `(B, W, V)`.
        token_ids: int32 tensor `(B, W, T)`.
        index: int32 scalar, the number of tokens so far.
        has_room: bool. Whether T is larger: then the room for the next tokens is cut off.
        is_compiled: bool. Whether the value of `index` is not known here.

    Raises:
        ValueError: if the processor needs the value of a tensor that has none yet, or returns
            another shape.
    """

    def at(length):
        return lambda log_probs, token_ids: _called(
            processor, log_probs, token_ids[:, :, :length], index
        )

    def first(log_probs, token_ids):
        try:
            return at(0)(log_probs, token_ids)
        except (IndexError, TypeError):  # JAX takes no `index - 1` from an empty axis
            return at(None)(log_probs, token_ids)

    if not has_room or getattr(processor, "takes_room", False):
        return at(None)(log_probs, token_ids)
    if not is_compiled:
        return at(int(index))(log_probs, token_ids)
    # A compiled program has no shape that depends on `index`, so it holds one branch for each.
    others = [at(length) for length in range(1, token_ids.shape[2])]
    return ops.switch(index, [first, *others], log_probs, token_ids)


def _called(processor, log_probs, token_ids, index):
    try:
        result = ops.cast(processor(log_probs, token_ids, index), "float32")
    except Exception as error:
        if not _NO_VALUE.search(f"{type(error).__name__} {error}"):
            raise
        raise ValueError(
            "A processor must not ask for the value of a tensor, because the search is compiled "
            "before there is one: use `ops.where(index > 2, a, b)` instead of `if index > 2`. "
            f"Received: {processor}, which raises {type(error).__name__}"
        ) from None
    expected = log_probs.shape
    is_tensorflow = BACKEND == "tensorflow"
    if not (result.shape.is_compatible_with if is_tensorflow else result.shape.__eq__)(expected):
        raise ValueError(
            "A processor must return log-probs of the shape (B, W, V) that it receives, "
            f"{tuple(expected)}. Received: {processor}, which returns {tuple(result.shape)}"
        )
    # TensorFlow may have lost the size of the vocabulary, which must be static.
    return tf.ensure_shape(result, expected) if is_tensorflow else result


def require_numbers(result: Any) -> Any:
    """Returns a `SearchResult`; raises if the score of a sentence is NaN.

    Raises:
        ValueError; on TensorFlow InvalidArgumentError, and in a graph only when the graph runs.
    """
    is_right = ~ops.any(ops.isnan(result.scores))
    if BACKEND == "tensorflow":
        with tf.control_dependencies([tf.debugging.Assert(is_right, [NOT_FINITE])]):
            return tf.nest.map_structure(tf.identity, result)
    if not is_right:
        raise ValueError(NOT_FINITE)
    return result


def run_program(
    function: Any, model: Any, static: tuple, *inputs: np.ndarray, kind: str | None = None
) -> Any:
    """Returns `function(model, *static, *inputs)` as NumPy arrays, with the model's weights of now.

    TensorFlow traces the function once for each `static`; JAX, and TensorFlow for the kind "xla",
    compile it for the shapes of the inputs too; PyTorch runs it as it is. A model has at most 32
    programs, without those of "xla"; the least recently used goes first. They go with the model.

    Args:
        function: callable.
        model: its first argument, such as a `Transformer`.
        static: its next arguments, which can be hashed.
        *inputs: arrays.
        kind: `"xla"`: XLA compiles the function on TensorFlow; `"eager"`: JAX runs it as it is,
            for a sampler, whose random state is outside. Optional.
    """
    require_own_process()
    weights = present_weights(model)  # others after `enable_lora` or `quantize`
    if BACKEND == "torch" or (BACKEND, kind) == ("jax", "eager"):
        # PyTorch keeps nothing for gradients.
        with torch.inference_mode() if BACKEND == "torch" else contextlib.nullcontext():
            found = function(model, *static, *map(ops.convert_to_tensor, inputs))
            return tree.map_structure(ops.convert_to_numpy, found)
    has_shapes = BACKEND == "jax" or kind == "xla"
    shapes = tuple(each.shape if has_shapes else each.ndim for each in inputs)
    key = function, static, shapes, tuple(map(id, weights)), kind
    with _locks[kind == "xla"]:  # several threads would make the same program
        programs = _programs.setdefault(model, {})
        make = _make_jax_program if BACKEND == "jax" else _make_tensorflow_program
        program = programs.pop(key, None) or make(
            function, weakref.ref(model), static, inputs, kind
        )
        programs[key] = program
        # TensorFlow never frees the programs of XLA.
        for least_used in [key for key in list(programs) if key[-1] != "xla"][:-_KEPT_PROGRAMS]:
            programs.pop(least_used, None)
    values = [[weight.value for weight in weights]] if BACKEND == "jax" else []
    return tree.map_structure(ops.convert_to_numpy, program(*values, *inputs))


def _make_tensorflow_program(function, reference, static, inputs, kind):
    shapes = [each.shape if kind == "xla" else [None] * each.ndim for each in inputs]
    specs = [tf.TensorSpec(*pair) for pair in zip(shapes, [i.dtype for i in inputs], strict=True)]

    def compute(*inputs):
        return function(reference(), *static, *inputs)

    program = tf.function(compute, specs, autograph=False, jit_compile=kind == "xla" or None)
    program = program.get_concrete_function()
    return lambda *inputs: program(*map(tf.constant, inputs))


def _make_jax_program(function, reference, static, inputs, kind):
    import jax

    # The weights are inputs, so that the program follows the training.
    def compute(weights, *inputs):
        with keras.StatelessScope(list(zip(reference().weights, weights, strict=True))):
            return function(reference(), *static, *inputs)

    return jax.jit(compute)


def run_loop(search: Any, state: Any, compaction: bool) -> Any:
    """Steps until all sentences are done.

    Args:
        search: `Search`. With a `fixed_length`, no shape changes, as XLA needs. Otherwise histories
            and caches grow.
        state: its state before the first step.
        compaction: bool. Whether finished sentences leave the batch; used on TensorFlow without a
            `fixed_length`. It does not change the result.

    Returns:
        `SearchResult`, not trimmed.
    """

    def advance(index, state):
        # With `JAX_ENABLE_X64`, sums and quotients of int32 are int64.
        return tree.map_structure(
            lambda old, new: ops.cast(new, old.dtype),
            (index, state),
            (index + 1, search.step(index, state)),
        )

    if search.fixed_length is not None and search.settings.sampler is None:
        _, state = ops.while_loop(
            lambda index, state: ~ops.all(state.sentences.done),
            advance,
            (ops.zeros((), "int32"), state),
        )
        return search.final(state)
    if BACKEND == "tensorflow":
        return _run_growing(search, state, compaction)
    index = ops.zeros((), "int32")
    while not ops.all(state.sentences.done):
        state, index = search.step(index, state), index + 1
    return search.final(state)


def _run_growing(search, state, compaction):
    """Runs a TensorFlow loop in which tensors grow and the batch shrinks."""
    results = tf.nest.map_structure(tf.zeros_like, search.final(state))

    def few_are_done(index, state):
        done = tf.math.count_nonzero(state.sentences.done, dtype=tf.int32)
        return done * (_COMPACTION_DIVISOR if compaction else 1) < tf.size(state.sentences.done)

    def advance(index, state):
        return index + 1, search.step(index, state)

    def run_and_compact(index, state, results):
        shapes = tf.TensorShape([]), loop_shapes(state)
        index, state = tf.while_loop(few_are_done, advance, (index, state), shape_invariants=shapes)
        is_done = state.sentences.done
        done, others = tf.where(is_done)[:, 0], tf.where(~is_done)[:, 0]
        rows = tf.gather(state.sentences.row, done)[:, None]
        length = tf.maximum(index, 1)  # `tensor_scatter_nd_update` rejects outputs of size 0
        finished = tf.nest.map_structure(lambda leaf: tf.gather(leaf, done), search.final(state))
        results = tf.nest.map_structure(
            lambda to, new: tf.tensor_scatter_nd_update(to, rows, new),
            _padded(results, length),
            _padded(finished, length),
        )
        return index, tf.nest.map_structure(lambda leaf: tf.gather(leaf, others), state), results

    start = (tf.constant(0), state, results)
    result_shapes = tf.nest.map_structure(_any_length, results)
    _, _, results = tf.while_loop(
        lambda index, state, results: tf.size(state.sentences.done) > 0,
        run_and_compact,
        start,
        shape_invariants=(tf.TensorShape([]), loop_shapes(state), result_shapes),
    )
    return results


def _padded(result, length):
    """Returns a `SearchResult` with tokens and log-probs padded to `length` by zeros."""
    padding = [[0, 0], [0, 0], [0, length - tf.shape(result.token_ids)[2]]]
    token_ids, log_probs = (tf.pad(each, padding) for each in (result.token_ids, result.log_probs))
    return result._replace(token_ids=token_ids, log_probs=log_probs)


def loop_shapes(state: Any) -> Any:
    """Shapes that hold in every iteration: sentences leave, histories and caches grow."""
    shapes = tf.nest.map_structure(_static_slots, state)
    cache = tf.nest.map_structure(_any_length, state.sentences.cache)
    return shapes._replace(sentences=shapes.sentences._replace(cache=cache))


def _static_slots(tensor):
    return tf.TensorShape([None, *tensor.shape[1:2], *[None] * (tensor.shape.rank - 2)])


def _any_length(tensor):
    return tf.TensorShape([None] * tensor.shape.rank)
