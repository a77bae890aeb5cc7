"""Command that writes a run's translator as a SavedModel or a CTranslate2 model: `export`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer.cli import options
from keras_transformer.cli.backend import backend_name, require_tensorflow
from keras_transformer.cli.errors import one_line_errors
from keras_transformer.cli.translators import load_translator
from keras_transformer.console import console

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
LANGUAGE = (
    "saved_model only: code of the target language, such as de. [default: the last suffix of the "
    "recipe's training file]"
)
Examples = Annotated[
    Path | None,
    typer.Option(
        help="saved_model only: file of lines that examples.jsonl holds with their translations, "
        "for keras-transformer verify. [default: some words]"
    ),
]
CTRANSLATE2_OPTIONS = "run directory format quantization suppressed_tokens model".split()


@commands.command()
@options.search_options()
def export(
    context: typer.Context,
    run: options.RunArgument,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    format: Format = "saved_model",
    quantization: Quantization = None,
    frozen: Frozen = False,
    *,
    settings: dict[str, Any],
    target_language: Annotated[str | None, typer.Option(help=LANGUAGE)] = None,
    examples: Examples = None,
    model: options.Model = None,
) -> None:
    """Write a folder that translates without this package.

    Example:

        keras-transformer export runs/multi30k_en_de served/
        keras-transformer export runs/multi30k_en_de ct2/ --format ctranslate2 --quantization int8
    """
    with one_line_errors():
        is_saved_model = format == "saved_model"
        if is_saved_model and quantization:
            raise ValueError(
                "`--quantization` needs `--format ctranslate2`. "
                f"Received: --quantization {quantization}"
            )
        if not is_saved_model and (unheld := options_given(context) - {*CTRANSLATE2_OPTIONS}):
            raise ValueError(
                "A CTranslate2 model does not hold the settings of a search: they are arguments of "
                "its `translate_batch`. Received: "
                + ", ".join(f"--{name.replace('_', '-')}" for name in sorted(unheld))
            )
        from keras_transformer.data.corpus import read_lines

        if is_saved_model:
            require_tensorflow_backend()
        lines = None if examples is None else list(read_lines(examples))
        translator = load_translator(run, model, **settings)
        if is_saved_model:
            from keras_transformer.export.saved_model import export_saved_model

            card = model_card(run, settings.get("source_language"), target_language)
            tags = getattr(translator.source_tokenizer, "languages", [])
            if missing := missing_languages(card, has_tags=bool(tags)):
                console.print(
                    f"The names of the training files do not tell the {' and the '.join(missing)} "
                    "language, so model_card.json has none, and a server cannot say it. To name "
                    f"it: {' '.join(f'--{side}-language CODE' for side in missing)}"
                )
            if model is not None:
                card["bleu"] = None  # the report is of another model file
            asked = {"frozen": frozen, "card": card, "examples": lines}
            print(export_saved_model(translator, directory, **asked))
        else:
            from keras_transformer.export.ctranslate2 import export_ctranslate2

            print(export_ctranslate2(translator, directory, quantization))


def require_tensorflow_backend():
    """Raises unless this command can write a SavedModel."""
    require_tensorflow()
    if (backend := backend_name()) != "tensorflow":
        raise ValueError(
            "`--format saved_model` must run with KERAS_BACKEND=tensorflow. "
            f"Received: the backend {backend}"
        )


def options_given(context):
    """Returns the names of the options that the user gave."""
    names = context.params
    return {name for name in names if context.get_parameter_source(name).name != "DEFAULT"}


def missing_languages(card, has_tags):
    """Returns the sides, source and target, whose language the model card does not name.

    A model with tags has several target languages, which the card lists.
    """
    sides = ("source",) if has_tags else ("source", "target")
    return [side for side in sides if card[f"{side}_language"] is None]


def model_card(run, source_language, target_language):
    """Returns the entries of `model_card.json` that the run's folder knows."""
    from keras_transformer.runs.folder import RunFolder

    folder = RunFolder(run)
    source, target = folder.recipe().data.languages()
    origin = folder.origin()
    bleu = folder.report().get("BLEU")
    return {
        "name": folder.path.resolve().name,
        "source_language": source_language or source,
        "target_language": target_language or target,
        "bleu": bleu and {"score": bleu["value"], "signature": bleu["signature"]},
        **({} if origin is None else {"origin": origin, "license": origin["license"]}),
    }
