"""Arguments and options that several commands share, and checks of them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.settings import setting_of

RecipeArgument = Annotated[
    str,
    typer.Argument(help="A recipe file, or the name of a packaged one.", show_default=False),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a key of the recipe, such as training.epochs=5. May be given several times.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]
_ENSEMBLE = (
    "Several runs, of the same vocabularies, translate as an ensemble by the mean of their "
    "probabilities, with the settings of the first."
)
RunArguments = Annotated[
    list[Path],
    typer.Argument(help=f"Folder of a trained run. {_ENSEMBLE}", show_default=False),
]
TranslatorArguments = Annotated[
    list[Path],
    typer.Argument(
        help=f"Folder of a trained run, or one that `export` wrote. {_ENSEMBLE}",
        show_default=False,
    ),
]
Run = Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/RECIPE]")]
Model = Annotated[
    Path | None, typer.Option(help="Another model file of the run. [default: its model.keras]")
]
Data = Annotated[Path, typer.Option(help="Paths in the recipe are relative to this folder.")]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        help="File of source lines. Give it several times for several directions. [default: the "
        "recipe's test split]",
    ),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        help="File of references. May be given several times; with several --source, once for each."
    ),
]
Tokenized = Annotated[
    bool, typer.Option("--tokenized", help="Text is tokenized: BLEU splits at white space.")
]
Dtype = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="Type to compute in. [default: the model's own]"),
]
BatchSentences = Annotated[int, typer.Option(help="Maximum number of sentences in a batch.", min=1)]
# The settings that an option can state: all but Python objects.
SEARCH_FIELDS = {
    field.name: field
    for field in (*fields(SearchSettings), *fields(TextSettings))
    if field.name not in ("processors", "sampler")
}
# Settings that are lists, with the type of an item. An option for a language takes one code.
ITEMS: dict[str, Any] = {"suppressed_tokens": int, "protect": str}
# Settings of commands that need only the best translation of each line.
ONE_BEST = tuple(name for name in SEARCH_FIELDS if name != "distinct_texts")
OF_PIECES = ("on_too_long", "split", "protect")  # settings that divide a line
# Settings of commands that also translate each line whole.
OF_WHOLE_LINES = tuple(name for name in ONE_BEST if name not in OF_PIECES)
# Settings of `score`.
OF_SCORES = ("length_penalty", "alpha", "max_source_tokens", *LANGUAGES)
# {text of an option's value: the value}. A repeated option has a list as its value.
NONE_VALUES: dict[str, Any] = {"none": None, "['none']": ()}


def search_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command's parameter `settings` becomes options, one for each search setting.

    `settings` is a dict of the settings that the user gave.

    Args:
        names: settings. Defaults to all of `SEARCH_FIELDS`.
    """
    options = {
        name: (Annotated[_option_type(field) | None, _option(field)], None)
        for name, field in SEARCH_FIELDS.items()
        if not names or name in names
    }
    return expand("settings", options)


def _option(field):
    if field.type == int | None or ITEMS.get(field.name) is int:
        return typer.Option(help=_option_help(field), parser=_integer_or_none, metavar="<int>|none")
    return typer.Option(help=_option_help(field))


def _integer_or_none(text):
    """Returns the number that a text states, or "none" itself, which `expand` converts."""
    if text == "none":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a valid integer.") from None


def _option_type(field):
    if field.name in ITEMS:
        return list[ITEMS[field.name]]
    if field.name in LANGUAGES:
        return str
    if choices := setting_of(field).choices:
        return Literal[tuple(str(choice).lower() for choice in choices)]
    return field.type


def _option_help(field):
    rule = setting_of(field)
    several = " Several times for several." if field.name in ITEMS else ""
    default = "none" if field.default in (None, ()) else str(field.default).lower()
    default = (rule.default_text or default).replace("`", "")
    return f"{rule.summary}{several} [default: the run's, or {default}]"


def expand(
    parameter: str, options: dict[str, tuple[Any, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command's parameter becomes several options.

    The parameter is a dict of the options that the user gave. The value "none" becomes `None`, or
    an empty tuple if the option may be given several times.

    Args:
        parameter: str, the name of the parameter.
        options: dict from names to pairs: the annotation and the default of an option.
    """
    option_parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    def decorate(command):
        @functools.wraps(command)
        def expanded(**arguments):
            values = {name: arguments.pop(name) for name in options}
            arguments[parameter] = {
                name: NONE_VALUES.get(str(value), value)
                for name, value in values.items()
                if value not in (None, [])
            }
            command(**arguments)

        parameters = []
        for p in inspect.signature(command).parameters.values():
            parameters += option_parameters if p.name == parameter else [p]
        vars(expanded)["__signature__"] = inspect.Signature(parameters, return_annotation=None)
        return expanded

    return decorate


def run_folder(run: Path | None, recipe: str) -> Path:
    """Returns the folder of a run: `--run`, or `runs/` and the name of the recipe."""
    return run or Path("runs") / Path(recipe).stem


def check_output(path):
    """Raises an error, before the work begins, if the path of `--output` cannot be a file."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} for `--output`.")
    if path.is_dir():
        raise IsADirectoryError(f"`--output` must be a file. Received: the folder {str(path)!r}")


def help_and_example(command):
    """Returns the help of a command and its examples, both from its docstring, as Markdown."""
    text, _, lines = inspect.getdoc(command).partition("\n\nExample:\n\n")
    return text, "\n\n".join(["**Example**", *(f"`{line.strip()}`" for line in lines.splitlines())])
