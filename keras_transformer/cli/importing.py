"""Commands that import models of other projects: `import opus-mt`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli import options
from keras_transformer.cli.errors import import_tensorflow, one_line_errors
from keras_transformer.console import console

commands = typer.Typer()
importing = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Import a model of another project as a run.",
    epilog=options.example("keras-transformer import opus-mt ~/opus-mt-en-de runs/en_de"),
)
commands.add_typer(importing, name="import")


@importing.command(
    epilog=options.example(
        "keras-transformer import opus-mt ~/opus-mt-en-de runs/en_de",
        "keras-transformer import opus-mt opus-2020-02-26.zip runs/en_de",
        "keras-transformer import opus-mt Helsinki-NLP/opus-mt-en-de runs/en_de",
    )
)
def opus_mt(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Folder or zip file of the model, of the Hugging Face Hub or of Helsinki; or a "
            "name on the Hub, perhaps with `@REVISION`, which is downloaded.",
            show_default=False,
        ),
    ],
    run: Annotated[Path, typer.Argument(help="Folder to write: a run.", show_default=False)],
) -> None:
    """Import an OPUS-MT model (Marian) of the University of Helsinki as a run.

    The run is like any other: translate, score, evaluate, export, serve; to fine-tune it, name it
    as `training.init_from` of a recipe.
    """
    with one_line_errors():
        import_tensorflow()
        from keras_transformer.runs.folder import RunFolder
        from keras_transformer.runs.importing import import_marian

        translator = import_marian(model, run, compiled=False)
        origin = RunFolder(run).origin() or {}
        languages = getattr(translator.source_tokenizer, "languages", [])
        config = translator.model.config
    parameters = translator.model.count_params()
    console.print(f"{parameters:,} parameters, {config.vocabulary_size:,} tokens", highlight=False)
    console.print(f"Licence: {origin['license']}", highlight=False)
    console.print(f"Attribution: {origin['attribution']}", highlight=False)
    if languages:
        console.print(f"--target-language is one of: {', '.join(languages)}", highlight=False)
    print(run)
