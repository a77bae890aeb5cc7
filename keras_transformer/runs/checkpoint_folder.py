"""The checkpoint folder of a run: keeps the last and best checkpoints, deletes the others."""

import contextlib
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.runs.checkpoint_file import (
    CorruptCheckpointError,
    read_checkpoint,
    read_metadata,
    read_shapes,
    write_checkpoint,
)
from keras_transformer.training.best_epoch import ranked
from keras_transformer.types import Path, PrintFn


class CheckpointFolder:
    """The checkpoints of a run. `checkpoint-00001234.npz` is the one after 1234 updates.

    A checkpoint has one or more kinds: `"epoch"` (written after an epoch), `"updates"` (written
    every `checkpoint_updates`), `"stop"` (written when a run is stopped) or `"start"` (written
    before the first update). Each `save` keeps the new checkpoint, the last `keep_last` of the kind
    `"epoch"`, the last `keep_last` of the kind `"updates"` and the `keep_best` best ones, and
    deletes the others. Unreadable files do not count and are not deleted.

    Args:
        path: path of the folder. The first `save` makes it.
        keep_last: number of recent checkpoints to keep of each kind. Defaults to `5`.
        keep_best: number of best checkpoints to keep. Defaults to `1`.
        mode: `"min"` or `"max"`: which score is better. Defaults to `None`: `"min"`, but a
            `RunKeeper` then takes the mode from the name of its metric, and raises an error if the
            name does not tell it.

    Raises:
        ValueError: `keep_last` below 1, `keep_best` below 0, another `mode`.

    Example:

    >>> from keras_transformer import runs
    >>> folder = runs.CheckpointFolder("checkpoints", keep_last=2)
    >>> for step, loss in [(100, 3.5), (200, 2.5), (300, 2.75), (400, 2.8)]:
    ...     path = folder.save(step, {"model/bias": np.zeros(3)}, {"epoch": 1}, score=loss)
    >>> [path.name for path in folder.last(2) + folder.best(1)]
    ['checkpoint-00000400.npz', 'checkpoint-00000300.npz', 'checkpoint-00000200.npz']
    >>> path, arrays, metadata = folder.newest()
    >>> metadata
    {'epoch': 1, 'score': 2.8}
    """

    def __init__(
        self, path: Path, keep_last: int = 5, keep_best: int = 1, mode: str | None = None
    ) -> None:
        if keep_last < 1 or keep_best < 0 or mode not in (None, "min", "max"):
            raise ValueError(
                "`keep_last` must be at least 1, `keep_best` at least 0 and `mode` 'min' or 'max'. "
                f"Received: keep_last={keep_last}, keep_best={keep_best}, mode={mode!r}"
            )
        self.path = pathlib.Path(path)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.mode = mode

    def save(
        self,
        step: int,
        arrays: Mapping[str, Any],
        metadata: Mapping[str, Any],
        score: float | None = None,
        kinds: Sequence[str] = (),
    ) -> pathlib.Path:
        """Writes a checkpoint, then deletes the old ones that the folder need not keep.

        Args:
            step: number of updates. A checkpoint of the same step is replaced.
            arrays: name to NumPy array.
            metadata: values that JSON can hold. The score is added as `"score"`.
            score: number to rank checkpoints by; `mode` says which is better. `None`, NaN and
                infinity are never the best.
            kinds: `"epoch"`, `"updates"` or both; or `"start"` or `"stop"` for a temporary
                checkpoint, which the next `save` deletes. Stored in the metadata as `"kinds"`. If
                empty, nothing is stored, and the kind is `"epoch"`.

        Returns:
            path of the checkpoint.

        Raises:
            ValueError: from `write_checkpoint`.
            OSError: the checkpoint could not be written. Older checkpoints are intact.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for partial in self.path.glob(".partial.checkpoint-*.npz"):  # left by a killed process
            partial.unlink()
        path = self.path_of(step)
        metadata = {**metadata, "score": None if score is None else float(score)}
        if kinds:
            metadata["kinds"] = list(kinds)
        write_checkpoint(path, arrays, metadata)
        to_keep = {path, *self.best(self.keep_best)}
        for kind in ("epoch", "updates"):
            to_keep.update(self.last(self.keep_last, kind))
        for old_path in self.metadata().keys() - to_keep:
            old_path.unlink()
        return path

    def path_of(self, step: int) -> pathlib.Path:
        """Returns the path of the checkpoint after `step` updates. The file may not exist."""
        return self.path / f"checkpoint-{step:08d}.npz"

    def metadata(self) -> dict[pathlib.Path, dict[str, Any]]:
        """Returns the metadata of all readable checkpoints by path, the newest first."""
        metadata = {}
        for path in self._files():
            with contextlib.suppress(CorruptCheckpointError, FileNotFoundError):
                metadata[path] = read_metadata(path)
        return metadata

    def last(self, n: int, kind: str | None = None) -> list[pathlib.Path]:
        """Returns the `n` newest checkpoints, the newest first; with `kind`, those of this kind."""
        kinds = {path: values.get("kinds", ["epoch"]) for path, values in self.metadata().items()}
        return [path for path in kinds if kind is None or kind in kinds[path]][:n]

    def best(self, n: int) -> list[pathlib.Path]:
        """Returns the `n` best checkpoints, the best first; equal scores: the earlier first."""
        saved = reversed(self.metadata().items())
        rows: list[dict[str, Any]] = [{**values, "path": path} for path, values in saved]
        return [row["path"] for row in ranked(rows, "score", self.mode or "min")[:n]]

    def newest(
        self,
        print_fn: PrintFn = print,
        check: Callable[[dict[str, tuple[int, ...]]], object] | None = None,
    ) -> tuple[pathlib.Path, dict[str, np.ndarray], dict[str, Any]] | None:
        """Reads the newest undamaged checkpoint.

        Damaged newer checkpoints are renamed to `<name>.corrupt`. If all are damaged, an error is
        raised and nothing is renamed, so a run never restarts silently.

        Args:
            print_fn: called with one line for each checkpoint that is renamed.
            check: called with the result of `read_shapes` before arrays are read. It should raise
                an error if the shapes do not match the model. Optional.

        Returns:
            `(path, arrays, metadata)`, or `None` if there are no checkpoints.

        Raises:
            CorruptCheckpointError: all checkpoints are damaged.
        """
        errors = {}
        for path in self._files():
            try:
                shapes = read_shapes(path)
                if check is not None:
                    check(shapes)
                arrays, metadata = read_checkpoint(path)
            except CorruptCheckpointError as error:
                errors[path] = str(error)  # only the text: the traceback would keep the arrays
                continue
            for corrupt, message in errors.items():
                renamed = corrupt.replace(corrupt.with_name(f"{corrupt.name}.corrupt"))
                print_fn(f"{message} Renamed to {renamed.name}; using the older {path.name}.")
            return path, arrays, metadata
        if errors:
            raise CorruptCheckpointError(
                f"No checkpoint in {self.path} can be read. {' '.join(errors.values())} "
                "Restore a copy of one of them, or delete them to start from the beginning."
            )
        return None

    def _files(self):
        """Returns the paths with a checkpoint's name, the newest first."""
        paths = [path for path in self.path.glob("checkpoint-*.npz") if step_of(path) >= 0]
        return sorted(paths, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Returns the number of updates in the name of a checkpoint; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d{8,})\.npz", pathlib.Path(path).name)
    return int(match[1]) if match else -1
