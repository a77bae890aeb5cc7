"""The program `keras-transformer`, also as `python -m keras_transformer`."""

import io
import signal
import sys

from keras_transformer.lazy_names import explanation


def main() -> None:
    """Runs the command line. Its output is UTF-8, like all files, whatever the locale."""
    if sys.argv[1:2] == ["serve"]:
        # Before the slow imports: the first process of a container ignores SIGTERM by default.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        from keras_transformer.cli import app
    except ImportError as error:
        sys.exit(f"Error: {explanation('The command line', error) or error}")
    app()


if __name__ == "__main__":
    main()
