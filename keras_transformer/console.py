"""The terminal: one console on standard error, shared by progress bars and messages."""

from rich.console import Console

# Text is shown as it is: paths and translations may hold [brackets] and :colons:.
console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_interactive():
    """Whether standard error is a terminal whose lines may be written over.

    `NO_COLOR` asks for plain text. `FORCE_COLOR` makes no terminal of a file, though rich says so.
    """
    return console.is_interactive and not console.no_color and console.file.isatty()
