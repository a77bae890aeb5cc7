"""Compiled programs of models, kept for the next call."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

_MAX_PROGRAMS = 32
_programs: Any = weakref.WeakKeyDictionary()  # {model: {key: program}}
_locks = {is_xla: threading.Lock() for is_xla in (True, False)}


class ProgramKey(NamedTuple):
    """Key of a program: the function, and everything that it was compiled for.

    Attributes:
        function: callable that was compiled.
        static: its arguments that are not tensors.
        shapes: for each input, its shape if the program is compiled for that shape, else its number
            of axes.
        weights: the `id` of each weight of the model.
        is_xla: whether TensorFlow's XLA compiled it.
    """

    function: Callable
    static: tuple[Any, ...]
    shapes: tuple[Any, ...]
    weights: tuple[int, ...]
    is_xla: bool = False


def find_or_compile(model: Any, key: ProgramKey, compile_program: Callable[[], Any]) -> Any:
    """Returns the program of a model for a key, and keeps it as long as the model exists.

    At most 32 programs of a model are kept; the least recently used one is dropped. Those of
    TensorFlow's XLA do not count and are always kept, because TensorFlow never frees them.

    Args:
        model: such as a `Transformer`. The program must not hold a reference to it.
        key: `ProgramKey` of the program.
        compile_program: callable that returns a new program.
    """
    with _locks[key.is_xla]:  # without it, several threads would compile the same program
        programs = _programs.setdefault(model, {})
        program = programs.pop(key, None) or compile_program()
        programs[key] = program  # the last one is the most recently used
        # A list, because the thread that holds the other lock may add a program meanwhile.
        others = [key for key in list(programs) if not key.is_xla]
        for least_recently_used in others[:-_MAX_PROGRAMS]:
            programs.pop(least_recently_used, None)
    return program
