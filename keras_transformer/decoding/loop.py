"""The loop of a search and its programs, on every backend.

The rules of the search are the same on every backend: see `search.py` and `beam.py`. The code of
each backend is in `loop_tensorflow.py`, `loop_jax.py` and `loop_torch.py`; JAX and PyTorch share
`loop_eager.py`.
"""

import importlib
import re
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from keras_transformer.decoding import loop_eager
from keras_transformer.decoding.forks import require_own_process

BACKEND = keras.config.backend()
backend = importlib.import_module(f"keras_transformer.decoding.loop_{BACKEND}")
shared = backend if BACKEND == "tensorflow" else loop_eager

select, pick, require_numbers = shared.select, shared.pick, shared.require_numbers

_NO_VALUE = re.compile("symbolic|trace[dr]", re.IGNORECASE)  # in errors of TensorFlow and of JAX


def first_k(values: Any, k: int) -> tuple[Any, Any]:
    """Returns the k highest values of the last axis and their indices; ties: the lower index."""
    if BACKEND == "torch":
        indices = ops.argsort(-values)[..., :k]  # stable: `torch.topk` has no order among ties
        return pick(values, indices), indices
    highest, indices = ops.top_k(values, k)
    return highest, indices


def processed(
    processor: Any, log_probs: Any, token_ids: Any, index: Any, has_room: bool, is_compiled: bool
) -> Any:
    """Applies a processor to log-probs, with the same arguments on every backend.

    Args:
        processor: as in `decoding.processors`. If it has the attribute `takes_room = True`, it
            receives all of `token_ids`.
        log_probs: float32 tensor `(B, W, V)`.
        token_ids: int32 tensor `(B, W, T)`.
        index: int32 scalar, the number of tokens so far.
        has_room: bool. Whether T may be more than `index`. The processor receives no more than
            `index` tokens.
        is_compiled: bool. Whether the value of `index` is unknown until the search runs.

    Raises:
        ValueError: if the processor needs the value of a tensor that has none yet, or returns
            another shape.
    """

    def with_tokens(length):
        """Returns a function that calls the processor with the first `length` tokens."""
        return lambda log_probs, token_ids: _call_processor(
            processor, log_probs, token_ids[:, :, :length], index
        )

    def without_tokens(log_probs, token_ids):
        """Calls the processor before the first token, on JAX perhaps with room for all tokens."""
        try:
            return with_tokens(0)(log_probs, token_ids)
        except (IndexError, TypeError):  # JAX cannot read `index - 1` of an empty axis
            return with_tokens(None)(log_probs, token_ids)

    if not has_room or getattr(processor, "takes_room", False):
        return with_tokens(None)(log_probs, token_ids)
    if not is_compiled:
        return with_tokens(int(index))(log_probs, token_ids)
    # No shape of a compiled program depends on `index`, so it holds one branch for each length.
    branches = [without_tokens]
    for length in range(1, token_ids.shape[2]):
        branches.append(with_tokens(length))
    return ops.switch(index, branches, log_probs, token_ids)


def _call_processor(processor, log_probs, token_ids, index):
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
    # The size of the vocabulary must be static.
    outputs = shared.with_shape(result, log_probs.shape)
    if outputs is None:
        raise ValueError(
            "A processor must return log-probs of the shape (B, W, V) that it receives, "
            f"{tuple(log_probs.shape)}. Received: {processor}, which returns {tuple(result.shape)}"
        )
    return outputs


def run_program(
    function: Any, model: Any, static: tuple, *inputs: np.ndarray, kind: str | None = None
) -> Any:
    """Returns `function(model, *static, *inputs)` as NumPy arrays, with the current weights.

    TensorFlow traces the function once for each `static`; JAX, and TensorFlow for the kind "xla",
    compile it for the shapes of the inputs too; PyTorch runs it as it is. The programs are kept:
    see `find_or_compile`. After `enable_lora` or `quantize`, which replace weights, new ones are
    compiled.

    Args:
        function: callable.
        model: its first argument, such as a `Transformer`.
        static: its next arguments, which must be hashable.
        *inputs: arrays.
        kind: `"xla"`: XLA compiles the function on TensorFlow; `"eager"`: JAX runs it as it is,
            for a sampler, whose random state is outside the program. Optional.
    """
    require_own_process()
    outputs = backend.run(function, model, static, inputs, kind)
    return tree.map_structure(ops.convert_to_numpy, outputs)


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
    if search.fixed_length is None or search.settings.sampler is not None:
        return backend.run_growing(search, state, compaction)

    def advance(index, state):
        # With `JAX_ENABLE_X64`, sums and quotients of int32 are int64.
        return tree.map_structure(
            lambda old, new: ops.cast(new, old.dtype),
            (index, state),
            (index + 1, search.step(index, state)),
        )

    _, state = ops.while_loop(
        lambda index, state: ~ops.all(state.sentences.done),
        advance,
        (ops.zeros((), "int32"), state),
    )
    return search.final(state)
