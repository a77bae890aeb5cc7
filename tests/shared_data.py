"""Data outside of the repository: tests that need it say elsewhere why they are not run."""

import os
import pathlib

DATA = pathlib.Path(
    os.environ.get(
        "KERAS_TRANSFORMER_DATA", pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    )
)


def missing(what):
    """Returns why a test is not run."""
    return f"no {what} in {DATA}; set KERAS_TRANSFORMER_DATA"
