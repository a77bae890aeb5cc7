"""Progress of commands on standard error: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time

from keras_transformer.console import console, is_interactive

SECONDS_BETWEEN_LINES = 60


@contextlib.contextmanager
def sentence_progress(total, label=""):
    """Shows how many sentences are done, how many per second, and the time left.

    Args:
        total: number of sentences.
        label: text before the figures. Optional.

    Yields:
        the function to call with the number of sentences that are newly done.
    """
    if not is_interactive():
        yield _SentenceLines(total, label)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    counts = MofNCompleteColumn(), TextColumn("sentences {task.fields[rate]}"), TimeLeft()
    names = [TextColumn("{task.description}", markup=False)] if label else []
    with Progress(*names, BarColumn(), *counts, console=console, transient=True) as bar:
        task, started = bar.add_task(label, total=total, rate=""), time.monotonic()

        def advance(done):
            bar.update(task, advance=done)
            seconds = max(time.monotonic() - started, 1e-6)
            bar.update(task, rate=f"{bar.tasks[0].completed / seconds:,.1f}/s")

        yield advance


class _SentenceLines:
    """Prints a line every minute, so that the log of a short command stays empty."""

    def __init__(self, total, label):
        self._total, self._label = total, f"{label}: " if label else ""
        self._done, self._started = 0, time.monotonic()
        self._printed = self._started

    def __call__(self, done):
        self._done += done
        now = time.monotonic()
        if now - self._printed < SECONDS_BETWEEN_LINES or self._done >= self._total:
            return
        self._printed = now
        rate = self._done / (now - self._started)
        minutes, seconds = divmod(round((self._total - self._done) / rate), 60)
        left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        counts = f"{self._done:,} of {self._total:,} sentences"
        console.print(f"{self._label}{counts}, {rate:,.1f}/s, {left} left")


@contextlib.contextmanager
def check_progress(names):
    """Shows which check runs.

    Args:
        names: of all checks, in their order.

    Yields:
        the function to call with the name of each check when it starts.
    """

    def text(name):
        return f"Checking {name} ({names.index(name) + 1} of {len(names)})"

    if not is_interactive():
        yield lambda name: console.print(text(name))
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # A file or a pipe keeps its own output.
    on_terminal = {"console": console, "redirect_stdout": sys.stdout.isatty()}
    with Progress(*columns, transient=True, **on_terminal) as bar:
        task = bar.add_task("")
        yield lambda name: bar.reset(task, description=text(name))
