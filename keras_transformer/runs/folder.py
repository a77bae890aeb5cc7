"""A run is a folder: what was asked for, what was learned, and what came of it.

Everything that a later command needs of a run is found here by name. Pure Python.
"""

import contextlib
import json
import re
import shutil
from pathlib import Path

import yaml

from keras_transformer.atomic_file import write_text
from keras_transformer.runs.lock import locked
from keras_transformer.runs.recipe import Recipe

MADE_BY = "keras_transformer"
TOKENIZERS = ("tokenizer.model", "source.model", "target.model")
# In the order in which `reset` deletes them: the recipe after all that was trained by it, so that a
# reset that is killed leaves no checkpoint without its recipe.
FILES = ("model.keras", "averaged.keras", "history.csv", "report.json", "config.yaml", *TOKENIZERS)
CHECKPOINT_FILE = r"\.?checkpoint-\d{8,}\.npz(\.corrupt|\.partial)?"
LOG_FILE = r"events\.out\.tfevents\..+"
# What every `config.yaml` had before there were manifests, with all defaults written out.
SECTIONS = {"data", "vocabulary", "model", "training"}
OLD_KEYS = {"train", "validation", "test", "max_length", "max_length_ratio"}


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
        self.manifest_file = self.path / "run.json"
        self.lock_file = self.path / ".run.lock"
        self.staging = self.path / ".partial.run"
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
        return [self.path / name for name in (TOKENIZERS[:1] if joint else TOKENIZERS[1:])]

    def lost_tokenizers(self, joint):
        """Returns the paths of those tokenizers that are not there."""
        return [file for file in self.tokenizer_files(joint) if not file.is_file()]

    def check_tokenizers(self, joint):
        """Raises a `ValueError` if a model lost its tokenizers and all checkpoints.

        Only a checkpoint can tell whether tokenizers that are made again are the same.
        """
        lost = self.lost_tokenizers(joint)
        if lost and self.model_file.is_file() and not any(self.checkpoints.glob("*.npz")):
            raise ValueError(
                f"{', '.join(map(str, lost))} is missing beside a trained model, and no checkpoint "
                "is left. Put a copy of it back, or begin anew with `--no-resume`."
            )

    def check_unfinished(self):
        """Raises a `ValueError` if the run was trained to its end: it cannot begin once more."""
        if "updates" in self.report():
            raise ValueError(
                f"{self.checkpoints} holds no checkpoint to go on from, and training from the "
                f"beginning would replace {self.model_file}. Put the checkpoints back, or begin "
                "anew with `--no-resume`."
            )

    # === What is the run's, and what is not ===

    def made(self):
        """Returns the names of the files that the run made; `None` if the folder is not a run's.

        The manifest, `run.json`, names them. A run of an earlier version has none: it is known by
        its recipe with every default written out, beside a tokenizer or checkpoints.
        """
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # not ours
            manifest = json.loads(self.manifest_file.read_text("utf-8"))
            if manifest["made_by"] == MADE_BY:
                return [name for name in manifest["files"] if Path(name).name == name]
        if self._is_of_earlier_version():
            return [name for name in FILES if (self.path / name).is_file()]
        return None

    def add_made(self, *names):
        """Adds names of files to the manifest, and writes it."""
        self._write_manifest(sorted({*(self.made() or ()), *names}))

    def check(self):
        """Raises a `ValueError` unless the folder is a run's, or empty, or not there."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`--run` must be a folder. Received: the file {str(self.path)!r}")
        names = sorted(path.name for path in self.path.glob("*"))
        foreign = [n for n in names if n != self.lock_file.name and not n.startswith(".partial.")]
        if foreign and self.made() is None:
            more = f" and {len(foreign) - 4} more" if len(foreign) > 4 else ""
            raise ValueError(
                "`--run` must be the folder of a run, or a new or empty one. Received: "
                f"{str(self.path)!r}, which holds {', '.join(foreign[:4])}{more}. Choose another "
                "folder. Nothing was changed."
            )

    @property
    def trained(self):
        """Whether the folder holds a model or checkpoints."""
        return self.model_file.is_file() or any(_files_like(self.checkpoints, CHECKPOINT_FILE))

    @contextlib.contextmanager
    def claimed(self):
        """Keeps other processes from training the run; yields whether it can (see `locked`).

        Folders that are made for it and stay empty are deleted at the end.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.lock_file) as is_locked:
                try:
                    yield is_locked
                finally:
                    shutil.rmtree(self.staging, ignore_errors=True)
        finally:
            with contextlib.suppress(OSError):
                for path in missing:
                    path.rmdir()

    def reset(self):
        """Deletes what the run has made, and nothing else."""
        made = self.made() or []
        self._write_manifest(made)  # else a run of an earlier version is none once this is killed
        for folder, pattern in ((self.checkpoints, CHECKPOINT_FILE), (self.logs, LOG_FILE)):
            for file in list(_files_like(folder, pattern)):
                file.unlink()
            for path in [*folder.glob("*/"), folder]:
                with contextlib.suppress(OSError):  # it holds other files too
                    path.rmdir()
        for name in sorted(made, key=lambda n: FILES.index(n) if n in FILES else -1):
            for file in (self.path / name, self.path / f".partial.{name}"):
                if file.is_file():
                    file.unlink()
        self._write_manifest([])

    def _write_manifest(self, names):
        _write_json(self.manifest_file, {"made_by": MADE_BY, "files": names})

    def _is_of_earlier_version(self):
        try:
            config = yaml.safe_load(self.recipe_file.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return False
        if not isinstance(config, dict) or not config.keys() == SECTIONS:
            return False
        is_written_out = isinstance(config["data"], dict) and config["data"].keys() >= OLD_KEYS
        tokenizers = any((self.path / name).is_file() for name in TOKENIZERS)
        return is_written_out and (tokenizers or self.trained)

    # === The report ===

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
        _write_json(self.report_file, report)
        return report

    def begin_report(self, **entries):
        """Writes a report of another model than the one before, which is kept under `earlier`."""
        before = self.report()
        earlier = before.pop("earlier", [])
        if before:
            earlier = [*earlier, before]
        report = entries | ({"earlier": earlier} if earlier else {})
        if report:
            _write_json(self.report_file, report)
        return report


def _files_like(folder, pattern):
    """Files in a folder, or in one of its folders, of which the whole name matches a pattern."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if re.fullmatch(pattern, path.name) and path.is_file():
            yield path


def _write_json(path, value):
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
