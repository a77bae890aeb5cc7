"""The model card of an exported folder, `model_card.json`, as engines read it."""

import json
from pathlib import Path
from typing import Any

from keras_transformer.atomic_file import restore_folder

FILE = "model_card.json"
FORMAT = 3  # version of an exported folder's files and functions, `format` in the card


def read_card(folder: Path, engine: str, *files: str) -> dict[str, Any]:
    """Returns the model card of a folder that this version can load.

    A folder that a killed export had moved away is moved back; see `restore_folder`.

    Args:
        folder: path of the folder.
        engine: what the folder is for, for the error.
        *files: names of the files that the engine needs.

    Raises:
        FileNotFoundError: if the card or one of the files is missing.
        ValueError: if the folder has the format of another version.
    """
    restore_folder(folder)
    missing = [name for name in (FILE, *files) if not (folder / name).is_file()]
    if missing:
        must = f"`folder` must hold a model for {engine}, with {' and '.join((FILE, *files))}."
        received = f"Received: {str(folder)!r} without {missing[0]}"
        raise FileNotFoundError(f"{must} {received}. `keras-transformer export` writes one")
    # NaN becomes `None`: JSON has no NaN, and a server answers with the card.
    card = json.loads((folder / FILE).read_text("utf-8-sig"), parse_constant=lambda name: None)
    if card.get("format") != FORMAT:
        must = f"`folder` must have been exported by this version (format {FORMAT})"
        received = f"{str(folder)!r} of format {card.get('format', 1)}"
        raise ValueError(f"{must}. Received: {received}. Export it again")
    return card
