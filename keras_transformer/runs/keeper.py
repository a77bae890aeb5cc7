"""The checkpoint callback: saves the state of a `fit`, stops it, resumes at the exact batch."""

import contextlib
import signal
import warnings
from typing import Any

import keras
import numpy as np

from keras_transformer.data.pipeline import stream_of
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.fit_scope import FitScope, TrainingInterrupted
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.identity import check_identity, identity_of
from keras_transformer.runs.skipping import skip_batches
from keras_transformer.runs.training_state import TrainingState
from keras_transformer.training import workers
from keras_transformer.training.best_epoch import best_epoch, monitor_mode
from keras_transformer.training.callbacks import AveragedWeights, ClosedCallback
from keras_transformer.training.methods import TrainingStep
from keras_transformer.training.model_state import (
    TRAINED,
    check_model_state,
    model_state,
    restore_model_state,
)
from keras_transformer.training.optimizers import build_optimizer
from keras_transformer.types import Path, PrintFn

# With several workers: number of updates between the collectives that share stop signals.
STOP_CHECK_INTERVAL = 16


class RunKeeper(ClosedCallback):
    """Saves a training in a folder, so that the same `fit` resumes after an interruption.

    When `fit` begins, it restores the newest checkpoint in the folder, if there is one, and
    continues at the next batch. The results are those of an uninterrupted training. It does not
    matter how the training ended: by SIGKILL, by Ctrl-C, by an error or after its last epoch. To
    extend it, raise `epochs`. The `History` that `fit` returns holds all epochs, also the earlier
    ones.

    A checkpoint holds weights, optimizer, random states, metrics, the position in the data and the
    history. It is written before the first batch, after every epoch, every `every` updates, and
    when the process receives SIGTERM or Ctrl-C. Place this callback after all callbacks that add to
    the logs, and before `SwapEMAWeights(swap_on_epoch=True)`, whose averages it would save.

    Args:
        folder: path of the folder, made if it is missing. It gets `checkpoints/` and `history.csv`.
        dataset: the dataset that `fit` gets, as `make_dataset` returns it.
        validation: the validation dataset of `make_dataset`. Optional: if given, a resume with
            other validation data raises an error.
        monitor: name of the logged metric for early stopping and the best checkpoint. Defaults to
            `"val_loss"`. If it does not end with a name of `evaluation.METRICS`, `checkpoints` must
            have a `mode`.
        patience: stop after this many epochs without an improvement. NaN is not an improvement;
            counting begins at the first number. Defaults to `None`: no early stopping.
        every: number of updates between checkpoints. Defaults to `1000`.
        checkpoints: `CheckpointFolder`, to change which checkpoints are kept. Its `mode` says which
            value of `monitor` is better. Optional.
        averaged: the callback that swaps in averaged weights; they are swapped back before a save.
            Optional.
        guard: the callback that checks weights before each save. Without it, weights that are not
            finite are not saved either, and a warning says so. Optional.
        print_fn: called with a line of text. Defaults to `print`.

    Attributes:
        state: `TrainingState`, where the training stands.
        base: path and hash of the model that the frozen weights are from. With it, checkpoints
            hold only what is trained, and a resume with another base raises an error. Defaults to
            `None`: checkpoints hold all weights.

    Raises:
        TrainingInterrupted: from `fit`, after SIGTERM or Ctrl-C, when the checkpoint is written. A
            notebook shows its message without a traceback.
        RunInUseError: from `fit`, if another process trains in the folder.
        ValueError: if `dataset` is not a dataset of `make_dataset`, or the `mode` of `checkpoints`
            is missing although it is needed; from `fit`, if the folder holds checkpoints of another
            model, optimizer, loss or other data, or the run of a recipe.

    Example:

    >>> pairs = keras_transformer.number_names("train", 50)
    >>> lines = (line for pair in pairs for line in pair)
    >>> tokenizer = keras_transformer.Tokenizer.train_on_lines(lines, 300, "numbers.json")
    >>> dataset, _ = keras_transformer.make_dataset(pairs, tokenizer, batch_sentences=25)
    >>> model = keras_transformer.Transformer(vocabulary_size=300, num_layers=1, hidden_dim=32)
    >>> model.compile("adam", keras_transformer.SmoothedCrossEntropy())
    >>> for epochs in (1, 3):  # the second time, only the two missing epochs are trained
    ...     keeper = keras_transformer.RunKeeper("runs/mine", dataset, print_fn=str)
    ...     history = model.fit(
    ...         dataset, epochs=epochs, verbose=0, shuffle=False, callbacks=[keeper]
    ...     )
    >>> len(history.history["loss"]), int(model.optimizer.iterations)
    (3, 6)
    """

    saves_weights = True

    def __init__(
        self,
        folder: Path | RunFolder,
        dataset: Any,
        validation: Any = None,
        monitor: str = "val_loss",
        patience: int | None = None,
        every: int = 1000,
        checkpoints: CheckpointFolder | None = None,
        averaged: AveragedWeights | None = None,
        guard: StopOnNonFiniteLoss | None = None,
        print_fn: PrintFn = print,
    ) -> None:
        super().__init__()
        numbers = {"every": every} | ({} if patience is None else {"patience": patience})
        for name, value in numbers.items():
            if value is None or not value >= 1:  # `not` also rejects NaN
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value!r}")
        self._has_recipe = isinstance(folder, RunFolder)
        self._run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        self._advice = (
            "start again with `--no-resume`" if self._has_recipe else "choose another folder"
        )
        self._stream = stream_of(dataset)
        self._validation = None if validation is None else stream_of(validation)
        self._monitor = monitor
        self._mode = monitor_mode(monitor, None if checkpoints is None else checkpoints.mode)
        self._patience = patience
        # A checkpoint stores it as JSON, which has no numbers of NumPy.
        self._every = every if isinstance(every, float) else int(every)
        self._folder = checkpoints or CheckpointFolder(self._run.checkpoints, mode=self._mode)
        if self._mode != (self._folder.mode or "min"):
            raise ValueError(
                f"`checkpoints` must keep the highest {monitor!r}. Received: "
                f"mode={self._folder.mode}. Pass `mode={self._mode!r}` to the `CheckpointFolder`."
            )
        self.averaged = averaged
        self._guard = guard
        self.base: dict[str, str] | None = None
        self._print = print_fn
        self._scope = FitScope()
        self._restored: keras.Model | None = None  # `fit` need not restore this model again
        self.state = TrainingState()

    # === Resume ===

    def restore(self, model: keras.Model) -> bool:
        """Restores model, optimizer and this callback from the newest checkpoint, if there is one.

        `fit` does this by itself; call it to use the model without training.

        Args:
            model: compiled model.

        Returns:
            whether there was a checkpoint.

        Raises:
            ValueError: if the model or the training or validation data changed, or if a finished
                run has no checkpoint.
        """
        self.set_model(model)
        self._restored = None  # if this fails, `fit` must not go on
        self._build(model)
        self._identity = identity_of(
            self._stream, self._validation, None if self._has_recipe else model, self.base
        )
        checkpoint = self._newest_checkpoint(model)
        self._is_new = checkpoint is None
        if checkpoint is None:
            self._check_new()
            self.state = TrainingState(updates=int(model.optimizer.iterations.numpy()))
        else:
            path, arrays, metadata = checkpoint
            check_identity(self._identity, metadata, path, self._advice)
            restore_model_state(model, arrays, self._parts)
            self.state = TrainingState.of_checkpoint(arrays, metadata)
            if self._is_chief:
                self._run.write_history(self.state.history)
            self._print_position()
        self._restored = model
        return not self._is_new

    @property
    def _parts(self):
        """The parts of the model's state that a resume restores before the metrics."""
        return "model" if self.base is None else TRAINED, "optimizer"

    def _build(self, model):
        """Builds model and optimizer now. Keras would build them in the first update."""
        if not model.built:
            with self._strategy.scope():
                model(self._example(epoch=0, batch=0)[0])
        build_optimizer(model)

    def _example(self, epoch, batch):
        return self._stream.arrays(self._stream.batches(epoch)[batch], epoch)

    def _newest_checkpoint(self, model):
        def check_shapes(shapes):
            try:
                check_model_state(model, shapes, self._parts)
            except ValueError as error:
                raise ValueError(
                    f"{self._folder.path} must hold checkpoints of this model: {error} Or choose "
                    "another folder."
                ) from None

        # `newest` may rename damaged files, so the other workers call it after the chief.
        checkpoint = self._folder.newest(self._print, check_shapes) if self._is_chief else None
        workers.sum_over_workers(self._strategy, 0.0)
        return checkpoint or self._folder.newest(self._print, check_shapes)

    def _check_new(self):
        """Raises a `ValueError` if the folder holds results although there is no checkpoint."""
        has_history = not self._has_recipe and self._run.history_file.is_file()
        if has_history or "updates" in self._run.report():
            raise ValueError(
                f"{self._run.path} holds results, but {self._folder.path} holds no checkpoint to "
                f"resume from. Restore the checkpoints, or {self._advice}."
            )

    def _print_position(self):
        state = self.state
        # Without `fit`, the number of epochs is not known.
        if self.finished or state.epoch >= (self.params or {}).get("epochs", state.epoch + 1):
            self._print(f"This run is finished: {state.epoch} epochs, {state.updates:,} updates.")
        else:
            position = f"epoch {state.epoch + 1}, batch {state.batch + 1}"
            self._print(f"Resuming after {state.updates:,} updates, at {position}.")

    def best(self) -> dict[str, float] | None:
        """Returns the epoch of the history with the best monitored value, or `None`."""
        return best_epoch(self.state.history, self._monitor, self._mode)

    @property
    def finished(self) -> bool:
        """Whether the monitored value has not improved for `patience` epochs."""
        if self._patience is None:
            return False
        waited = self.state.epochs_without_improvement(self._monitor, self._mode)
        return waited >= self._patience

    # === Callback methods ===

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        # On JAX, each use of `self.model` copies all variables out of the train step.
        self._trained, self._strategy = model, workers.strategy_of(model)
        self._is_chief = workers.is_chief(self._strategy)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._stop_interval = STOP_CHECK_INTERVAL if workers.num_workers(self._strategy) > 1 else 1
        with self._closed_on_error():
            self._scope.begin(self.params, is_closed_by_fit=isinstance(self._trained, TrainingStep))
            self._check_fit()
            if self._is_chief and not self._has_recipe:  # the trainer has locked its run
                self._scope.stack.enter_context(self._run.locked())
            if self._restored is not self.model:
                self.restore(self.model)
            if self._is_new and not self._has_recipe:
                # With the initial weights saved, a restart begins with the same ones.
                self._save(["start"])
                self._is_new = False  # else a second `fit`, after one that failed, would save again
        self._stream.seek(self.state.epoch)  # callbacks before this one ask for its epoch
        # Keras has no public API for this; its `BackupAndRestore` sets the same attribute.
        self.model._initial_epoch = self.params["epochs"] if self.finished else self.state.epoch

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        history = self.model.history
        earlier_rows = [row for row in self.state.history if row["epoch"] not in history.epoch]
        for row in reversed(earlier_rows):
            history.epoch.insert(0, row["epoch"])
            for name in row.keys() - {"epoch"}:
                history.history.setdefault(name, []).insert(0, row[name])
        self.close()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        with self._closed_on_error():
            self._check_position(epoch)
            self._go_to_position()

    def _go_to_position(self):
        """Moves the dataset to the position; within an epoch, restores the metrics too."""
        state = self.state
        # On PyTorch, `fit` also reads the batches that it skips.
        reads_skipped = keras.backend.backend() == "torch"
        self._stream.seek(state.epoch, state.batch, repeat_skipped=reads_skipped)
        self._stream.is_read = False
        if state.batch:
            self._restore_metrics()
            self._stream.sums = dict(state.sums)
            end_skipping = skip_batches(self.model, state.batch)
            self._scope.stack.callback(end_skipping)  # needed if `fit` fails while it skips

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs:  # skipped: trained before the run was resumed
            return
        with self._closed_on_error():
            self._check_dataset()
            batches = self._stream.report.batches_per_epoch
            before = self.state.updates
            # `steps_per_execution` may go beyond the last batch.
            self.state.end_batch(min(batch + 1, batches))
            self._is_due = self._passes(self._every, before)
            if self.state.batch < batches:  # else `on_epoch_end` saves
                self._save_within_epoch(is_checked=self._passes(self._stop_interval, before))

    def _passes(self, interval, before):
        """Whether the updates since `before` have reached a multiple of the interval."""
        return self.state.updates // interval > before // interval

    def _save_within_epoch(self, is_checked):
        """Saves if a checkpoint is due, or if the training stops here."""
        is_stopped = is_checked and self._is_stop_requested()
        # Another callback may have ended the training. With several workers, that alone does not
        # save: `_save` is a collective, and the other callback may run on only some of them.
        is_ended = self._stop_interval == 1 and self._trained.stop_training
        if is_stopped or is_ended or self._is_due:
            # "stop" is temporary: an uninterrupted run would not have this checkpoint.
            path = self._save(["updates"] if self._is_due else ["stop"])
        if is_stopped:
            self._stop(path)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        if self.averaged is not None:
            self.averaged.give_back()
        if self.state.batch < self._stream.report.batches_per_epoch:
            return  # another callback has stopped the training within the epoch
        with self._closed_on_error():
            self.state.end_epoch(logs)
            self._stream.seek(self.state.epoch)
            kinds = ["epoch", "updates"] if self._is_due else ["epoch"]
            path = self._save(kinds, logs.get(self._monitor))
            if self._is_chief:
                self._run.write_history(self.state.history)
                self._warn_if_not_monitored(logs)
            if self._is_stop_requested():
                self._stop(path)
        # The chief decides, because only the chief has the scores of translations.
        if workers.sum_over_workers(self._strategy, float(self.finished and self._is_chief)):
            self.model.stop_training = True

    def _warn_if_not_monitored(self, logs):
        is_logged = any(self._monitor in row for row in self.state.history)
        if self._patience and not (is_logged or self._has_recipe):
            warnings.warn(
                f"Early stopping needs the metric {self._monitor!r}, which `fit` has not "
                f"logged. It has logged: {', '.join(logs)}",
                stacklevel=3,
            )

    # === Checks of `fit` ===

    def _check_fit(self):
        """Raises a `ValueError` if folder or dataset do not match this `fit`."""
        if not self._has_recipe and self._run.recipe_file.is_file():
            raise ValueError(
                f"{str(self._run.path)!r} holds the run of a recipe: resume it by "
                "`keras-transformer train`, or choose another folder."
            )
        steps, expected = self.params["steps"], self._stream.report.batches_per_epoch
        if steps not in (None, expected):
            raise ValueError(
                "`fit` must get the whole dataset that `RunKeeper` has, without `steps_per_epoch`. "
                f"Received: {steps} batches per epoch, of {expected}"
            )

    def _check_position(self, epoch):
        """Raises a `ValueError` if `fit` would not go on where the checkpoint ends."""
        if epoch != self.state.epoch:
            raise ValueError(
                "`fit` must get no `initial_epoch` with a `RunKeeper`, which goes on at epoch "
                f"{self.state.epoch}. Received: initial_epoch={epoch}"
            )
        steps = self.model.steps_per_execution
        if self.state.batch % steps:
            raise ValueError(
                "`steps_per_execution` must divide the number of batches trained in this epoch. "
                f"Received: steps_per_execution={steps}, {self.state.batch} batches. Compile with "
                "`steps_per_execution=1`."
            )

    def _check_dataset(self):
        if not self._stream.is_read:
            raise ValueError(
                "`fit` must get the dataset that `RunKeeper` has. Received: another dataset"
            )

    # === State of the model ===

    def _restore_metrics(self):
        metrics = self.state.metrics
        shapes = {name: array.shape for name, array in metrics.items()}
        try:
            check_model_state(self.model, shapes, ("metrics",))
        except ValueError:
            # On one device, TensorFlow builds the compiled metrics with the first batch.
            batch = self._example(self.state.epoch, self.state.batch)
            x, y, weights = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
            self.model.compute_metrics(x, y, self.model(x), sample_weight=weights)
        restore_model_state(self.model, metrics, ("metrics",))

    def _save(self, kinds, score=None):
        """Writes a checkpoint, on the chief; returns its path.

        Weights that are not finite are not saved: the path is then that of the last checkpoint.
        """
        # A collective, which every worker must call.
        arrays = model_state(self.model, (*self._parts, "metrics"))
        if self._guard is not None:
            self._guard.check_state(arrays)
        elif not self._is_finite(arrays):
            warnings.warn(
                "Weights are not finite, so no checkpoint is written: the next `fit` goes on from "
                "the last one. Lower the learning rate, lengthen the warm-up, or set `clipnorm`.",
                stacklevel=3,
            )
            return (*self._folder.last(1), self._folder.path)[0]
        if not self._is_chief:
            return self._folder.path_of(self.state.updates)
        self.state.sums = self._stream.sums
        metadata = {**self.state.metadata(), "every": self._every, **self._identity}
        return self._folder.save(self.state.updates, arrays, metadata, score, kinds)

    def _is_finite(self, arrays):
        """Whether the trainable weights in the arrays of a checkpoint are finite."""
        names = (f"{self._parts[0]}/{weight.path}" for weight in self._trained.trainable_variables)
        return all(np.isfinite(arrays[name]).all() for name in names)

    # === The end of `fit` ===

    def _is_stop_requested(self):
        """Whether any worker received a signal. A collective: every worker must call it."""
        return workers.sum_over_workers(self._strategy, float(self._scope.signal is not None)) > 0

    def _stop(self, path):
        raise TrainingInterrupted(self._scope.signal or signal.SIGTERM, path)

    @contextlib.contextmanager
    def _closed_on_error(self):
        """Closes the callback if the block fails: the `fit` of a plain Keras model would not."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Restores the signal handlers from before the training, and unlocks the folder.

        Called when `fit` ends. If the `fit` of a plain Keras model fails in another callback, call
        this yourself; otherwise the next `fit` with a `RunKeeper` in the same thread does.
        """
        if not self._scope.is_open:
            return
        self._restored = None  # the next `fit` restores again
        self.model._initial_epoch = None  # for a later `fit` without this callback
        self._scope.close()
        self._stream.seek(self.state.epoch)
