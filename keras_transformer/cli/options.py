"""What several commands take, said once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LengthPenalty(StrEnum):
    """The names of the length penalties as they are typed."""

    GNMT = "gnmt"
    MEAN = "mean"
    NONE = "none"

    @property
    def setting(self):
        """What the package calls it."""
        return None if self is LengthPenalty.NONE else self.value


class Dtype(StrEnum):
    """The types a trained model can compute in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class OnTooLong(StrEnum):
    """What becomes of a line that is too long."""

    SPLIT = "split"
    TRUNCATE = "truncate"
    ERROR = "error"


RecipeArgument = Annotated[
    str, typer.Argument(help="A recipe file, or the name of a packaged one.", show_default=False)
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]
ModelOption = Annotated[
    Path | None, typer.Option(help="Another model file of the run. [default: its model.keras]")
]
DataOption = Annotated[Path, typer.Option(help="Folder that the recipe's files are relative to.")]
BeamSizeOption = Annotated[
    int, typer.Option(help="Hypotheses kept at every step; 1 is greedy search.", min=1)
]
LengthPenaltyOption = Annotated[
    LengthPenalty,
    typer.Option(
        help="What a log-probability is divided by to give the score of n tokens: "
        "((5 + n) / 6)^alpha, n^alpha, or nothing."
    ),
]
AlphaOption = Annotated[
    float, typer.Option(help="The penalty's exponent: the larger, the longer the translations.")
]
LengthRatioOption = Annotated[
    float, typer.Option(help="A translation has at most this times its source's tokens ...", min=0)
]
ExtraLengthOption = Annotated[int, typer.Option(help="... and this many more.", min=0)]
DtypeOption = Annotated[
    Dtype | None,
    typer.Option(
        help="Compute in this type; bfloat16 is fast where the processor has it. "
        "[default: the model's own]"
    ),
]
MaxSourceTokensOption = Annotated[
    int | None,
    typer.Option(
        help="A line with more tokens is too long to be translated as a whole. "
        "[default: data.max_length of the run's recipe]",
        min=2,
    ),
]
OnTooLongOption = Annotated[
    OnTooLong,
    typer.Option(
        help="Translate it in pieces, without what comes after the last of these tokens, or not "
        "at all."
    ),
]
BatchSentencesOption = Annotated[int, typer.Option(help="Sentences decoded together.", min=1)]


def check_output(path, option="`--output`"):
    """Refuses, before the work is done, a file that cannot be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} for {option}.")
    if path.is_dir():
        raise IsADirectoryError(f"{option} must be a file. Received: the folder {str(path)!r}")


def example(*lines):
    """The epilogue of a command's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)
