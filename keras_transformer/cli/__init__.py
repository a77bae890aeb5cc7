"""The command line `keras-transformer`: one file for each group of commands.

A command parses its options, calls the package and prints. A backend takes seconds to import, so
only the commands that need it import it.
"""

from typing import Annotated

import typer

from keras_transformer import __version__
from keras_transformer.cli import (
    data,
    decoding,
    distillation,
    errors,
    evaluation,
    export,
    importing,
    options,
    serving,
    training,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def print_version(is_asked):
    if is_asked:
        print(f"keras-transformer {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Sequence-to-sequence Transformers in Keras: train, translate, evaluate, export."""


GROUPS = data, training, importing, decoding, distillation, evaluation, export, serving
for group in GROUPS:
    app.add_typer(group.commands)  # a name would make it `keras-transformer NAME COMMAND`
for typers in (*(group.commands for group in GROUPS), importing.importing):
    for command in typers.registered_commands:
        command.help, command.epilog = options.help_and_example(command.callback)
        command.callback = errors.one_line_errors()(command.callback)
