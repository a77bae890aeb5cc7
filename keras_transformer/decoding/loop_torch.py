"""The search on PyTorch: its steps are one traced program, for tensors of all shapes.

A step is a thousand small calls of Keras and PyTorch. Traced, they run without Python, and give the
same bits: for one sentence and a tiny model 7 times as fast.
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

_STEPS_OF_TRACING = 4  # that `_trace` computes ahead: it needs sentences that may be so long
_NOT_TRACED = object()


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Runs `function(model, *static, *inputs)`, whatever the `kind`."""
    with torch.inference_mode():  # it keeps nothing for gradients
        return function(model, *static, *map(ops.convert_to_tensor, inputs))


def run_growing(search: Any, state: Any, compaction: bool) -> Any:
    """Runs a search whose tensors grow; finished sentences stay in the batch.

    Steps with constraints or a sampler run as they are: a processor may ask for values of tensors.

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
    """Steps by a traced program until the sentences are done, or the next step is constrained.

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
            # Within a search, only `force_end` constrains a step after one without constraints.
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

    Returns `_NOT_TRACED` if the step reads values of tensors, or if its program gives other bits
    than the step for other shapes: a user's block may do what a trace cannot hold.
    """
    # Emptied below: the program keeps `step`, which must not keep the model.
    held = [replace(search, is_plain=True), present_weights(search.step_key[0]), state]

    def step(values, penalties, index, flat):
        search, weights, structure = held
        search = replace(search, penalties=penalties)
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            new = search.step(index, tree.pack_sequence_as(structure, flat))
        return tuple(tree.flatten(new))

    def inputs_after(steps, rows):
        """Returns the inputs of a later step, for `rows` copies of the first sentence."""
        values, penalties = _values(search), ops.convert_to_tensor(search.penalties)
        flat = [ops.repeat(tensor[:1], rows, axis=0) for tensor in tree.flatten(state)]
        for later in range(index, index + steps):
            flat = list(step(values, penalties, _scalar(later), flat))
        return values, penalties, _scalar(index + steps), flat

    try:
        with _NoValues():
            examples, others = inputs_after(2, rows=3), inputs_after(3, rows=2)
        with torch.jit.optimized_execution(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated, but measured: nothing else is as fast
            program = torch.jit.trace(step, examples, check_trace=False)
            if not all(map(torch.equal, program(*others), step(*others))):
                program = _NOT_TRACED
    except Exception:  # whatever the step does that a trace cannot hold
        program = _NOT_TRACED
    held.clear()
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
