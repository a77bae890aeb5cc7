"""The translator of a run as the commands need it: made from options, watched while it works."""

import contextlib

from keras_transformer.cli.errors import import_tensorflow
from keras_transformer.console import console, is_interactive


def load_translator(run, model=None, *, dtype=None, **settings):
    """Returns the translator of a run; what is wrong is told before TensorFlow is imported."""
    from keras_transformer.decoding.search_settings import SearchSettings
    from keras_transformer.runs.folder import RunFolder

    RunFolder.existing(run)
    SearchSettings(**settings)
    import_tensorflow()
    from keras_transformer.runs.load import load_run

    return load_run(run, model, dtype=dtype, **settings)


@contextlib.contextmanager
def progress(total):
    """Shows a progress bar, if someone is watching, and gives the function that moves it on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "sentences", TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_interactive()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def one_line(text):
    """One line for one line, whatever the model makes up."""
    return text.replace("\r", " ").replace("\n", " ")


def long_line_reports(found):
    """Yields what to say of each line that was not translated as a whole."""
    for number, (best, *_) in enumerate(found, start=1):
        if best.pieces > 1:
            yield f"Line {number} is too long for one piece: translated in {best.pieces} pieces."
        if best.dropped_tokens:
            yield f"Line {number} is too long: its last {best.dropped_tokens} tokens are left out."
