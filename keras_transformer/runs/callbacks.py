"""Callbacks of a run: logging of speed, and an error at the first loss that is not finite."""

import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.data.pipeline import BatchStream, stream_of
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.texts import first_of


class TrainingLogger(keras.callbacks.Callback):
    """Adds `learning_rate`, `tokens_per_second` and `padding_efficiency` to the logs.

    Adds them after each batch, for the progress bar, and after each epoch. With JAX, it adds
    `learning_rate` only after each epoch. If the model logs `gradient_norm`, its value for an epoch
    is the mean over the updates where it is finite. Tokens that BPE-dropout adds do not count.
    After a resume within an epoch, only `tokens_per_second` changes: it is measured from the resume
    on.

    Args:
        dataset: the dataset that `fit` gets, as `make_dataset` returns it; gives the number of
            target tokens of each batch.

    Example:

    >>> pairs = keras_transformer.number_names("train", 50)
    >>> lines = (line for pair in pairs for line in pair)
    >>> tokenizer = keras_transformer.Tokenizer.train_on_lines(lines, 300, "numbers.json")
    >>> dataset, _ = keras_transformer.make_dataset(pairs, tokenizer, batch_sentences=25)
    >>> model = keras_transformer.Transformer(vocabulary_size=300, num_layers=1, hidden_dim=32)
    >>> model.compile("adam", keras_transformer.SmoothedCrossEntropy())
    >>> logger = keras_transformer.TrainingLogger(dataset)
    >>> history = model.fit(dataset, verbose=0, shuffle=False, callbacks=[logger]).history
    >>> sorted(set(history) - {"loss"})
    ['gradient_norm', 'learning_rate', 'padding_efficiency', 'tokens_per_second']
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self._stream = stream_of(dataset)
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second over all training so far, without padding and validation."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Row n has sums over the first n batches: target tokens, tokens, and token slots.
        counts = self._stream.token_counts(self._stream.epoch)
        self._counts = np.pad(counts.cumsum(axis=0), ((1, 0), (0, 0)))
        self._stream.sums = {}  # `RunKeeper` sets it when it resumes within an epoch
        self._start(batch=0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs:  # skipped: trained before the run was resumed
            self._start(batch + 1)
            return
        if "gradient_norm" in logs:
            norm = float(np.mean([logs["gradient_norm"]]))  # with workers, a one-element list
            if np.isfinite(norm):  # loss scaling skips other updates
                total, updates = self._stream.sums.get("gradient_norm", (0.0, 0))
                self._stream.sums["gradient_norm"] = total + norm, updates + 1
        end = min(batch + 1, len(self._counts) - 1)
        all_target_tokens, tokens, slots = self._counts[end]
        target_tokens = all_target_tokens - self._counts[self._first, 0]
        seconds = time.perf_counter() - self._started
        self._epoch_totals = target_tokens, seconds
        self._values = {
            "tokens_per_second": target_tokens / seconds,
            "padding_efficiency": tokens / slots,
        }
        if keras.backend.backend() != "jax":  # JAX sets the variables after the epoch
            logs["learning_rate"] = _rate_of(self.model)
        logs.update(self._values)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        target_tokens, seconds = self._epoch_totals
        self._tokens += target_tokens
        self._seconds += seconds
        if logs is None:
            return
        logs.update(learning_rate=_rate_of(self.model), **self._values)
        if "gradient_norm" in self._stream.sums:
            total, updates = self._stream.sums["gradient_norm"]
            logs["gradient_norm"] = total / updates

    def _start(self, batch):
        """Restarts the measurement at a batch of the epoch."""
        self._first, self._started = batch, time.perf_counter()
        self._values, self._epoch_totals = {}, (0.0, 0.0)


def _rate_of(model):
    """Returns the learning rate of the next update."""
    # `copy` makes a tensor of a variable, also of one that a strategy mirrors.
    return float(keras.ops.convert_to_numpy(keras.ops.copy(model.optimizer.learning_rate)))


class NonFiniteLossError(ArithmeticError):
    """A loss, gradient or weight is infinite or NaN; the message names update and pairs."""


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Raises an error at the first loss, gradient or weight that is not finite.

    Place it before the callbacks that save the model.

    Args:
        stream: the training batches, for the numbers of the pairs.
        folder: the checkpoints, for the name of the last good one.

    Raises:
        NonFiniteLossError: from `fit`, before the next save.
    """

    def __init__(self, stream: BatchStream, folder: CheckpointFolder) -> None:
        super().__init__()
        self._stream = stream
        self._folder = folder
        self._batch: int | None = None  # no update yet

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # In a second `fit`, Keras counts from 0 again, and the dataset goes on.
        self._epoch, self._stream_epoch = epoch, self._stream.epoch
        self._names = ["loss"]
        # With float16, an overflow is not an error: the optimizer skips the update.
        if not isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer):
            self._names.append("gradient_norm")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batch = batch
        self._check_logs(self._names, logs or {})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._check_logs(["val_loss"], logs or {})
        self.check_state({v.path: v.numpy() for v in self.model.trainable_variables})

    def check_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Checks arrays before they are saved: an update with a finite loss can make NaN weights.

        Args:
            arrays: name to array, as returned by `model_state`.

        Raises:
            NonFiniteLossError: one of them is not finite.
        """
        wrong = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if wrong:
            self._fail(f"{first_of(wrong, 1)} not finite")

    def _check_logs(self, names, logs):
        wrong = [f"{name} {logs[name]}" for name in names if not np.isfinite(logs.get(name, 0.0))]
        if wrong:
            self._fail(" and ".join(wrong))

    def _fail(self, problem):
        if self._batch is None:
            raise NonFiniteLossError(f"{problem} before the first update. Check where it is from.")
        batches = self._stream.batches(self._stream_epoch)
        # With `steps_per_execution`, Keras may count beyond the last batch.
        batch = min(self._batch, len(batches) - 1)
        pairs = np.sort(batches[batch]) + 1
        newest = self._folder.last(1)
        note = f"The last good checkpoint is {newest[0]}." if newest else "There is no checkpoint."
        update = int(self.model.optimizer.iterations.numpy())
        raise NonFiniteLossError(
            f"{problem} at update {update} (epoch {self._epoch + 1}, batch {batch + 1}), in "
            f"the training pairs {', '.join(map(str, pairs))}. {note} Check these pairs (counted "
            "from 1 over all corpora, without those that are left out); lower the learning rate, "
            "lengthen the warm-up, or set `clip_norm`."
        )
