"""Command that writes a run's translator as a SavedModel or a CTranslate2 model: `export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli import options
from keras_transformer.cli.errors import one_line_errors
from keras_transformer.cli.translators import load_translator

commands = typer.Typer()

Format = Annotated[
    Literal["saved_model", "ctranslate2"],
    typer.Option(
        help="saved_model: tokenizer, model and search in one TensorFlow graph, from strings to "
        "strings. ctranslate2: the model and its SentencePiece files, for the engine in C++; the "
        "search settings are arguments of its translate_batch."
    ),
]
Quantization = Annotated[
    Literal["int8", "int16", "float16", "bfloat16"] | None,
    typer.Option(help="ctranslate2 only: the type of the weights. [default: float32]"),
]
Frozen = Annotated[
    bool,
    typer.Option(
        "--frozen",
        help="saved_model only: the search has a copy of the weights in its graph: faster, larger.",
    ),
]


@commands.command(
    epilog=options.example(
        "keras-transformer export runs/multi30k_en_de served/",
        "keras-transformer export runs/multi30k_en_de ct2/ --format ctranslate2 "
        "--quantization int8",
    )
)
def export(
    run: options.RunArgument,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    format: Format = "saved_model",
    quantization: Quantization = None,
    frozen: Frozen = False,
    max_source_tokens: options.MaxSourceTokens = None,
    on_too_long: options.OnTooLong = "split",
    model: options.Model = None,
) -> None:
    """Write a folder that translates without this package."""
    with one_line_errors():
        is_saved_model = format == "saved_model"
        if is_saved_model and quantization:
            raise ValueError(
                "`--quantization` needs `--format ctranslate2`. "
                f"Received: --quantization {quantization}"
            )
        if not is_saved_model and (frozen or max_source_tokens or on_too_long != "split"):
            raise ValueError(
                "A CTranslate2 model does not hold `--frozen`, `--max-source-tokens` and "
                "`--on-too-long`: leave them out."
            )
        translator = load_translator(
            run, model, max_source_tokens=max_source_tokens, on_too_long=on_too_long
        )
        if is_saved_model:
            from keras_transformer.export.saved_model import export_saved_model

            print(export_saved_model(translator, directory, frozen=frozen))
        else:
            from keras_transformer.export.ctranslate2 import export_ctranslate2

            print(export_ctranslate2(translator, directory, quantization))
