"""Arguments and options that several commands share, and checks of them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli import completion

RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe file, or the name of a packaged one.",
        show_default=False,
        autocompletion=completion.recipe_names,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a key of the recipe, such as training.epochs=5; the value is YAML. Several "
        "times for several keys.",
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of a trained run.",
        show_default=False,
        autocompletion=completion.run_folders,
    ),
]
Model = Annotated[
    Path | None, typer.Option(help="Another model file of the run. [default: its model.keras]")
]
Data = Annotated[Path, typer.Option(help="Paths in the recipe are relative to this folder.")]
BeamSize = Annotated[
    int, typer.Option(help="Hypotheses kept at every step; 1 is greedy search.", min=1)
]
LengthPenalty = Annotated[
    Literal["gnmt", "mean", "none"],
    typer.Option(
        help="The score of n tokens is their log-probability divided by ((5 + n) / 6)^alpha, "
        "by n^alpha, or by nothing."
    ),
]
Alpha = Annotated[
    float, typer.Option(help="Exponent of the length penalty: larger for longer translations.")
]
CountEndToken = Annotated[
    bool, typer.Option(help="Whether n, the length of the length penalty, counts the end token.")
]
Stopping = Annotated[
    Literal["exhaustive", "first_beams"],
    typer.Option(
        help="When the search of a sentence ends: when no better translation is possible, or, as "
        "in CTranslate2 and fairseq, when as many as the beam size have ended."
    ),
]
LengthRatio = Annotated[
    float, typer.Option(help="A translation has at most this times the source's tokens ...", min=0)
]
ExtraLength = Annotated[int, typer.Option(help="... plus this many.", min=0)]
MaxLength = Annotated[
    int | None, typer.Option(help="A translation also has at most this many tokens.", min=1)
]
Dtype = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(
        help="Type to compute in; bfloat16 is fast on processors that support it. "
        "[default: the model's own]"
    ),
]
MaxSourceTokens = Annotated[
    int | None,
    typer.Option(
        help="A line with more tokens is too long to be translated as a whole. "
        "[default: data.max_length of the run's recipe]",
        min=2,
    ),
]
OnTooLong = Annotated[
    Literal["split", "truncate", "error"],
    typer.Option(
        help="What to do with a line that is too long: translate it in pieces, translate only its "
        "first tokens, or stop with an error."
    ),
]
BatchSentences = Annotated[int, typer.Option(help="Most sentences decoded together.", min=1)]
SEARCH_SETTINGS = (
    *("beam_size", "length_penalty", "alpha", "count_end_token", "stopping"),
    *("length_ratio", "extra_length", "max_length", "max_source_tokens", "on_too_long"),
)


def search_settings(context):
    """Returns the search settings among a command's options, for `load_translator`."""
    return {name: context.params[name] for name in SEARCH_SETTINGS if name in context.params}


def check_input(path):
    """Raises, before the work is done, if the path of `--input` cannot be read as a file."""
    if not path.exists() or path.is_dir():
        received = f"the folder {str(path)!r}" if path.is_dir() else str(path)
        raise FileNotFoundError(f"`--input` must name an existing file. Received: {received}")


def check_output(path):
    """Raises, before the work is done, if a file cannot be written to the path of `--output`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} for `--output`.")
    if path.is_dir():
        raise IsADirectoryError(f"`--output` must be a file. Received: the folder {str(path)!r}")


def example(*lines):
    """Returns the last paragraph of a command's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)
