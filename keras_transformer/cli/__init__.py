"""The command line: `keras-transformer <command>`, a file for each station of the data flow.

Thin: each command checks its words, calls the package, and prints. TensorFlow is imported only
inside the commands that need it, so that `--help` answers at once.
"""

from typing import Annotated

import typer

from keras_transformer import __version__
from keras_transformer.cli import data, decoding, evaluation, training
from keras_transformer.cli.export import export

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


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
):
    """Sequence-to-sequence Transformers in Keras: train, translate, evaluate, export."""


for station in (data, training, decoding, evaluation, export):
    app.add_typer(station.commands)  # without a name: commands of the program itself
