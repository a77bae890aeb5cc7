"""How commands report errors: one line each, no traceback, no log of TensorFlow."""

import contextlib
import os
import sys
import warnings

import typer

from keras_transformer.console import console


@contextlib.contextmanager
def one_line_errors():
    """Reports an error that the user can fix in one line, and exits with code 2.

    Python warnings become one line too, without file and line number. Errors of TensorFlow, such
    as one about NaN logits, exit with code 1. Other exceptions are bugs and keep their traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except Exception as error:
        if os.environ.get("KERAS_TRANSFORMER_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            message, exit_code = f"{error.strerror}: {error.filename}", 2
        elif isinstance(error, OSError | ValueError | ImportError):
            message, exit_code = " ".join(str(error).split()), 2
        elif _is_of_tensorflow(error):
            # Its last line without a graph node ("[[...]]") says what is wrong.
            lines = [line.strip() for line in error.message.splitlines() if "[[" not in line]
            message, exit_code = next(filter(None, reversed(lines)), str(error)), 1
        else:
            raise
        console.print(f"Error: {message}")
        raise typer.Exit(exit_code) from None


def _is_of_tensorflow(error):
    tensorflow = sys.modules.get("tensorflow")  # not imported for this: that takes seconds
    return tensorflow is not None and isinstance(error, tensorflow.errors.OpError)


def _print_warning(message, *_, **__):
    """Replaces `warnings.showwarning`."""
    console.print(f"Warning: {' '.join(str(message).split())}")


def import_tensorflow() -> None:
    """Imports TensorFlow without the lines that it logs to standard error."""
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
