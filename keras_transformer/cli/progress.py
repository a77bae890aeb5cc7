"""Progress of commands on standard error: a bar on a terminal, plain lines elsewhere."""

import contextlib
import datetime
import time

from keras_transformer.console import console, is_interactive, progress_bar

SECONDS_BETWEEN_LINES = 60


@contextlib.contextmanager
def sentence_progress(total, before=0, is_shown=True):
    """Shows how many sentences are done, how many per second, and the time left.

    Without a bar, it prints a line every minute, so a short command prints none.

    Args:
        total: number of sentences, or `None` if it is not known.
        before: number of sentences that an earlier process did. Defaults to `0`.
        is_shown: `False` to show no bar, as when a terminal shows the results. Defaults to `True`.

    Yields:
        the function to call with the number of sentences that are newly done.
    """
    from rich import progress

    rate = progress.TextColumn("sentences {task.fields[rate]}")
    counts = progress.BarColumn(), progress.MofNCompleteColumn()
    columns = *counts, rate, progress.TimeRemainingColumn()
    started = printed = time.monotonic()
    with progress_bar(columns, is_shown and is_interactive()) as bar:
        task = bar.add_task("", total=total, completed=before, rate="")

        def advance(number):
            nonlocal printed
            bar.update(task, advance=number)
            now, done = time.monotonic(), int(bar.tasks[0].completed)
            rate = (done - before) / max(now - started, 1e-6)
            bar.update(task, rate=f"{rate:,.1f}/s")
            is_due = now - printed >= SECONDS_BETWEEN_LINES and done not in (before, total)
            if bar.disable and is_due:
                printed = now
                # `total` may be an estimate that is too low.
                seconds = round(max((total or done) - done, 0) / rate)
                time_left = f", {datetime.timedelta(seconds=seconds)} left" if total else ""
                of_total = f" of {total:,}" if total else ""
                console.print(f"{done:,}{of_total} sentences, {rate:,.1f}/s{time_left}")

        yield advance
