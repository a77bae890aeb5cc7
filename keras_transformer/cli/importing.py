"""Commands that import models of other projects: `import hub`, `marian` and `opus-mt`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.backend import import_backend
from keras_transformer.console import console

commands = typer.Typer()
importing = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Import a model of another project as a run.",
    epilog="**Example**\n\n`keras-transformer import marian ~/model runs/mine`",
)
commands.add_typer(importing, name="import")
AddLanguage = Annotated[
    str | None,
    typer.Option(
        help="Code of a language that M2M-100 or NLLB-200 lacks, such as `tyv_Cyrl`: the model "
        "gets a token for it, to be trained.",
        show_default=False,
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        help="With `--add-language`: the model's language that the new one starts as a copy of, "
        "such as `kir_Cyrl`.",
        show_default=False,
    ),
]
AddPieces = Annotated[
    Path | None,
    typer.Option(
        help="With `--add-language`: file of text in the new language. Its pieces that the model "
        "lacks become tokens; only text in this language uses them.",
        show_default=False,
    ),
]
NumPieces = Annotated[
    int | None,
    typer.Option(help="Maximum number of these pieces. [default: 2000]", show_default=False),
]


@importing.command("hub")
@importing.command("marian")
@importing.command("opus-mt")
def import_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Folder or zip file of the model, in the form of Marian or of the Hugging Face "
            "Hub; or its name on the Hub, perhaps with `@REVISION`, to download it.",
            show_default=False,
        ),
    ],
    run: Annotated[Path, typer.Argument(help="Folder to write: a run.", show_default=False)],
    weights: Annotated[str | None, typer.Option(help="The `*.npz`, if there are several.")] = None,
    arithmetic: Annotated[
        str | None,
        typer.Option(help="What trained it: `marian` or `transformers`. [default: by the files]"),
    ] = None,
    add_language: AddLanguage = None,
    like: Like = None,
    add_pieces: AddPieces = None,
    num_pieces: NumPieces = None,
    precision: Annotated[
        str,
        typer.Option(help="`float32`, or `bfloat16`, which halves the weights and rounds them."),
    ] = "float32",
) -> None:
    """Import a model of Marian (such as those of OPUS-MT), M2M-100 or NLLB-200 as a run.

    The run is like any other: translate, score, evaluate, export, serve. To fine-tune it, train its
    `config.yaml` into another folder. `hub`, `opus-mt` and `marian` are the same command.

    Example:

        keras-transformer import marian ~/model runs/mine --weights model.npz.best-bleu.npz
        keras-transformer import opus-mt opus-2020-02-26.zip runs/en_de
        keras-transformer import opus-mt Helsinki-NLP/opus-mt-en-de runs/en_de
        keras-transformer import hub facebook/nllb-200-distilled-600M runs/nllb
        keras-transformer import hub nllb runs/tuvan --add-language tyv_Cyrl --like kir_Cyrl
    """
    import_backend()
    from keras_transformer.importing.importer import import_model
    from keras_transformer.runs.folder import RunFolder

    translator = import_model(
        model,
        run,
        weights=weights,
        arithmetic=arithmetic,
        add_language=add_language,
        like=like,
        add_pieces=add_pieces,
        num_pieces=num_pieces,
        precision=precision,
        print_fn=console.print,
    )
    _print_facts(translator, RunFolder(run).origin() or {})
    print(run)


def _print_facts(translator, origin):
    """Prints the size, the licence and the languages of a model."""
    languages = translator.languages
    config = translator.model.config
    parameters = translator.model.count_params()
    console.print(f"{parameters:,} parameters, {config.vocabulary_size:,} tokens")
    console.print(f"Licence: {origin['license']}")
    console.print(f"Attribution: {origin['attribution']}")
    if languages:
        console.print(f"--target-language is one of: {', '.join(languages)}")
        if translator.source_tokenizer.language_ids:
            console.print("--source-language must be given too, and is one of the same languages.")
