"""Errors of commands in one line: which of them name the variable that shows the traceback."""

import errno
import json
import sys

import numpy as np
import pytest
import typer

from keras_transformer.cli.errors import one_line_errors
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.texts import decode_lines


def missing_package():
    import keras_transformer_that_is_not_installed  # noqa: F401


# (what fails; whether the message was written for users).
FAILURES = {
    "setting": (lambda: TrainingSettings(epochs=0), True),
    "recipe": (lambda: Recipe.load("nowhere"), True),
    "text": (lambda: list(decode_lines([b"\xff"], "text")), True),
    "no file": (lambda: open("nowhere", encoding="utf-8"), True),
    "package": (missing_package, True),
    "number": (lambda: int("x"), False),
    "NumPy": (lambda: np.zeros(2) + np.zeros(3), False),
    "JSON": (lambda: json.loads("{"), False),
    "encoding": (lambda: "ä".encode("ascii"), False),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_line_that_is_not_for_users_names_the_variable(failure, capsys):
    fail, is_for_users = FAILURES[failure]
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        fail()
    assert caught.value.exit_code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert line.endswith("KERAS_TRANSFORMER_TRACEBACK=1 shows where.") == (not is_for_users)


@pytest.mark.parametrize("kind", [None, MemoryError, RuntimeError])
def test_error_of_a_backend_is_one_line_and_exit_code_1(kind, capsys):
    """As it is, or as a SavedModel raises it."""
    errors = pytest.importorskip("tensorflow").errors
    reason = errors.InternalError(None, None, "Graph execution error:\n[[node]]\nno room")
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        if kind is None:
            raise reason
        raise kind("no room") from reason
    assert caught.value.exit_code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: no room  ")


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), AttributeError("x")])
def test_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)), one_line_errors():
        raise error


def test_output_that_nobody_reads_ends_the_command_quietly(capsys):
    def close_pipe():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    app = typer.Typer()
    app.command()(one_line_errors()(close_pipe))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        for name in ("stdout", "stderr", "excepthook"):  # Typer replaces them
            patch.setattr(sys, name, getattr(sys, name))
        app([])
    assert capsys.readouterr() == ("", "")


def test_variable_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_TRACEBACK", "1")
    with pytest.raises(ValueError, match="epochs=0"), one_line_errors():
        TrainingSettings(epochs=0)


def test_brackets_of_a_message_stay(capsys):
    with pytest.raises(typer.Exit), one_line_errors():
        raise ValueError("[b] :smile:")
    assert capsys.readouterr().err.startswith("Error: [b] :smile:")
