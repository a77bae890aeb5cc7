"""A run is a folder: what was asked for, what was learned, and what came of it.

Everything that a later command needs of a run is found here by name. Pure Python.
"""

import contextlib
import json
import os
from pathlib import Path

from keras_transformer.recipe import Recipe


class RunFolder:
    """The files of one run.

    Args:
        path: path of the folder.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.recipe_file = self.path / "config.yaml"
        self.model_file = self.path / "model.keras"
        self.averaged_file = self.path / "averaged.keras"
        self.history_file = self.path / "history.csv"
        self.report_file = self.path / "report.json"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"

    @classmethod
    def existing(cls, path):
        """Returns the folder of a run that has a model; else a `FileNotFoundError`."""
        run = cls(path)
        if not run.model_file.is_file():
            raise FileNotFoundError(
                f"There is no trained model in {str(run.path)!r}. Train one with "
                "`keras-transformer train`."
            )
        return run

    def recipe(self):
        """Returns the `Recipe` that the run was, or is being, trained by."""
        return Recipe.load(str(self.recipe_file))

    def tokenizer_files(self, joint):
        """Returns the paths of the tokenizers: of source and target, or of both in one."""
        names = ["tokenizer.model"] if joint else ["source.model", "target.model"]
        return [self.path / name for name in names]

    def delete_tokenizers(self):
        """Deletes the tokenizers, so that others are made."""
        for file in self.tokenizer_files(joint=True) + self.tokenizer_files(joint=False):
            file.unlink(missing_ok=True)

    def report(self):
        """Returns what is in `report.json`, an empty dict if there is none."""
        file = self.report_file
        try:
            report = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if not isinstance(report, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            raise ValueError(
                f"{file} is damaged ({error}). Delete it: `train` and `evaluate` write it again."
            ) from None
        return report

    def add_to_report(self, **entries):
        """Writes entries into `report.json`, beside those that are there, and returns all."""
        report = self.report() | entries
        write_text(self.report_file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        return report


@contextlib.contextmanager
def replaced(path):
    """Gives another path to write to, and lets what was written appear whole or not at all."""
    path = Path(path)
    partial = path.with_name(f".partial.{path.name}")  # keeps the ending, by which Keras goes
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. What was there before is as "
            "it was. Free space on the disk, then run the same command again.",
        ) from error


def write_text(path, text):
    """Writes a text file that appears whole or not at all."""
    with replaced(path) as partial:
        partial.write_text(text, "utf-8")
