"""The checkpoint callback of a run: saves its state, stops it early, resumes at the exact batch."""

import csv
import functools
import io
import pathlib
import signal
import threading
from typing import Any

import keras

from keras_transformer.atomic_file import write_text
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.folder import RunFolder
from keras_transformer.training.callbacks import AveragedWeights, monitor_mode
from keras_transformer.training.distribution import is_chief, num_workers, sum_over_workers
from keras_transformer.training.model_state import (
    check_model_state,
    model_state,
    restore_model_state,
)
from keras_transformer.types import PrintFn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# With several workers: number of updates between the collectives that share stop signals.
STOP_CHECK_INTERVAL = 16


class TrainingInterrupted(Exception):
    """Training was stopped by a signal, after a checkpoint was written.

    Attributes:
        signal: `signal.Signals`, the received signal.
    """

    def __init__(self, number: int, path: pathlib.Path | str) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"Stopped by {self.signal.name}. The checkpoint is {path}.")


class RunKeeper(keras.callbacks.Callback):
    """Writes checkpoints from which a run resumes at the exact batch, and applies early stopping.

    A checkpoint holds weights, optimizer, random states, metrics, the position in the data and the
    history. It is written after every epoch, every `every` updates, and when the process receives
    SIGTERM or Ctrl-C. Place this callback after all callbacks that add to the logs.

    Args:
        run: folder of the run.
        folder: folder of its checkpoints.
        stream: the training batches.
        monitor: name of the logged metric for early stopping and the best checkpoint.
        validation: the validation batches. Optional.
        patience: stop after this many epochs without an improvement. Defaults to `None`: no early
            stopping.
        every: number of updates between checkpoints. Defaults to `1000`.
        averaged: the callback that swaps in averaged weights; they are swapped back before a save.
            Optional.
        guard: the callback that checks weights before each save. Optional.

    Raises:
        TrainingInterrupted: from `fit`, after SIGTERM or Ctrl-C, when the checkpoint is written.
    """

    def __init__(
        self,
        run: RunFolder,
        folder: CheckpointFolder,
        stream: BatchStream,
        monitor: str,
        validation: BatchStream | None = None,
        patience: int | None = None,
        every: int = 1000,
        averaged: AveragedWeights | None = None,
        guard: StopOnNonFiniteLoss | None = None,
    ) -> None:
        super().__init__()
        self._run = run
        self._folder = folder
        self._stream = stream
        self._monitor = monitor
        self._validation = validation
        self._patience = patience
        self._every = every
        self._averaged = averaged
        self._guard = guard
        self._metrics: dict[str, Any] = {}  # metric state of the interrupted epoch
        self._signal: int | None = None
        self._old_handlers: dict[int, Any] = {}
        self.history: list[dict[str, float]] = []
        self.epoch, self.batch = 0, 0  # where to resume

    # === Resume ===

    def restore(self, model: keras.Model, print_fn: PrintFn = print) -> bool:
        """Restores model, optimizer and this callback from the newest checkpoint, if there is one.

        Args:
            model: compiled model, not trained yet.
            print_fn: called with a line of text.

        Returns:
            whether there was a checkpoint.

        Raises:
            ValueError: if the training or validation data changed, or if a finished run has no
                checkpoint.
        """
        strategy = model.distribute_strategy
        parts = ("model", "optimizer")
        check = functools.partial(check_model_state, model, parts=parts)
        # Only the chief searches, because the search may rename files. Then all workers read it.
        found = self._folder.newest(print_fn, check) if is_chief(strategy) else None
        step = found[2]["step"] if found else -1
        step = int(sum_over_workers(strategy, step if is_chief(strategy) else 0))
        if step < 0:
            self._run.check_unfinished()
            return False
        if found is None:
            path = self._folder.path_of(step)
            found = path, *read_checkpoint(path)
        path, arrays, metadata = found
        self._check_data(path, metadata, print_fn)
        restore_model_state(model, arrays, parts)
        self._metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        self.history = metadata["history"]
        self.epoch, self.batch = metadata["epoch"], metadata["batch"]
        if is_chief(strategy):
            write_text(self._run.history_file, _csv(self.history))
        print_fn(
            f"Resuming after {step:,} updates, at epoch {self.epoch + 1}, batch {self.batch + 1}."
        )
        return True

    def _check_data(self, path, metadata, print_fn):
        for name, split in (("data", "training"), ("validation", "validation")):
            if name not in metadata and self._validation is not None:
                print_fn(
                    "An earlier version of keras_transformer started this run. It left long "
                    "validation pairs out of `val_loss`: do not compare values from before and "
                    "after this resume. It is not known whether the validation data changed."
                )
            elif metadata.get(name) != self._fingerprints[name]:
                raise ValueError(
                    f"The {split} pairs differ from those of {path}. Use the same data, or start "
                    "again with `--no-resume`."
                )

    @property
    def _fingerprints(self):
        validation = None if self._validation is None else self._validation.fingerprint
        return {"data": self._stream.fingerprint, "validation": validation}

    def best(self) -> dict[str, float] | None:
        """Returns the epoch of the history with the best monitored value, or `None`."""
        rows = [row for row in self.history if self._monitor in row]
        best_of = min if monitor_mode(self._monitor) == "min" else max
        return best_of(rows, key=lambda row: row[self._monitor], default=None)

    @property
    def finished(self) -> bool:
        """Whether the monitored value has not improved for `patience` epochs."""
        epochs = [row["epoch"] for row in self.history if self._monitor in row]
        best = self.best()
        if best is None or self._patience is None:
            return False
        return epochs[-1] - best["epoch"] >= self._patience

    # === Callback methods ===

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._stop_interval = STOP_CHECK_INTERVAL if num_workers(self._strategy) > 1 else 1
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.release()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._stream.seek(epoch, self.batch)
        self.epoch = epoch
        if self.batch:
            restore_model_state(self.model, self._metrics, parts=("metrics",))
            self._skip(self.batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs:  # skipped: trained before the run was resumed
            return
        self.batch = batch + 1
        if self.batch == self._stream.report.batches_per_epoch:
            return  # `on_epoch_end` saves
        step = int(self.model.optimizer.iterations.numpy())
        is_stopped = step % self._stop_interval == 0 and self._is_stop_requested()
        is_due = step % self._every == 0
        if is_stopped or is_due:
            # "stop" is temporary: an uninterrupted run would not have this checkpoint.
            path = self._save(step, ["updates"] if is_due else ["stop"])
        if is_stopped:
            self._stop(path)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        if self._averaged is not None:
            self._averaged.give_back()
        self.history.append({"epoch": epoch, **{name: float(v) for name, v in logs.items()}})
        self.epoch, self.batch = epoch + 1, 0
        step = int(self.model.optimizer.iterations.numpy())
        kinds = ["epoch", "updates"] if step % self._every == 0 else ["epoch"]
        path = self._save(step, kinds, logs.get(self._monitor))
        if self._is_chief:
            write_text(self._run.history_file, _csv(self.history))
        if self._is_stop_requested():
            self._stop(path)
        # The chief decides, because only the chief has `val_bleu` and `val_chrf`.
        if sum_over_workers(self._strategy, float(self.finished and self._is_chief)):
            self.model.stop_training = True

    @property
    def _strategy(self):
        return self.model.distribute_strategy

    @property
    def _is_chief(self):
        return is_chief(self._strategy)

    def _skip(self, number):
        """Makes `fit` count the first `number` batches of the epoch without training on them."""
        train_function = self.model.train_function

        def skip(iterator):
            nonlocal number
            if number == 0:
                self.model.train_function = train_function
                return train_function(iterator)
            number -= 1
            return {}

        self.model.train_function = skip

    def _save(self, step, kinds, score=None):
        state = model_state(self.model)  # a collective, which every worker must call
        if self._guard is not None:
            self._guard.check_state(state)
        metadata = {
            "step": step,
            "epoch": self.epoch,
            "batch": self.batch,
            "every": self._every,
            "history": self.history,
            **self._fingerprints,
        }
        if not self._is_chief:
            return self._folder.path_of(step)
        return self._folder.save(step, state, metadata, score, kinds)

    # === Signals ===

    def _on_signal(self, number, frame):
        if self._signal is not None:  # a second signal stops immediately
            self.release()
            raise KeyboardInterrupt
        self._signal = number

    def _is_stop_requested(self):
        """Whether any worker received a signal. A collective: every worker must call it."""
        return sum_over_workers(self._strategy, float(self._signal is not None)) > 0

    def _stop(self, path):
        self.release()
        raise TrainingInterrupted(self._signal or signal.SIGTERM, path)

    def release(self) -> None:
        """Restores the signal handlers from before the training."""
        while self._old_handlers:
            signal.signal(*self._old_handlers.popitem())


def _csv(rows):
    """CSV text with the union of all columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
