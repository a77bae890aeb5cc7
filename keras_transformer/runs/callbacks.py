"""Callbacks of a run: speed, and the stop at a loss that is not finite."""

import time

import keras
import numpy as np


class TrainingLogger(keras.callbacks.Callback):
    """Adds `learning_rate`, `tokens_per_second` and `padding_efficiency` to the logs.

    To those of each batch, for the progress bar, and to those of the epoch, where the gradient
    norm is the mean over its updates.

    Args:
        stream: `BatchStream` that the model trains from, which knows how many real target tokens
            a batch has.
    """

    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_second(self):
        """float. Real target tokens per second of all training so far, validation not counted."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def on_epoch_begin(self, epoch, logs=None):
        # Row n: what the first n batches hold.
        self._counts = np.pad(self._stream.token_counts(epoch).cumsum(axis=0), ((1, 0), (0, 0)))
        self._begin(batch=0)

    def on_train_batch_end(self, batch, logs=None):
        if not logs:  # done before the run was interrupted
            self._begin(batch + 1)
            return
        self._norms.append(logs["gradient_norm"])
        _, tokens, slots = self._counts[batch + 1]
        target_tokens = self._counts[batch + 1, 0] - self._counts[self._first, 0]
        self._values = {
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": target_tokens / (time.perf_counter() - self._begun),
            "padding_efficiency": tokens / slots,
        }
        logs.update(self._values)
        self._epoch = target_tokens, time.perf_counter() - self._begun

    def on_epoch_end(self, epoch, logs=None):
        self._tokens, self._seconds = np.add((self._tokens, self._seconds), self._epoch)
        norms = {"gradient_norm": float(np.mean(self._norms))} if self._norms else {}
        logs.update(self._values | norms)

    def _begin(self, batch):
        self._first, self._begun = batch, time.perf_counter()
        self._norms, self._values, self._epoch = [], {}, (0.0, 0.0)


class NonFiniteLossError(ArithmeticError):
    """A loss or gradient that is infinite or not a number; the message says where it came from."""


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Ends the training by an error at the first loss, gradient or weight that is not finite.

    Args:
        stream: `BatchStream` that the model trains from, for the lines of the batch.
        folder: `CheckpointFolder`, for the last good checkpoint.

    Raises:
        NonFiniteLossError: out of `fit`, before anything of it is saved.
    """

    def __init__(self, stream, folder):
        super().__init__()
        self._stream = stream
        self._folder = folder

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        # float16 overflows are no failure: the update is skipped, and the scale is lowered.
        scaled = hasattr(self.model.optimizer, "inner_optimizer")
        names = ["loss"] if scaled else ["loss", "gradient_norm"]
        self._batch = batch
        self._check(names, logs or {})

    def on_epoch_end(self, epoch, logs=None):
        self._check(["val_loss"], logs)
        # In front of whoever saves the best model.
        self.check_state({v.path: v.numpy() for v in self.model.trainable_variables})

    def check_state(self, arrays):
        """Checks what is about to be saved: an update can go wrong after a loss that was right.

        Args:
            arrays: dict of name to array, as of `model_state`.

        Raises:
            NonFiniteLossError: one of them is not finite.
        """
        wrong = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self._fail(f"{wrong[0]}{more} not finite")

    def _check(self, names, logs):
        wrong = [f"{name} {logs[name]}" for name in names if not np.isfinite(logs.get(name, 0.0))]
        if wrong:
            self._fail(" and ".join(wrong))

    def _fail(self, what):
        lines = np.sort(self._stream.batches(self._epoch)[self._batch]) + 1
        newest = self._folder.last(1)
        good = f"The last good checkpoint is {newest[0]}." if newest else "There is no checkpoint."
        update = int(self.model.optimizer.iterations.numpy())
        raise NonFiniteLossError(
            f"{what} at update {update} (epoch {self._epoch + 1}, batch {self._batch + 1}), from "
            f"the training pairs of lines {', '.join(map(str, lines))}. {good} Look at these "
            "lines; lower the learning rate, lengthen the warm-up, or set `clip_norm`."
        )
