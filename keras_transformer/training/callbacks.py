"""Callbacks for any `fit`, and a check of what callbacks need from the optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_transformer.training.best_epoch import best_epoch, monitor_mode
from keras_transformer.training.model_state import save_model
from keras_transformer.training.optimizers import without_loss_scaling
from keras_transformer.types import Path


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback], optimizer: Any) -> None:
    """Checks that callbacks suit the optimizer and one another.

    Keras would fail only at the end of an epoch, or not at all.

    Raises:
        ValueError: if a callback sets the learning rate but a schedule or a function does too, if a
            callback needs averages of the weights and the optimizer keeps none, or if one would
            save averages in place of the weights.
    """
    inner = without_loss_scaling(optimizer)
    optimizers = getattr(inner, "optimizers", [inner])  # a `MultiOptimizer` has several
    schedules, has_averages = [], False
    for part in optimizers:
        if not isinstance(part._learning_rate, keras.Variable):  # a schedule or a function
            schedules.append(part._learning_rate)
        has_averages |= part.use_ema
    for callback in callbacks:
        name = type(callback).__name__
        if schedules and isinstance(callback, SET_THE_RATE):
            raise ValueError(
                f"`{name}` sets the learning rate, which must then be a number. Received: "
                f"learning_rate={type(schedules[0]).__name__}. Pass a number to the optimizer, "
                "such as `learning_rate=1e-4`, or leave the callback out."
            )
        if not has_averages and isinstance(callback, NEED_AVERAGES):
            raise ValueError(
                f"`{name}` needs averages of the weights. Received: an optimizer with "
                "use_ema=False. Pass `use_ema=True` to the optimizer, or leave the callback out."
            )
    for place, saver in enumerate(callbacks):
        if isinstance(saver, ClosedCallback) and saver.saves_weights:
            _check_saver(saver, callbacks[:place], callbacks)


def _check_saver(saver, earlier, callbacks):
    """Raises a `ValueError` if a callback would save averages in place of the weights."""
    name, would = type(saver).__name__, "would save averages in place of the weights"
    swaps = [c for c in earlier if isinstance(c, keras.callbacks.SwapEMAWeights)]
    if any(callback.swap_on_epoch for callback in swaps):
        raise ValueError(
            f"`{name}` {would}. Received: `SwapEMAWeights(swap_on_epoch=True)` before it. Place "
            f"`SwapEMAWeights` after `{name}`."
        )
    if any(isinstance(c, AveragedWeights) and c is not saver.averaged for c in callbacks):
        raise ValueError(
            f"`{name}` {would}. Received: `AveragedWeights` in `callbacks` only. Pass it to "
            f"`{name}` too, as `averaged`."
        )


class ClosedCallback(keras.callbacks.Callback):
    """A callback that is closed when `fit` ends, also with an error.

    Keras calls no method of a callback when `fit` ends with an error. The `fit` of a `TrainingStep`
    calls `close`.

    Attributes:
        saves_weights: whether it saves the weights after an epoch, to resume from. Defaults to
            `False`.
        averaged: the `AveragedWeights` that it gives back before a save, or `None`.
    """

    saves_weights = False
    averaged: "AveragedWeights | None" = None

    def close(self) -> None:
        """Frees what the callback holds while `fit` runs. May be called again."""
        raise NotImplementedError


class BestModel(keras.callbacks.Callback):
    """Writes the model to a file, atomically, after each epoch with a new best value.

    Args:
        path: path of the `.keras` file.
        monitor: name of a logged value.
        best: the best value so far, if training resumes. Optional.
        mode: `"min"` or `"max"`: which value is better. Needed if `monitor` does not end with a
            name of `evaluation.METRICS`.
        save_fn: called with model and path to write the file. Defaults to `save_model`.

    Raises:
        ValueError: if `mode` is neither of these, or is missing although it is needed.
    """

    def __init__(
        self,
        path: Path,
        monitor: str,
        best: float | None = None,
        mode: str | None = None,
        save_fn: Callable[[keras.Model, Path], None] | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._monitor = monitor
        self._mode = monitor_mode(monitor, mode)
        self._best = {monitor: best}
        self._save_fn = save_fn

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        row = {self._monitor: (logs or {}).get(self._monitor)}
        # Of equal values, the earlier one is the best.
        if best_epoch([self._best, row], self._monitor, self._mode) is row:
            self._best = row
            (self._save_fn or save_model)(self.model, self._path)


class AveragedWeights(keras.callbacks.Callback):
    """Swaps in the exponential moving average (EMA) of the weights after an epoch.

    Validation and the callbacks after this one see the average, until `give_back` or the next
    epoch of the same `fit`. The swap is bit-exact. Requires an optimizer with `use_ema=True`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[Any] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._weights = None  # an earlier `fit` may have trained another model

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.give_back()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._weights is not None:
            return
        averages = without_loss_scaling(self.model.optimizer)._model_variables_moving_average
        self._weights = [variable.numpy() for variable in self.model.trainable_variables]
        for variable, average in zip(self.model.trainable_variables, averages, strict=True):
            variable.assign(average.numpy())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.on_test_begin()  # without validation, Keras does not call it

    def give_back(self) -> None:
        """Restores the weights that the average replaced."""
        if self._weights is not None:
            for variable, value in zip(self.model.trainable_variables, self._weights, strict=True):
                variable.assign(value)
            self._weights = None


class DatasetEpoch(keras.callbacks.Callback):
    """Sets a dataset to the epoch at which `fit` begins: `initial_epoch`, or the epoch of a backup.

    If `fit` begins at epoch 0, the dataset keeps its position, so that a second `fit` gets the
    batches in other orders.

    Args:
        stream: `BatchStream` of the dataset.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._is_first = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_first and epoch:
            self._stream.seek(epoch)
        self._is_first = False


SET_THE_RATE = keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau
NEED_AVERAGES = keras.callbacks.SwapEMAWeights, AveragedWeights
