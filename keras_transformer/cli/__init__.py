"""The command line: `keras-transformer <command>`, a file for each station of the data flow.

Thin: each command checks its words, calls the package, and prints. TensorFlow is imported only
inside the commands that need it, so that `--help` answers at once.
"""

import typer

from keras_transformer.cli import data, decoding, evaluation, export, training

app = typer.Typer(
    help="Sequence-to-sequence Transformers in Keras: train, translate, evaluate, export.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for station in (data, training, decoding, evaluation, export):
    app.add_typer(station.commands)  # without a name: commands of the program itself
