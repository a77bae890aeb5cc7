"""Measured figures in small JSON files, one for each part; what is in a file is not done again."""

import json
import pathlib

from stamp import stamp

from keras_transformer.atomic_file import atomic_path

FOLDER = pathlib.Path(__file__).parent / "results"


def read(part):
    """Returns the results of a part, a dict from keys such as `"recurrent, seed 1"`."""
    path = FOLDER / f"{part}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def measure_missing(part, works):
    """Runs what has no result yet, and writes each result when it is known.

    Args:
        part: string, the name of the file.
        works: dict from keys to functions without arguments that return JSON.
    """
    for key, work in works.items():
        if key in read(part):
            continue
        result = work() | stamp()
        print(f"{part}, {key}: {result}", flush=True)
        FOLDER.mkdir(exist_ok=True)
        with atomic_path(FOLDER / f"{part}.json") as path:
            text = json.dumps(read(part) | {key: result}, indent=1)
            pathlib.Path(path).write_text(text + "\n", "utf-8")
