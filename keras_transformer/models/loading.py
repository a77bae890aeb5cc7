"""Loads models from `.keras` files."""

import os
import zipfile

import keras

from keras_transformer.models import transformer  # noqa: F401 - registers the classes of a file
from keras_transformer.types import Path

PARTS = {"metadata.json", "config.json", "model.weights.h5"}  # of a `.keras` file
HDF5 = b"\x89HDF\r\n\x1a\n"  # the first bytes of an HDF5 file


def load_model(path: Path, compile: bool = True) -> keras.Model:
    """Loads a model that `model.save(path)` wrote, with its optimizer if it was compiled.

    Args:
        path: the `.keras` file.
        compile: `False` leaves out the optimizer; the state of Adam is twice as large as the
            weights. Defaults to `True`.

    Returns:
        `Transformer`, or another Keras model that uses classes of this package.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a `.keras` file, or a part of it is missing or damaged.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no model at {str(path)!r}.")
    with open(path, "rb") as file:
        if file.read(len(HDF5)) == HDF5:
            raise ValueError(
                f"{path} must be a `.keras` file. Received: a file of HDF5. Save the model with "
                "`model.save('model.keras')`; to load weights alone, use `model.load_weights`"
            )
        try:
            archive = zipfile.ZipFile(file)
            damage = archive.testzip()  # the name of a damaged member, or None
            missing = sorted(PARTS - {*archive.namelist()})
        except Exception as error:  # zipfile raises many types of exceptions for damaged archives
            damage, missing = str(error), []
    if damage is not None:
        raise ValueError(f"{path} must be a complete `.keras` file. Damaged: {damage}")
    if missing:
        raise ValueError(f"{path} must be a complete `.keras` file. Missing: {', '.join(missing)}")
    return keras.saving.load_model(path, compile=compile)
