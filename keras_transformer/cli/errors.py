"""How commands report errors: one line each, no traceback."""

import contextlib
import os
import sys
import traceback
import warnings
from pathlib import Path

import typer
from rich.text import Text

from keras_transformer.console import console
from keras_transformer.lazy_names import explanation
from keras_transformer.runs.memory import is_out_of_memory

PACKAGE = str(Path(__file__).resolve().parents[1])
HINT = "  KERAS_TRANSFORMER_TRACEBACK=1 shows where."


@contextlib.contextmanager
def one_line_errors():
    """Reports, in one line, an error that the user can fix, and exits with code 2.

    Python warnings become one line too, without file and line number. Errors of a backend, such as
    one about memory, exit with code 1. Other exceptions are bugs and keep their traceback. If the
    package did not write the message, the line also names the environment variable that shows the
    traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except BrokenPipeError:  # nobody reads the output any more: Typer ends the process quietly
        raise
    except Exception as error:
        if os.environ.get("KERAS_TRANSFORMER_TRACEBACK"):
            raise
        hint = "" if _is_for_users(error) else HINT
        if missing := explanation("This command", error):
            message, exit_code, hint = missing, 2, ""
        elif isinstance(error, OSError) and error.filename is not None:
            message, exit_code, hint = f"{error.strerror}: {error.filename}", 2, ""
        elif isinstance(error, OSError | ValueError | ImportError):
            message, exit_code = " ".join(str(error).split()), 2
        elif reason := _backend_reason(error):
            message, exit_code = reason, 1
        else:
            raise
        console.print(Text(f"Error: {message}").append(hint, "dim"))
        raise typer.Exit(exit_code) from None


def _is_for_users(error):
    """Whether the package itself raised an error, so that the message says what to do."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(PACKAGE) and (last.line or "").startswith("raise")


def _backend_reason(error):
    """Returns, in one line, why a backend has failed; `None` for other errors."""
    tensorflow, jax = map(sys.modules.get, ("tensorflow", "jax"))  # importing them takes seconds
    cause = error.__cause__ or error  # a SavedModel raises its own errors from those of TensorFlow
    if tensorflow is not None and isinstance(cause, tensorflow.errors.OpError):
        from keras_transformer.decoding.saved_model import tensorflow_reason

        return tensorflow_reason(cause)
    is_of_jax = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
    if is_of_jax or is_out_of_memory(error):
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


def _print_warning(message, *_, **__):
    """Replaces `warnings.showwarning`."""
    console.print(f"Warning: {' '.join(str(message).split())}")
