"""The checkpoints of a run: the newest and the best are kept, the others deleted."""

import contextlib
import math
import re
from pathlib import Path

from keras_transformer.runs.checkpoint_file import (
    CorruptCheckpointError,
    read_checkpoint,
    read_metadata,
    read_shapes,
    write_checkpoint,
)


class CheckpointFolder:
    """The checkpoints of a run: `checkpoint-00001234.npz` is the one after 1234 updates.

    After each `save`, it holds the newest ones of each kind and the best ones; the others are
    deleted. A file that cannot be read is no checkpoint: it never counts as one of those kept.

    Args:
        path: path of the folder; the first `save` makes it.
        keep_last: int, how many of the newest of each kind are kept. Defaults to `5`.
        keep_best: int, how many of the best are kept. Defaults to `1`.
        mode: `"min"` or `"max"`, the better score. Defaults to `"min"`.

    Raises:
        ValueError: `keep_last` below 1, `keep_best` below 0, another `mode`.

    Example:

    >>> from keras_transformer.runs.checkpoint_folder import CheckpointFolder
    >>> folder = CheckpointFolder("checkpoints", keep_last=2)
    >>> for step, loss in [(100, 3.5), (200, 2.5), (300, 2.75), (400, 2.8)]:
    ...     path = folder.save(step, {"model/bias": np.zeros(3)}, {"epoch": 1}, score=loss)
    >>> [path.name for path in folder.last(2) + folder.best(1)]
    ['checkpoint-00000400.npz', 'checkpoint-00000300.npz', 'checkpoint-00000200.npz']
    >>> path, arrays, metadata = folder.newest()
    >>> metadata
    {'epoch': 1, 'score': 2.8}
    """

    def __init__(self, path, keep_last=5, keep_best=1, mode="min"):
        if keep_last < 1 or keep_best < 0 or mode not in ("min", "max"):
            raise ValueError(
                "`keep_last` must be at least 1, `keep_best` at least 0 and `mode` 'min' or 'max'. "
                f"Received: keep_last={keep_last}, keep_best={keep_best}, mode={mode!r}"
            )
        self.path = Path(path)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.mode = mode

    def save(self, step, arrays, metadata, score=None, kinds=()):
        """Writes a checkpoint, then deletes those that are neither among the last nor the best.

        Args:
            step: int, the number of updates. A checkpoint of the same step is replaced.
            arrays: dict of name to NumPy array.
            metadata: dict that JSON can hold; the score is added as `"score"`.
            score: float, of which `mode` says what is better. `None` and NaN are never the best.
            kinds: list of `"epoch"` (after an epoch) and `"updates"` (after every so many updates),
                or `["stop"]`: temporary, the next `save` deletes it. Added to the metadata as
                `"kinds"` where given. Defaults to an epoch's.

        Returns:
            path of the checkpoint.

        Raises:
            ValueError: as `write_checkpoint`, or a negative `step`.
            OSError: the checkpoint could not be written; those before are intact.
        """
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: step={step}")
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in self.path.glob(".checkpoint-*.npz.partial"):  # of a process that was killed
            stale.unlink()
        path = self.path_of(step)
        score = None if score is None else float(score)
        kinds = {"kinds": list(kinds)} if kinds else {}
        write_checkpoint(path, arrays, {**metadata, "score": score, **kinds})
        kept = {path, *self.best(self.keep_best)}
        for kind in ("epoch", "updates"):
            kept.update(self.last(self.keep_last, kind))
        for other in self.metadata().keys() - kept:
            other.unlink()
        return path

    def path_of(self, step):
        """Returns the path of the checkpoint after so many updates, whether it is there or not."""
        return self.path / f"checkpoint-{step:08d}.npz"

    def metadata(self):
        """Returns a dict of path to metadata of the checkpoints, the newest first."""
        metadata = {}
        for path in self._files():
            with contextlib.suppress(CorruptCheckpointError, FileNotFoundError):
                metadata[path] = read_metadata(path)
        return metadata

    def last(self, n, kind=None):
        """Returns the paths of the `n` newest checkpoints, of one kind or all; the newest first."""
        metadata = self.metadata().items()
        return [path for path, at in metadata if kind is None or kind in _kinds(at)][:n]

    def best(self, n):
        """Returns the paths of the `n` best checkpoints, the best first; of equals, the earlier."""
        sign = 1 if self.mode == "min" else -1
        scores = {path: at.get("score") for path, at in self.metadata().items()}
        scored = [(p, s) for p, s in scores.items() if s is not None and not math.isnan(s)]
        ranked = sorted(reversed(scored), key=lambda item: sign * item[1])
        return [path for path, _ in ranked][:n]

    def newest(self, print_fn=print, check=None):
        """Reads the newest checkpoint that is whole.

        Newer ones that are not are renamed to `<name>.corrupt`. If none is whole, all files stay
        as they are, so that no run starts again from nothing unasked.

        Args:
            print_fn: called with one line for each checkpoint that is passed over.
            check: called with the dict of `read_shapes` before arrays are read; to raise an error
                where they cannot be of the model. Optional.

        Returns:
            `(path, arrays, metadata)`, or `None` if there are no checkpoints.

        Raises:
            CorruptCheckpointError: there are checkpoints and none is whole.
        """
        errors = {}
        for path in self._files():
            try:
                shapes = read_shapes(path)
                if check is not None:
                    check(shapes)
                arrays, metadata = read_checkpoint(path)
            except CorruptCheckpointError as error:
                errors[path] = str(error)  # the error itself would hold on to what was read
                continue
            for corrupt, error in errors.items():
                renamed = corrupt.replace(corrupt.with_name(f"{corrupt.name}.corrupt"))
                print_fn(
                    f"{error} It is now {renamed.name}; {path.name}, from before, is used instead."
                )
            return path, arrays, metadata
        if errors:
            raise CorruptCheckpointError(
                f"No checkpoint in {self.path} can be read. {' '.join(errors.values())} "
                "Put a copy of one of them there, or delete them to start from the beginning."
            )
        return None

    def _files(self):
        """Paths of what is named as a checkpoint, the newest first."""
        paths = [path for path in self.path.glob("checkpoint-*.npz") if step_of(path) >= 0]
        return sorted(paths, key=step_of, reverse=True)


def step_of(path):
    """Returns the number of updates in the name of a checkpoint; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d{8,})\.npz", Path(path).name)
    return int(match[1]) if match else -1


def _kinds(metadata):
    """The kinds of a checkpoint, also of those that were written before they said so."""
    old = "stop" if metadata.get("temporary") else "updates" if metadata.get("batch") else "epoch"
    return metadata.get("kinds", [old])
