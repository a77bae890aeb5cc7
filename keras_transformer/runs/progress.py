"""What a person sees of a training: one line that moves on a terminal, plain lines elsewhere."""

import math
import sys

import keras
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from keras_transformer.console import console, is_interactive

UPDATES_BETWEEN_LINES = 100
BAR_WIDTHS = 4, 40
TIME_WIDTH = len("0:00:00")
SPARE = len("^C")  # the terminal writes it behind the line, which must not wrap

# Name in the logs -> how it is shown, from left to right.
FIGURES = {
    "loss": "loss {:.3f}".format,
    "val": "val {:.3f}".format,  # `val_loss` of the epoch before
    "val_loss": "val_loss {:.3f}".format,
    "val_bleu": "val_bleu {:.2f}".format,
    "val_chrf": "val_chrf {:.2f}".format,
    "learning_rate": lambda rate: f"lr {rate:.1e}".replace("e-0", "e-"),
    "tokens_per_second": "{:,.0f} tok/s".format,
    "gradient_norm": "norm {:.2f}".format,
}
# What an update shows, the most important first; the loss always has room.
OF_UPDATE = ("loss", "tokens_per_second", "learning_rate", "val", "gradient_norm")
OF_EPOCH = ("loss", "val_loss", "val_bleu", "val_chrf", "tokens_per_second")


class TrainingProgress(keras.callbacks.Callback):
    """Shows how far a training has come and how well it goes, on standard error.

    On a terminal, one line with a bar, the figures that have room, and the time that the epoch
    still takes; a lasting line for each epoch above it. Elsewhere, and where `NO_COLOR` is set,
    plain lines: one for the first update, every 100th and each epoch. Place it behind the
    callbacks that add to the logs.

    Args:
        batches: int. Batches of an epoch.
    """

    def __init__(self, batches):
        super().__init__()
        self._batches = batches
        self._bar = None
        self._known = {}
        self._is_first = True

    def close(self):
        """Takes the bar away, also where `fit` ended by an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    # === What Keras calls ===

    def on_train_begin(self, logs=None):
        if is_interactive():
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
                redirect_stdout=sys.stdout.isatty(),  # else it goes where it was sent
            )
            self._task = self._bar.add_task("", total=self._batches, figures="")
            self._bar.start()

    def on_train_end(self, logs=None):
        self.close()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._updates = epoch * self._batches  # before this epoch
        self._begin(batch=0)

    def on_train_batch_end(self, batch, logs=None):
        batch += 1
        if not logs:  # done before the run was interrupted
            self._begin(batch)
        elif self._bar is not None:
            self._show(batch, self._known | logs)
        elif self._is_first or (self._updates + batch) % UPDATES_BETWEEN_LINES == 0:
            self._is_first = False
            figures = figures_of(self._known | logs, OF_UPDATE)
            console.print(f"{self._epoch} batch {batch}/{self._batches} {figures}")

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" in logs:
            self._known = {"val": logs["val_loss"]}
        console.print(f"{self._epoch} {figures_of(logs, OF_EPOCH)}")

    # === The bar ===

    def _begin(self, batch):
        """The rate is that of the updates after this batch."""
        if self._bar is not None:
            self._bar.reset(self._task, completed=batch, description=self._epoch)

    def _show(self, batch, logs):
        """Moves the bar on, as wide as the figures leave it."""
        least, most = BAR_WIDTHS
        count = 2 * len(str(self._batches)) + 1  # 12/345, padded
        gaps = len(self._bar.columns) - 1
        room = console.width - len(self._epoch) - count - TIME_WIDTH - gaps - SPARE
        figures = figures_of(logs, OF_UPDATE, room - least)
        self._column.bar_width = min(most, max(least, room - len(figures)))
        self._bar.update(self._task, completed=batch, figures=figures)


def figures_of(logs, names, room=math.inf):
    """The figures of some logs in one line, the less important left out where there is no room.

    Args:
        logs: dict of name to float.
        names: names of `FIGURES`, the most important first.
        room: int, in characters. Defaults to as much as they need.

    Returns:
        str.
    """
    names = [name for name in names if name in logs]
    while True:
        line = " ".join(show(float(logs[name])) for name, show in FIGURES.items() if name in names)
        if len(line) <= room or len(names) <= 1:
            return line
        names = names[:-1]
