"""Times functions in turns, and prints tables row by row, so that Ctrl-C keeps the rows so far."""

import contextlib
import statistics
import sys
import time

# Shorter measurements are dominated by the clock and the caches.
MIN_SECONDS = 0.2
# A slow function takes part in fewer rounds, at least two, to stay below this in total.
MAX_SECONDS = 60


def in_turns(works, rounds):
    """Times functions round by round, in alternating order.

    Args:
        works: dict from names to functions without arguments.
        rounds: int.

    Returns:
        dict from the names to the seconds per call, one for each round. A slow function takes part
        in fewer rounds.
    """
    repeats, turns = {}, {}
    for name, work in works.items():
        seconds = timed(work)  # traces
        if seconds < MAX_SECONDS / 6:
            seconds = timed(work)
        repeats[name] = max(1, round(MIN_SECONDS / seconds))
        turns[name] = max(2, int(MAX_SECONDS / (seconds * repeats[name])))
    measured = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works) if number % 2 else reversed(works):
            if number < turns[name]:
                measured[name].append(timed(works[name], repeats[name]))
    return measured


def timed(work, repeats=1):
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - began) / repeats


def ratios(seconds, slower, faster):
    """Returns the speed of `faster` / the speed of `slower`, for each round with both."""
    return [a / b for a, b in zip(seconds[slower], seconds[faster], strict=False)]


def with_spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def rate(amount, seconds, name, ours):
    """Returns a table cell: the amount per second and, for a peer, our speed / its speed."""
    if name not in seconds:
        return "-"
    cell = f"{amount / statistics.median(seconds[name]):,.0f}"
    return cell if name == ours else f"{cell}  {with_spread(ratios(seconds, name, ours))}"


def print_row(widths, *cells):
    padded = (f"{cell:>{width}}" for width, cell in zip(widths, cells, strict=True))
    print("  ".join(padded), flush=True)


def print_verdict(passed, what):
    print(f"{'PASS' if passed else 'MISS'}  {what}", flush=True)


@contextlib.contextmanager
def progress(total):
    """Shows a progress bar on standard error; yields a function that advances and labels it.

    Ctrl-C ends the measurements, and the program goes on with those made so far.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
        auto_refresh=False,  # a drawing thread would use the core that is measured
    )
    task = bar.add_task("", total=total)
    try:
        with bar:
            yield lambda what: bar.update(task, advance=1, description=what, refresh=True)
    except KeyboardInterrupt:
        print("Interrupted: using the measurements made so far.", flush=True)
