"""Measures in turns, and prints tables row by row, so that Ctrl-C loses nothing."""

import contextlib
import statistics
import sys
import time

# A shorter measurement would be of the clock and of the caches.
LEAST_SECONDS = 0.2
# What is timed takes part in so many rounds as keep it below this, and in two at least.
MOST_SECONDS = 60


def in_turns(works, rounds):
    """Times functions round by round, forwards and backwards in turn.

    Args:
        works: dict from names to functions without arguments.
        rounds: int.

    Returns:
        dict from the names to lists of the seconds of a call, one for each round that the function
        took part in: all, unless it is slow.
    """
    repeats, turns = {}, {}
    for name, work in works.items():
        seconds = timed(work)  # traces
        if seconds < MOST_SECONDS / 6:
            seconds = timed(work)
        repeats[name] = max(1, round(LEAST_SECONDS / seconds))
        turns[name] = max(2, int(MOST_SECONDS / (seconds * repeats[name])))
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
    """How many times as fast as `slower` `faster` is, in each round that both took part in."""
    return [a / b for a, b in zip(seconds[slower], seconds[faster], strict=False)]


def with_spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def rate(amount, seconds, name, ours):
    """The cell of a table: how much a second and, for a peer, how many times as fast we are."""
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
    """A bar on standard error, and the function that says what is measured next.

    Ctrl-C ends the measurements; what follows them goes on with those that were made.
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
        auto_refresh=False,  # a thread that draws would take the core that is measured
    )
    task = bar.add_task("", total=total)
    try:
        with bar:
            yield lambda what: bar.update(task, advance=1, description=what, refresh=True)
    except KeyboardInterrupt:
        print("Interrupted: what follows is of the measurements made so far.", flush=True)
