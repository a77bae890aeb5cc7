"""Keeps a run: checkpoints, history, the decision to stop, and the way back to the exact batch."""

import csv
import io
import signal
import threading

import keras

from keras_transformer.atomic_file import write_text
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.training.callbacks import better
from keras_transformer.training.distribution import is_chief, num_workers, sum_over_workers
from keras_transformer.training.model_state import (
    check_model_state,
    model_state,
    restore_model_state,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Several workers ask each other every so many updates whether one was told to stop.
UPDATES_BETWEEN_QUESTIONS = 16


class TrainingInterrupted(Exception):
    """The run was told to stop, and has saved where it stands.

    Attributes:
        signal: `signal.Signals`, what told it to.
    """

    def __init__(self, number, path):
        self.signal = signal.Signals(number)
        super().__init__(f"Stopped by {self.signal.name}. All is saved in {path}.")


class RunKeeper(keras.callbacks.Callback):
    """Saves a run so that it can go on at the exact batch, and stops it when it is time.

    A checkpoint holds weights, optimizer, states of random numbers, metrics, the position in the
    data and the history. It is written after every epoch, every `every` updates, and when the
    process is told to stop. To be the last of the callbacks that see the logs.

    Args:
        run: `RunFolder`.
        folder: `CheckpointFolder`.
        stream: `BatchStream` that the model trains from.
        monitor: str. Name of the logged value that early stopping and the best checkpoint go by.
        validation: `BatchStream` that the model is validated with. Optional.
        patience: int, in epochs. `None`: no early stopping.
        every: int, in updates.
        averaged: `AveragedWeights`, to be ended before weights are saved. Optional.
        guard: `StopOnNonFiniteLoss`, asked before weights are saved. Optional.

    Raises:
        TrainingInterrupted: out of `fit`, when SIGTERM or Ctrl-C came and all is saved.
    """

    def __init__(
        self,
        run,
        folder,
        stream,
        monitor,
        validation=None,
        patience=None,
        every=1000,
        averaged=None,
        guard=None,
    ):
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
        self._metrics = {}  # of the epoch that was interrupted
        self._signal = None
        self._old_handlers = {}
        self.history = []
        self.epoch, self.batch = 0, 0  # where to go on

    # === The way back ===

    def restore(self, model, print_fn=print):
        """Puts model, optimizer and this keeper into the state of the newest checkpoint, if any.

        Args:
            model: compiled model, not trained yet.
            print_fn: callable that takes a line of text.

        Returns:
            bool, whether there was one.

        Raises:
            ValueError: if it was trained on, or validated with, other data; or if there is no
                checkpoint of a run that was trained to its end.
        """
        strategy = model.distribute_strategy
        parts = ("model", "optimizer")

        def check(shapes):
            check_model_state(model, shapes, parts)

        found = self._folder.newest(print_fn, check) if is_chief(strategy) else None
        step = -1 if found is None else found[2]["step"]
        # All workers go on from the checkpoint that the chief can read.
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
            f"Going on after {step:,} updates, epoch {self.epoch + 1}, batch {self.batch + 1}."
        )
        return True

    def _check_data(self, path, metadata, print_fn):
        for name, split in (("data", "training"), ("validation", "validation")):
            if name not in metadata and self._validation is not None:
                print_fn(
                    "An earlier version began this run: it left long validation pairs out of "
                    "`val_loss`, so its values cannot be compared with those from now on, and "
                    "whether the validation pairs are the same is not known."
                )
            elif metadata.get(name) != self._fingerprints[name]:
                raise ValueError(
                    f"The {split} pairs are not those that {path} was trained with. Give the same "
                    "data, or begin anew with `--no-resume`."
                )

    @property
    def _fingerprints(self):
        validation = None if self._validation is None else self._validation.fingerprint
        return {"data": self._stream.fingerprint, "validation": validation}

    def best(self):
        """Returns the epoch of the history with the best monitored value, or `None`."""
        rows = [row for row in self.history if self._monitor in row]
        return better(self._monitor)(rows, key=lambda row: row[self._monitor], default=None)

    @property
    def finished(self):
        """Whether the monitored value, when last taken, had not become better for `patience`."""
        epochs = [row["epoch"] for row in self.history if self._monitor in row]
        if not epochs or self._patience is None:
            return False
        return epochs[-1] - self.best()["epoch"] >= self._patience

    # === What Keras calls ===

    def on_train_begin(self, logs=None):
        self._questions = UPDATES_BETWEEN_QUESTIONS if num_workers(self._strategy) > 1 else 1
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)

    def on_train_end(self, logs=None):
        self.release()

    def on_epoch_begin(self, epoch, logs=None):
        self._stream.seek(epoch, self.batch)
        self.epoch = epoch
        if self.batch:
            restore_model_state(self.model, self._metrics, parts=("metrics",))
            self._skip(self.batch)

    def on_train_batch_end(self, batch, logs=None):
        if not logs:  # done before
            return
        self.batch = batch + 1
        if self.batch == self._stream.report.batches_per_epoch:
            return  # the end of the epoch comes next
        step = int(self.model.optimizer.iterations.numpy())
        is_told = step % self._questions == 0 and self._is_told_to_stop()
        is_due = step % self._every == 0
        if is_told or is_due:
            # Temporary: an uninterrupted run would not have the checkpoint of a stop.
            path = self._save(step, ["updates"] if is_due else ["stop"])
        if is_told:
            self._stop(path)

    def on_epoch_end(self, epoch, logs=None):
        if self._averaged is not None:
            self._averaged.give_back()
        self.history.append({"epoch": epoch, **{name: float(v) for name, v in logs.items()}})
        self.epoch, self.batch = epoch + 1, 0
        step = int(self.model.optimizer.iterations.numpy())
        kinds = ["epoch", "updates"] if step % self._every == 0 else ["epoch"]
        path = self._save(step, kinds, logs.get(self._monitor))
        if self._writes():
            write_text(self._run.history_file, _csv(self.history))
        if self._is_told_to_stop():
            self._stop(path)
        # The chief decides: only it may have translated.
        if sum_over_workers(self._strategy, float(self.finished and self._writes())):
            self.model.stop_training = True

    # === How ===

    @property
    def _strategy(self):
        return self.model.distribute_strategy

    def _writes(self):
        return is_chief(self._strategy)

    def _skip(self, number):
        """Lets Keras count batches that were done before, without doing them again."""
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
        state = model_state(self.model)  # by all workers: they sum the metrics for it
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
        if not self._writes():
            return self._folder.path_of(step)
        return self._folder.save(step, state, metadata, score, kinds)

    def _on_signal(self, number, frame):
        if self._signal is not None:  # the second time: at once
            self.release()
            raise KeyboardInterrupt
        self._signal = number

    def _is_told_to_stop(self):
        """Whether any worker was; all of them ask at the same update."""
        return sum_over_workers(self._strategy, float(self._signal is not None)) > 0

    def _stop(self, path):
        self.release()
        raise TrainingInterrupted(self._signal or signal.SIGTERM, path)

    def release(self):
        """Gives signals back to whoever handled them before."""
        while self._old_handlers:
            signal.signal(*self._old_handlers.popitem())


def _csv(rows):
    """A table of all columns that any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
