"""Helpers of the commands that translate: translator of a run, progress bar, long lines."""

import contextlib

from keras_transformer.cli.errors import import_tensorflow
from keras_transformer.console import console, is_interactive


def load_translator(run, model=None, *, length_penalty="gnmt", dtype=None, **settings):
    """Returns the translator of a run; checks what it can before it imports TensorFlow."""
    from keras_transformer.decoding.search_settings import SearchSettings
    from keras_transformer.runs.folder import RunFolder

    settings["length_penalty"] = None if length_penalty == "none" else length_penalty
    RunFolder.existing(run)
    SearchSettings(**settings)
    import_tensorflow()
    from keras_transformer.runs.load import load_run

    return load_run(run, model, dtype=dtype, **settings)


@contextlib.contextmanager
def progress(total):
    """Shows a progress bar on a terminal; yields the function that advances it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "sentences", TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_interactive()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def one_line(text):
    """Returns text without line breaks: a byte-level model can produce them."""
    return text.replace("\r", " ").replace("\n", " ")


def long_line_reports(found):
    """Yields what to print of each line that was split or truncated."""
    for number, (best, *_) in enumerate(found, start=1):
        if best.pieces > 1:
            yield f"Line {number} is too long for one piece: translated in {best.pieces} pieces."
        if best.dropped_tokens:
            yield f"Line {number} is too long: its last {best.dropped_tokens} tokens are left out."
