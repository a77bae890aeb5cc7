"""The run folder: paths of its files, the manifest of files that the run wrote, and the report.

Pure Python.
"""

import contextlib
import csv
import glob
import io
import json
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Self

from keras_transformer import types
from keras_transformer.atomic_file import write_text
from keras_transformer.data.tokenizer_file import JOINT, SIDES
from keras_transformer.lock import RunInUseError as RunInUseError
from keras_transformer.lock import file_lock
from keras_transformer.runs.recipe import Recipe
from keras_transformer.texts import first_of

MADE_BY = "keras_transformer"
# A checkpoint, a damaged one, or the temporary file of a killed process.
CHECKPOINT_FILE = r"(\.partial\.)?checkpoint-\d{8,}\.npz(\.corrupt)?"
LOG_FILE = r"events\.out\.tfevents\..+"


class RunFolder:
    """The files of one run.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: types.Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "config.yaml"
        self.model_file = self.path / "model.keras"
        self.averaged_file = self.path / "averaged.keras"
        self.history_file = self.path / "history.csv"
        self.report_file = self.path / "report.json"
        self.origin_file = self.path / "origin.json"
        self.manifest_file = self.path / "run.json"
        self.lock_file = self.path / ".run.lock"
        self.staging = self.path / ".partial.run"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.tokens = self.path / "tokens"

    @classmethod
    def existing(cls, path: types.Path) -> Self:
        """Returns the folder of a run that has a model.

        Raises:
            FileNotFoundError: if there is no model.
        """
        run = cls(path)
        if not run.model_file.is_file():
            raise FileNotFoundError(
                f"There is no trained model in {str(run.path)!r}. Train one with "
                "`keras-transformer train`."
            )
        return run

    def recipe(self) -> Recipe:
        """Returns the recipe of the run."""
        return Recipe.load(str(self.recipe_file), is_stored=True)

    def new_tokenizer_files(self, joint: bool) -> list[Path]:
        """Returns the paths to write tokenizers to: one joint path, or source and target."""
        return [self.path / name for name in ((JOINT,) if joint else SIDES)]

    def tokenizer_files(self, joint: bool) -> list[Path]:
        """Returns the paths of the tokenizers; those of earlier versions end with `.model`."""
        files = self.new_tokenizer_files(joint)
        old_files = [file.with_suffix(".model") for file in files]
        is_old = old_files[0].is_file() and not files[0].is_file()
        return old_files if is_old else files

    # === Manifest ===

    def owned_files(self) -> list[str] | None:
        """Returns the names of the files that the run wrote; `None` if it is not a run folder.

        The manifest, `run.json`, lists them.
        """
        # Ignore a `run.json` that another program wrote.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            manifest = json.loads(self.manifest_file.read_text("utf-8"))
            if manifest["made_by"] == MADE_BY:
                return [name for name in manifest["files"] if Path(name).name == name]
        return None

    def add_owned_files(self, *names: str) -> None:
        """Adds names of files to the manifest."""
        with self._files_locked():
            self._write_manifest(sorted({*(self.owned_files() or ()), *names}))

    def check(self) -> None:
        """Raises a `ValueError` unless the folder is a run folder, empty, or missing."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`--run` must be a folder. Received: the file {str(self.path)!r}")
        names = sorted(path.name for path in self.path.glob("*"))
        allowed = self.lock_file.name, self.tokens.name  # may be there before the run starts
        foreign = [n for n in names if n not in allowed and not n.startswith(".partial.")]
        if foreign and self.owned_files() is None:
            raise ValueError(
                "`--run` must be the folder of a run, or a new or empty one. Received: "
                f"{str(self.path)!r}, which holds {first_of(foreign, 4)}. Choose another "
                "folder. Nothing was changed."
            )

    @property
    def trained(self) -> bool:
        """Whether the folder holds a model or checkpoints."""
        return self.model_file.is_file() or any(_files_like(self.checkpoints, CHECKPOINT_FILE))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the run against training by other processes, and makes the folder if needed.

        On exit, folders that it made are deleted if they are empty.

        Raises:
            RunInUseError: another process trains the run.
            OSError: the file system has no locks.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = file_lock(self.lock_file, "training this run")
            with lock, contextlib.ExitStack() as stack:
                shutil.rmtree(self.staging, ignore_errors=True)  # of a killed process
                stack.callback(shutil.rmtree, self.staging, ignore_errors=True)
                yield
        finally:
            with contextlib.suppress(OSError):
                for path in missing:
                    path.rmdir()

    def reset(self) -> None:
        """Deletes the files that the run wrote, and no others."""
        owned = self.owned_files() or []
        for folder, pattern in ((self.checkpoints, CHECKPOINT_FILE), (self.logs, LOG_FILE)):
            for file in list(_files_like(folder, pattern)):
                file.unlink()
            for path in [*folder.glob("*/"), folder]:
                with contextlib.suppress(OSError):  # keep a folder that holds other files
                    path.rmdir()
        # Delete the recipe last: a killed `reset` must not leave a model without it.
        for name in sorted(owned, key=lambda name: name == self.recipe_file.name):
            # A killed process leaves `.partial.NAME` or `.partial.PROCESS.NAME`.
            for file in (self.path / name, *self.path.glob(f".partial.*{glob.escape(name)}")):
                if file.is_file():
                    file.unlink()
        for folder in self.path.glob(".partial.*.unzipped"):  # from a killed `save_model`
            shutil.rmtree(folder)
        self._write_manifest([])

    def _write_manifest(self, names):
        _write_json(self.manifest_file, {"made_by": MADE_BY, "files": names})

    def origin(self) -> dict[str, Any] | None:
        """Returns origin and licence of an imported model; `None` for other models."""
        file = self.origin_file
        return json.loads(file.read_text("utf-8")) if file.is_file() else None

    def _files_locked(self):
        """Locks the manifest and the report while the block changes one of them."""
        return file_lock(self.path / ".partial.lock", "writing its report", waits=True)

    # === Report ===

    def report(self) -> dict[str, Any]:
        """Returns the content of `report.json`, or an empty dict if there is no such file."""
        file = self.report_file
        try:
            report = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if not isinstance(report, dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            raise ValueError(
                f"{file} is damaged ({error}). Delete it: `train` and `evaluate` write it again."
            ) from None
        return report

    def add_to_report(self, without: Collection[str] = (), **entries: Any) -> None:
        """Merges entries into `report.json`, whose entries of the names `without` are deleted."""
        with self._files_locked():
            others = {n: value for n, value in self.report().items() if n not in without}
            _write_json(self.report_file, others | entries)

    def replace_report(self, **entries: Any) -> None:
        """Writes a new `report.json`; an old one describes an older model."""
        with self._files_locked():
            _write_json(self.report_file, entries)

    def history(self) -> list[dict[str, float]]:
        """Returns a row for each epoch in `history.csv`, without missing values."""
        if not self.history_file.is_file():
            return []
        try:
            rows = csv.DictReader(io.StringIO(self.history_file.read_text("utf-8")))
            return [{name: float(cell) for name, cell in row.items() if cell} for row in rows]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.history_file} is damaged: {error}") from None

    def write_history(self, rows: list[dict[str, float]]) -> None:
        """Writes a row for each epoch to `history.csv`; missing values stay empty.

        Without rows, the file is deleted: `pandas.read_csv` fails for a file without columns.
        """
        if not rows:
            self.history_file.unlink(missing_ok=True)
            return
        text = io.StringIO()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.history_file, text.getvalue())


def _files_like(folder, pattern):
    """Yields the files in a folder and its subfolders whose whole name matches a pattern."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if re.fullmatch(pattern, path.name) and path.is_file():
            yield path


def _write_json(path, value):
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # unique: `reset` writes the manifest without `_files_locked`, so two processes may write it.
    write_text(path, text, unique=True)
