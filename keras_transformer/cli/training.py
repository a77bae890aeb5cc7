"""A run: checked beforehand, trained, averaged."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.errors import clear_errors, import_tensorflow
from keras_transformer.cli.options import (
    DataOption,
    RecipeArgument,
    RunArgument,
    check_output,
    example,
)
from keras_transformer.console import console

commands = typer.Typer()


@commands.command(epilog=example("keras-transformer doctor multi30k_en_de --data ~/multi30k"))
def doctor(
    recipe: RecipeArgument,
    data: DataOption = Path("."),
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run to be. [default: runs/<recipe>]")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which the devices must answer.", min=1)
    ] = 60,
):
    """Check all that a long run needs: devices, data, vocabulary, memory, learning, disk."""
    with clear_errors():
        from keras_transformer.runs.recipe import Recipe

        parsed = Recipe.load(recipe)
        parsed.check_lengths()
        import_tensorflow()
        from keras_transformer.runs.doctor import run_checks

        run = run or Path("runs") / Path(recipe).stem
        findings = run_checks(parsed, data, run, timeout, print_fn=typer.echo)
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)


@commands.command(epilog=example("keras-transformer train multi30k_en_de --data ~/multi30k"))
def train(
    recipe: RecipeArgument,
    data: DataOption = Path("."),
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/<recipe>]")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(help="Go on with the run in the folder; or, once all is ready, replace it."),
    ] = True,
):
    """Train a model by a recipe; go on where an interrupted run stopped, at the exact batch."""
    run = run or Path("runs") / Path(recipe).stem
    with clear_errors():
        from keras_transformer.runs.recipe import Recipe

        parsed = Recipe.load(recipe)
        parsed.check_lengths()
        import_tensorflow()
        from keras_transformer.runs.callbacks import NonFiniteLossError
        from keras_transformer.runs.keeper import TrainingInterrupted
        from keras_transformer.runs.trainer import Trainer

        trainer = Trainer(parsed, data, run, print_fn=console.print, resume=resume)
        if trainer.finished:
            console.print(f"{run} is trained already: see {trainer.run.report_file}.")
            return
        try:
            report = trainer.train()
        except TrainingInterrupted as interrupted:
            words = ("keras-transformer", "train", recipe, "--data", data, "--run", run)
            console.print(f"{interrupted}\nThe same command goes on from there:")
            console.print(shlex.join(map(str, words)))
            raise typer.Exit(128 + interrupted.signal) from None
        except NonFiniteLossError as error:  # not a mistake in the words: exit code 1
            console.print(f"Error: {error}")
            raise typer.Exit(1) from None
    if trainer.is_chief:
        for line in report_lines(report):
            console.print(line)
        words = ("keras-transformer", "evaluate", run, "--data", data)
        if parsed.data.test is None:  # what `evaluate` translates unless it is given files
            words = (*words[:3], "--source", "FILE", "--reference", "FILE")
        console.print(f"Next: {shlex.join(map(str, words))}")


@commands.command(epilog=example("keras-transformer average runs/multi30k_en_de --last 5"))
def average(
    run: RunArgument,
    last: Annotated[
        int, typer.Option(help="How many of the last epochs; of few, see the manual.", min=1)
    ] = 5,
    best: Annotated[int, typer.Option(help="Instead: how many of the best epochs.", min=0)] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Model to write. [default: averaged.keras in the run]")
    ] = None,
):
    """Average the weights of a run's last or best epochs into one model."""
    with clear_errors():
        from keras_transformer.runs.folder import RunFolder

        output = output or RunFolder.existing(run).averaged_file
        check_output(output)
        import_tensorflow()
        from keras_transformer.runs.averaging import average_run

        for path in average_run(run, output, last=last, best=best, print_fn=console.print):
            console.print(f"averaged {path}")
    print(output)


def report_lines(report):
    """What a report says, an entry each: plain numbers and words."""
    for name, value in report.items():
        yield f"{name.replace('_', ' '):>20}  {_shown(value)}"


def _shown(value):
    """A value of a report as plain text; of a mapping, each name and value."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if type(value) is int else str(value)
