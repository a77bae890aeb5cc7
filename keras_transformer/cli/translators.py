"""The translator of a run, its lines and its long lines, for the commands that translate."""

import sys

from keras_transformer.cli.backend import import_backend
from keras_transformer.cli.progress import sentence_progress


def load_translator(run, model=None, *, dtype=None, **settings):
    """Returns the translator of a run; checks what it can before it imports the backend."""
    from keras_transformer.decoding.search_settings import SearchSettings
    from keras_transformer.runs.folder import RunFolder

    RunFolder.existing(run)
    SearchSettings(**settings)
    import_backend()
    from keras_transformer.runs.load import load_run

    return load_run(run, model, dtype=dtype, **settings)


def with_progress(function, lines, *arguments, label="", **options):
    """Calls a method of a translator, and shows how many of the lines are done."""
    with sentence_progress(len(lines), label) as on_progress:
        return function(lines, *arguments, on_progress=on_progress, **options)


def write_lines(lines, path=None):
    """Writes each string as one line: to a file, atomically, or to standard output.

    Args:
        lines: iterable of strings.
        path: path of a file or of a device, such as `/dev/null`. Defaults to `None`: standard
            output.
    """
    from keras_transformer.atomic_file import write_text

    text = "".join(one_line(line) + "\n" for line in lines)
    if path is None:
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.flush()
    elif path.exists() and not path.is_file():
        path.write_text(text, "utf-8", newline="\n")
    else:
        write_text(path.resolve(), text)


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
