"""A run for places where this package is not installed."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.errors import clear_errors
from keras_transformer.cli.options import (
    MaxSourceTokensOption,
    ModelOption,
    OnTooLong,
    OnTooLongOption,
    RunArgument,
    example,
)
from keras_transformer.cli.translators import load_translator

commands = typer.Typer()


@commands.command(epilog=example("keras-transformer export runs/multi30k_en_de served/"))
def export(
    run: RunArgument,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    max_source_tokens: MaxSourceTokensOption = None,
    on_too_long: OnTooLongOption = OnTooLong.SPLIT,
    model: ModelOption = None,
):
    """Write a SavedModel that takes raw strings and returns translations."""
    with clear_errors():
        long_lines = {"max_source_tokens": max_source_tokens, "on_too_long": on_too_long.value}
        translator = load_translator(run, model, **long_lines)
        from keras_transformer.export.saved_model import export_saved_model

        print(export_saved_model(translator, directory))
