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
    """Yields a `rich.progress.Progress`, which is removed at its end.

    Args:
        columns: of `rich.progress`.
        is_shown: whether to show it; see `is_interactive`.
    """
    from rich import progress

    # A file or a pipe keeps its own output.
    options: Any = {"transient": True, "redirect_stdout": sys.stdout.isatty(), "console": console}
    bar = progress.Progress(*columns, disable=not is_shown, **options)
    # rich before 14.1 ends also a bar that is disabled, with an empty line.
    with bar if is_shown else contextlib.nullcontext():
        yield bar


@contextlib.contextmanager
def count_bar(total: int, unit: str) -> Iterator[Callable[[], None]]:
    """Shows how many of `total` things are done; nothing elsewhere than on a terminal.

    Yields:
        the function to call after each.
    """
    from rich import progress

    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TextColumn(unit)
    with progress_bar(columns, is_interactive()) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
