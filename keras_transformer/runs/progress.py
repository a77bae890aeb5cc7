"""Progress of a training on standard error: a progress bar on a terminal, plain lines elsewhere."""

import math
import sys

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from keras_transformer.console import console, is_interactive
from keras_transformer.evaluation import SCORES
from keras_transformer.training.callbacks import ClosedCallback

UPDATES_BETWEEN_LINES = 100
BAR_WIDTHS = 4, 40

SCORED = tuple(f"val_{name}" for name in SCORES)
# Name in the logs -> its format, from left to right.
FORMATS = {
    "loss": "loss {:.3f}".format,
    "val": "val {:.3f}".format,  # `val_loss` of the previous epoch
    "val_loss": "val_loss {:.3f}".format,
    "val_accuracy": "val_accuracy {:.1%}".format,
    **{name: f"{name} {{:.2f}}".format for name in SCORED},
    "learning_rate": lambda rate: f"lr {rate:.1e}".replace("e-0", "e-"),
    "tokens_per_second": "{:,.0f} tok/s".format,
    "gradient_norm": "norm {:.2f}".format,
}
# The most important first. The loss is always shown.
UPDATE_FIGURES = ("loss", "tokens_per_second", "learning_rate", "val", "gradient_norm")
EPOCH_FIGURES = ("loss", "val_loss", "val_accuracy", *SCORED, "tokens_per_second")


class TrainingProgress(ClosedCallback):
    """Shows the progress and the figures of a training on standard error.

    On a terminal it is one line with a progress bar, as many figures as fit and the time that the
    epoch still needs; finished epochs stay above it. Elsewhere, and if `NO_COLOR` is set, it prints
    plain lines: for the first update, every 100th update and each epoch. Place it after the
    callbacks that add to the logs.

    Args:
        batches: number of batches in an epoch.
    """

    def __init__(self, batches):
        super().__init__()
        self._batches = batches
        self._previous = {}
        self._is_first = True
        self._column = BarColumn(max(BAR_WIDTHS))
        self._bar = Progress(
            TextColumn("{task.description}"),
            self._column,
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),  # a file or pipe keeps its own output
            disable=not is_interactive(),
        )
        self._task = self._bar.add_task("", total=batches, figures="")

    def close(self):
        """Removes the bar."""
        if not self._bar.disable:  # `stop` of rich before 14.1 would print an empty line
            self._bar.stop()

    # === Callback methods ===

    def on_train_begin(self, logs=None):
        self._bar.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._earlier_updates = epoch * self._batches
        self._start(batch=0)

    def on_train_batch_end(self, batch, logs=None):
        batch += 1
        if not logs:  # skipped: trained before the run was resumed
            self._start(batch)
        elif not self._bar.disable:
            self._move(batch, self._previous | logs)
        elif self._is_first or (self._earlier_updates + batch) % UPDATES_BETWEEN_LINES == 0:
            self._is_first = False
            figures = figures_of(self._previous | logs, UPDATE_FIGURES)
            console.print(f"{self._epoch} batch {batch}/{self._batches} {figures}")

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" in logs:
            self._previous = {"val": logs["val_loss"]}
        console.print(f"{self._epoch} {figures_of(logs, EPOCH_FIGURES)}")

    # === The bar ===

    def _start(self, batch):
        """Restarts the measurement of the remaining time at a batch of the epoch."""
        self._bar.reset(self._task, completed=batch, description=self._epoch)

    def _move(self, batch, logs):
        """Moves the bar, and makes it as wide as the figures allow."""
        min_width, max_width = BAR_WIDTHS
        # After Ctrl-C, the terminal adds ^C to the line, which must not wrap then either.
        other_text = f"{self._epoch}  {self._batches}/{self._batches}  0:00:00^C"
        room = console.width - len(other_text)
        figures = figures_of(logs, UPDATE_FIGURES, room - min_width)
        self._column.bar_width = min(max_width, max(min_width, room - len(figures)))
        self._bar.update(self._task, completed=batch, figures=figures)


def figures_of(logs, names, room=math.inf):
    """Returns the figures in some logs as one line, without the least important if it is too long.

    Args:
        logs: dict of name to value.
        names: names of `FORMATS`, the most important first.
        room: maximum number of characters. Defaults to no limit.
    """
    names = [name for name in names if name in logs]
    while True:
        figures = (form(float(logs[name])) for name, form in FORMATS.items() if name in names)
        line = " ".join(figures)
        if len(line) <= room or len(names) <= 1:
            return line
        names = names[:-1]
