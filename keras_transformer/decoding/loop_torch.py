"""The search on PyTorch: its steps are one traced program, for tensors of all shapes.

A step makes a thousand small calls of Keras and PyTorch. A trace runs them without Python and gives
the same bits: 7 times as fast for one sentence and a tiny model.
"""

import warnings
from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np
import torch
from keras import ops, tree
from torch.overrides import TorchFunctionMode

from keras_transformer.decoding.programs import ProgramKey, find_or_compile
from keras_transformer.present_weights import present_weights

_STEPS_OF_TRACING = 4  # steps that `_trace` computes; they must not exceed the maximum length
_NOT_TRACED = object()


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Runs `function(model, *static, *inputs)`; ignores `kind`."""
    with torch.inference_mode():  # stores nothing for gradients
        return function(model, *static, *map(ops.convert_to_tensor, inputs))


def run_growing(search: Any, state: Any, compaction: bool) -> Any:
    """Runs a search whose tensors grow; finished sentences stay in the batch.

    Steps with constraints or a sampler are not traced: a processor may read values of tensors.

    Args:
        search, state: as in `run_loop`.
        compaction: ignored.

    Returns:
        `SearchResult`, not trimmed.
    """
    may_trace = search.step_key is not None and search.settings.sampler is None
    index = 0
    while not ops.all(state.sentences.done):
        program = None
        if may_trace and not search.is_constrained(state, index):
            program = _program(search, state, index)
        if program is None:
            state, index = search.step(_scalar(index), state), index + 1
        else:
            state, index = _run_unconstrained(search, program, state, index)
    return search.final(state)


def _run_unconstrained(search, program, state, index):
    """Runs a traced step until the sentences are done, or the next step is constrained.

    Returns:
        the state, and the number of steps so far.
    """
    values, penalties = _values(search), ops.convert_to_tensor(search.penalties)
    flat = tree.flatten(state)
    [done] = [place for place, leaf in enumerate(flat) if leaf is state.sentences.done]
    with torch.jit.optimized_execution(False):
        while True:
            flat, index = list(program(values, penalties, _scalar(index), flat)), index + 1
            is_done = bool(flat[done].all())
            # Only `force_end` can constrain a step that follows an unconstrained one.
            if is_done or search.settings.force_end:
                state = tree.pack_sequence_as(state, flat)
                if is_done or search.is_constrained(state, index):
                    return state, index


def _program(search, state, index):
    """Returns the program of a search's step without constraints, or `None` if it is not traced."""
    if index + _STEPS_OF_TRACING > ops.max(state.sentences.max_lengths):
        return None
    model, *others = search.step_key
    static = search.settings, search.n_best, *others
    key = ProgramKey(_program, static, (), tuple(map(id, present_weights(model))))
    program = find_or_compile(model, key, lambda: _trace(search, state, index))
    return None if program is _NOT_TRACED else program


def _trace(search, state, index):
    """Returns a step as a program of weights, penalties, index and the tensors of a state.

    Returns `_NOT_TRACED` if the step reads values of tensors, or if the bits of program and step
    differ for other shapes. A user's block may cause both.
    """
    # Emptied below: the program keeps `step` alive, but must not keep the model alive.
    references = [replace(search, is_plain=True), present_weights(search.step_key[0]), state]

    def step(values, penalties, index, flat):
        search, weights, structure = references
        search = replace(search, penalties=penalties)
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            new_state = search.step(index, tree.pack_sequence_as(structure, flat))
        return tuple(tree.flatten(new_state))

    def inputs_after(steps, rows):
        """Returns the inputs of a later step, for `rows` copies of the first sentence."""
        values, penalties = _values(search), ops.convert_to_tensor(search.penalties)
        flat = [ops.repeat(tensor[:1], rows, axis=0) for tensor in tree.flatten(state)]
        for number in range(index, index + steps):
            flat = list(step(values, penalties, _scalar(number), flat))
        return values, penalties, _scalar(index + steps), flat

    try:
        with _NoValues():
            examples, others = inputs_after(2, rows=3), inputs_after(3, rows=2)
        with torch.jit.optimized_execution(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `trace` is deprecated, but nothing else is as fast
            program = torch.jit.trace(step, examples, check_trace=False)
            if not all(map(torch.equal, program(*others), step(*others))):
                program = _NOT_TRACED
    except Exception:  # a user's block may raise anything in a trace
        program = _NOT_TRACED
    references.clear()
    return program


def _values(search):
    """Returns the tensors of the weights behind a search."""
    return [weight.value.detach() for weight in present_weights(search.step_key[0])]


def _scalar(index):
    return ops.convert_to_tensor(index, "int32")


class _NoValues(TorchFunctionMode):
    """Raises when Python reads the value of a tensor: a trace would keep it as a constant."""

    _reading: ClassVar = (
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__bool__),
        *(torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
    )

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in self._reading:
            raise TypeError(f"A step that is traced must not call {function.__name__}")
        return function(*args, **(kwargs or {}))
