"""The console on standard error that progress bars and messages share."""

from rich.console import Console

# Paths and translations may hold [brackets] and :colons:, so rich must not interpret them.
console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_interactive() -> bool:
    """Whether standard error is a terminal that can redraw lines.

    `NO_COLOR` turns redrawing off. With `FORCE_COLOR`, rich treats a file as a terminal, so this
    also checks `isatty`.
    """
    return console.is_interactive and not console.no_color and console.file.isatty()
