"""The console on standard error that progress bars and messages share."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

# Paths and translations may hold [brackets] and :colons:, so rich must not interpret them.
console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_interactive() -> bool:
    """Whether standard error is a terminal that can redraw lines.

    `NO_COLOR` turns redrawing off. With `FORCE_COLOR`, rich treats a file as a terminal, so this
    also checks `isatty`.
    """
    return console.is_interactive and not console.no_color and console.file.isatty()


@contextlib.contextmanager
def progress_bar(columns: Sequence[Any], is_shown: bool) -> Iterator[Any]:
    """Yields a `rich.progress.Progress`, which disappears when the block ends.

    Args:
        columns: columns of `rich.progress`.
        is_shown: whether to show it; see `is_interactive`.
    """
    from rich import progress

    bar = progress.Progress(
        *columns,
        console=console,
        transient=True,
        # Output to a file or a pipe must not go through rich.
        redirect_stdout=sys.stdout.isatty(),
        disable=not is_shown,
    )
    # At the end of a disabled bar, rich before 14.1 prints an empty line.
    with bar if is_shown else contextlib.nullcontext():
        yield bar


@contextlib.contextmanager
def count_bar(total: int, unit: str) -> Iterator[Callable[[], None]]:
    """Shows on a terminal how many of `total` things are done; elsewhere it shows nothing.

    Yields:
        a function to call, without arguments, each time that one of them is done.
    """
    from rich import progress

    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TextColumn(unit)
    with progress_bar(columns, is_interactive()) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
