"""Command that writes a run's translator as a SavedModel: `export`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli import options
from keras_transformer.cli.errors import one_line_errors
from keras_transformer.cli.translators import load_translator

commands = typer.Typer()


@commands.command(epilog=options.example("keras-transformer export runs/multi30k_en_de served/"))
def export(
    run: options.RunArgument,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    max_source_tokens: options.MaxSourceTokens = None,
    on_too_long: options.OnTooLong = "split",
    model: options.Model = None,
) -> None:
    """Write a SavedModel that takes raw strings and returns translations."""
    with one_line_errors():
        translator = load_translator(
            run, model, max_source_tokens=max_source_tokens, on_too_long=on_too_long
        )
        from keras_transformer.export.saved_model import export_saved_model

        print(export_saved_model(translator, directory))
