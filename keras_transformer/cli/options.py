"""Arguments and options that several commands share, and checks of them."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer.decoding import search_settings, text_settings

RecipeArgument = Annotated[
    str,
    typer.Argument(help="A recipe file, or the name of a packaged one.", show_default=False),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a key of the recipe, such as training.epochs=5; several times for several.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]
RunArguments = Annotated[
    list[Path],
    typer.Argument(
        help="Folder of a trained run. Several, of the same vocabularies, translate as an ensemble "
        "by the mean of their probabilities, with the settings of the first.",
        show_default=False,
    ),
]
Run = Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/RECIPE]")]
Model = Annotated[
    Path | None, typer.Option(help="Another model file of the run. [default: its model.keras]")
]
Data = Annotated[Path, typer.Option(help="Paths in the recipe are relative to this folder.")]
Source = Annotated[
    str | None, typer.Option(help="File of source lines. [default: the recipe's test split]")
]
References = Annotated[
    list[str] | None, typer.Option(help="File of references; several times for several.")
]
Tokenized = Annotated[
    bool, typer.Option("--tokenized", help="Text is tokenized: BLEU splits at white space.")
]
Dtype = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="Type to compute in. [default: the model's own]"),
]
BatchSentences = Annotated[int, typer.Option(help="Maximum number of sentences in a batch.", min=1)]
TargetLanguage = Annotated[
    str | None, typer.Option(help="Code of the target language, of a model that has several.")
]
CHOICES = search_settings.CHOICES | text_settings.CHOICES
FIELDS = (
    search_settings.SearchSettings.__dataclass_fields__
    | text_settings.TextSettings.__dataclass_fields__
)
# What `--help` says of the settings that are no Python objects.
SEARCH_HELP = {
    "beam_size": "Hypotheses kept at every step; 1 is greedy search.",
    "length_penalty": "What divides a log-probability: ((5 + n) / 6)^alpha, n^alpha, or nothing; "
    "n tokens, the end token included.",
    "alpha": "Exponent of the length penalty: larger for longer translations.",
    "stopping": "When a search ends: when nothing better is possible, or a full beam has ended.",
    "length_ratio": "A translation has at most this times the source's tokens + --extra-length.",
    "extra_length": "Tokens that a translation may have beyond --length-ratio times the source's.",
    "max_length": "A translation also has at most this many tokens.",
    "suppressed_tokens": "Id of a token that no translation has; several times for several.",
    "force_end": "Whether the last token of the maximum length is always the end token.",
    "max_source_tokens": "A line with more tokens is too long to be translated as a whole.",
    "on_too_long": "What to do with such a line: translate pieces, its beginning, or stop.",
    "split": "Translate each line as a whole, or each of its sentences by itself.",
    "protect": "What a translation keeps as it is: printf, braces, tags, urls, emails, backticks, "
    "emoji, unknown (what the vocabulary does not hold), or a regular expression; several times "
    "for several.",
    "distinct_texts": "Leave out a translation whose text equals that of a better one.",
}
# How `--help` shows a default that is no text or number.
_DEFAULTS = {
    "max_length": "no limit",
    "suppressed_tokens": "none",
    "max_source_tokens": "data.max_length of its recipe",
    "protect": "all names if its vocabulary has symbols for it",
}
_TYPES = {
    **{name: Literal[tuple(str(one).lower() for one in each)] for name, each in CHOICES.items()},
    **{"suppressed_tokens": list[int], "protect": list[str]},
}
# The settings of commands that need only the best translation, and of `score`.
ONE_BEST = tuple(name for name in SEARCH_HELP if name != "distinct_texts")
OF_PIECES = ("on_too_long", "split", "protect")
OF_WHOLE_LINES = tuple(name for name in ONE_BEST if name not in OF_PIECES)
OF_SCORES = ("length_penalty", "alpha", "max_source_tokens")


def search_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command's parameter `settings` becomes options, one for each search setting.

    `settings` holds those that the user gave; the others are those of the run.

    Args:
        names: settings. Defaults to all of `SEARCH_HELP`.
    """
    options = {}
    for name in names or SEARCH_HELP:
        field = FIELDS[name]
        default = _DEFAULTS.get(name, str(field.default).lower())
        option = typer.Option(help=f"{SEARCH_HELP[name]} [default: the run's, or {default}]")
        kind: Any = _TYPES.get(name, field.type)
        options[name] = Annotated[kind | None, option], None
    return expand("settings", options)


def expand(
    parameter: str, options: dict[str, tuple[Any, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command's parameter becomes several options.

    It is a dict of their values, without those that are `None` or empty; "none" is `None`, or no
    value of a list.

    Args:
        parameter: str, the name of the parameter.
        options: dict from names to pairs: the annotation and the default of an option.
    """
    new = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    def decorate(command):
        @functools.wraps(command)
        def expanded(**values):
            asked = {name: values.pop(name) for name in options}
            given = {name: value for name, value in asked.items() if value not in (None, [])}
            values[parameter] = {
                name: {"none": None, "['none']": ()}.get(str(value), value)
                for name, value in given.items()
            }
            command(**values)

        own = inspect.signature(command).parameters.values()
        all_of = [one for p in own for one in (new if p.name == parameter else [p])]
        vars(expanded)["__signature__"] = inspect.Signature(all_of, return_annotation=None)
        return expanded

    return decorate


def run_folder(run: Path | None, recipe: str) -> Path:
    """Returns the folder of a run: the one that `--run` names, or that of the recipe's name."""
    return run or Path("runs") / Path(recipe).stem


def check_output(path):
    """Raises, before the work is done, if a file cannot be written to the path of `--output`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} for `--output`.")
    if path.is_dir():
        raise IsADirectoryError(f"`--output` must be a file. Received: the folder {str(path)!r}")


def help_and_example(command):
    """Returns the docstring of a command in two parts, as Markdown: the second is shown last."""
    text, _, lines = inspect.getdoc(command).partition("\n\nExample:\n\n")
    return text, "\n\n".join(["**Example**", *(f"`{line.strip()}`" for line in lines.splitlines())])
