"""Commands that check, train and average a run: `doctor`, `train` and `average`."""

import functools
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli import options
from keras_transformer.cli.backend import import_backend
from keras_transformer.cli.options import check_output
from keras_transformer.console import console
from keras_transformer.settings import yaml_line

commands = typer.Typer()


@commands.command()
def doctor(
    recipe: options.RecipeArgument,
    data: options.Data = Path("."),
    run: options.Run = None,
    changes: options.Changes = None,
    timeout: Annotated[
        float, typer.Option(help="Time limit of the device check, in seconds.", min=1)
    ] = 60,
) -> None:
    """Check all that a long run needs: devices, data, vocabulary, memory, learning, disk.

    Example:

        keras-transformer doctor multi30k_en_de --data ~/multi30k
    """
    started = time.perf_counter()
    from keras_transformer.runs.recipe import Recipe

    parsed = Recipe.load(recipe, changes or ())
    import_backend()
    from keras_transformer.runs.doctor import run_checks

    run = options.run_folder(run, recipe)
    print_fn = functools.partial(print, flush=True)
    findings = run_checks(parsed, data, run, timeout, print_fn, started)
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)


@commands.command()
def train(
    recipe: options.RecipeArgument,
    data: options.Data = Path("."),
    run: options.Run = None,
    changes: options.Changes = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the run in the folder, or replace it.")
    ] = True,
) -> None:
    """Train a model from a recipe; resume an interrupted run at the exact batch.

    Example:

        keras-transformer train multi30k_en_de --data ~/multi30k
        keras-transformer train number_names --run runs/short --set training.epochs=2
    """
    run = options.run_folder(run, recipe)
    from keras_transformer.runs.recipe import Recipe

    parsed = Recipe.load(recipe, changes or ())
    import_backend()
    from keras_transformer.runs.callbacks import NonFiniteLossError
    from keras_transformer.runs.fit_scope import TrainingInterrupted
    from keras_transformer.runs.trainer import Trainer

    trainer = Trainer(parsed, data, run, print_fn=console.print, resume=resume)
    if trainer.finished:
        console.print(f"{run} is trained already: see {trainer.run.report_file}.")
        return
    try:
        report = trainer.train()
    except TrainingInterrupted as interrupted:
        command = ["keras-transformer", "train", recipe, "--data", str(data), "--run", str(run)]
        command += [word for change in changes or () for word in ("--set", change)]
        console.print(f"{interrupted}\nThe same command resumes the run:\n{shlex.join(command)}")
        raise typer.Exit(128 + interrupted.signal) from None
    except NonFiniteLossError as error:  # exit code 1: the command is correct
        console.print(f"Error: {error}")
        raise typer.Exit(1) from None
    if trainer.is_chief:
        for name in ("notes", "overlaps"):  # they were printed when the text was read
            report.pop(name, None)
        for name, value in report.items():
            console.print(f"{name.replace('_', ' '):>20}  {yaml_line(value)}")
        has_test = parsed.data.test is not None
        text = ["--data", str(data)] if has_test else ["--source", "FILE", "--reference", "FILE"]
        console.print(f"Next: {shlex.join(['keras-transformer', 'evaluate', str(run), *text])}")


@commands.command()
def average(
    run: options.RunArgument,
    last: Annotated[int, typer.Option(help="Average this many of the last epochs.", min=1)] = 5,
    best: Annotated[int, typer.Option(help="Average this many best epochs instead.", min=0)] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Model to write. [default: averaged.keras in the run]")
    ] = None,
) -> None:
    """Average the weights of a run's last or best epochs into one model.

    Example:

        keras-transformer average runs/multi30k_en_de --last 5
    """
    from keras_transformer.runs.folder import RunFolder

    output = output or RunFolder.existing(run).averaged_file
    check_output(output)
    import_backend()
    from keras_transformer.runs.averaging import average_run

    for path in average_run(run, output, last=last, best=best):
        console.print(f"averaged {path}")
    print(output)
