"""How commands report errors: one line, no traceback, no messages of TensorFlow."""

import contextlib
import os
import sys
import warnings

import typer

from keras_transformer.console import console


@contextlib.contextmanager
def clear_errors():
    """Ends the program with one line and exit code 2 on what the user can mend.

    Warnings of Python appear as one line too, without the place in the code.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_warning
            yield
    except (OSError, ValueError, ImportError) as error:
        if os.environ.get("KERAS_TRANSFORMER_TRACEBACK"):
            raise
        message = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.strerror}: {error.filename}"
        console.print(f"Error: {message}")
        raise typer.Exit(2) from None
    except Exception as error:
        # TensorFlow's own, such as logits that are NaN: the last line but the node's says what.
        if os.environ.get("KERAS_TRANSFORMER_TRACEBACK") or not _is_of_tensorflow(error):
            raise
        lines = [line.strip() for line in error.message.splitlines() if "[[" not in line]
        console.print(f"Error: {next(filter(None, reversed(lines)), error)}")
        raise typer.Exit(1) from None


def print_warning(message, *_, **__):
    """What Python shows a warning by: its words, in one line."""
    console.print(f"Warning: {' '.join(str(message).split())}")


def _is_of_tensorflow(error):
    return type(error).__module__ == "tensorflow.python.framework.errors_impl"


def import_tensorflow():
    """Imports TensorFlow without the lines it writes to standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        import tensorflow  # noqa: F401

        with contextlib.suppress(ImportError):
            import tensorflow_text  # noqa: F401
    finally:
        os.dup2(saved, 2)
        os.close(saved)
