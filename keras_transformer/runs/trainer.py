"""Trains a run from its recipe: prepares data, vocabulary and model, calls `fit`, and reports."""

import contextlib
import itertools
import os
import pathlib
import time
from typing import Any

import keras

from keras_transformer.atomic_file import write_text
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs import build
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss, TrainingLogger
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.devices import LocalDevices, run_devices
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.keeper import RunKeeper
from keras_transformer.runs.load import take_weights
from keras_transformer.runs.model_file import ModelFile
from keras_transformer.runs.progress import TrainingProgress
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trackers import require_trackers, tracker_callbacks
from keras_transformer.runs.translation_evaluator import TranslationEvaluator
from keras_transformer.training import distribution
from keras_transformer.training.best_epoch import monitor_mode
from keras_transformer.training.callbacks import AveragedWeights, BestModel
from keras_transformer.types import Path, PrintFn


class Trainer:
    """Trains a run, or resumes an interrupted run at the exact batch.

    Data, vocabulary, batches and model are prepared first. The run's folder changes only after
    that, just before the first update.

    Args:
        recipe: `Recipe`.
        data_folder: folder that the recipe's paths are relative to.
        run_folder: path of the run's folder, made if it is missing. All workers must see the same
            folder.
        print_fn: called with a line of text for the user.
        resume: `False`: delete the run in the folder and start again. Defaults to `True`.

    Raises:
        ValueError: if the folder holds a run of another recipe or is not a run folder, the
            strategy is not available, `init_from` names this run, or `max_length` exceeds the
            learned positions.
    """

    def __init__(
        self,
        recipe: Recipe,
        data_folder: Path,
        run_folder: Path,
        print_fn: PrintFn = print,
        resume: bool = True,
    ) -> None:
        require_trackers(recipe.training.trackers)
        self.recipe = recipe
        self.data_folder = pathlib.Path(data_folder)
        self.run = RunFolder(run_folder)
        self.resume = resume
        self._check_folder()
        training = recipe.training
        # With several workers, the strategy must be created before any other use of TensorFlow.
        self.strategy = run_devices(training)
        self.is_chief = distribution.is_chief(self.strategy)
        self.print_fn = print_fn if self.is_chief else lambda line: None
        self.checkpoints = CheckpointFolder(
            self.run.checkpoints,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            mode=monitor_mode(recipe.monitor),
        )

    @property
    def finished(self) -> bool:
        """Whether the run is finished, so that `train` has nothing to do."""
        # Only the report of a finished run has "updates"; others may hold scores of `evaluate`.
        is_done = self.resume and self.run.model_file.is_file() and "updates" in self.run.report()
        return is_done and self.run.recipe() == self.recipe and not self._missing_tokenizers

    def train(self) -> dict[str, Any]:
        """Trains the run to its end. Resumes it if it was interrupted.

        Returns:
            the report. It is also written to `report.json`, where earlier reports are kept under
            `earlier`.

        Raises:
            RunInUseError: another process trains the run.
            TrainingInterrupted: after Ctrl-C or SIGTERM. The same call resumes.
            NonFiniteLossError: a loss that is not finite.
            WorkerLostError: another worker has ended.
        """
        with distribution.raise_worker_lost(self.strategy), contextlib.ExitStack() as stack:
            self._on_chief(lambda: self._lock(stack))
            if isinstance(self.strategy, LocalDevices):
                stack.enter_context(self.strategy.scope())
            return self._train()

    def tokenizers(self) -> build.Tokenizers:
        """Returns the tokenizers of source and target.

        They are loaded from the run if it has them, else from files of the recipe, else trained.
        """
        files = self.run.tokenizer_files(self.recipe.vocabulary.joint)
        if not self._resumes or self._missing_tokenizers:
            files = [self.run.staging / file.name for file in files]
            self._on_chief(lambda: build.make_tokenizers(self.recipe, self.data_folder, files))
        return build.load_tokenizers(files)

    def stream(self, tokenizers: build.Tokenizers, split: str = "train") -> BatchStream:
        """Returns the batches of a split of the recipe's data, see `build_stream`."""
        return build.build_stream(self.recipe, self.data_folder, tokenizers, split)

    def model(self, tokenizers: build.Tokenizers, stream: BatchStream) -> Transformer:
        """Returns the compiled model, with random weights, for the batches of training."""
        batches_per_epoch = stream.report.batches_per_epoch
        return build.build_model(self.recipe, tokenizers, self.strategy, batches_per_epoch)

    def _train(self):
        started = time.perf_counter()
        training = self.recipe.training
        keras.utils.set_random_seed(training.seed)
        tokenizers = self.tokenizers()
        stream = self.stream(tokenizers)
        self.print_fn(str(stream.report))
        model = self.model(tokenizers, stream)
        self._print_size(model)
        validation_stream = validation = None
        if self.recipe.data.validation is not None:
            validation_stream = self.stream(tokenizers, "validation")
            validation = validation_stream.dataset()
            self.print_fn(f"Validation: {str(validation_stream.report).splitlines()[0]}")
        logger = TrainingLogger(stream)
        guard = StopOnNonFiniteLoss(stream, self.checkpoints)
        averaged = AveragedWeights() if training.ema_momentum else None
        keeper = RunKeeper(
            self.run,
            stream,
            validation=validation_stream,
            monitor=self.recipe.monitor,
            patience=training.patience,
            every=training.checkpoint_updates,
            checkpoints=self.checkpoints,
            averaged=averaged,
            guard=guard,
            print_fn=self.print_fn,
        )
        is_resumed = self._resumes and keeper.restore(model)
        if not is_resumed and training.init_from is not None:
            take_weights(model, training.init_from)
        progress = TrainingProgress(stream.report.batches_per_epoch)
        others = self._callbacks(model, tokenizers, keeper, averaged, progress)
        is_trained = keeper.finished or keeper.epoch >= training.epochs
        report = self.run.report() if is_trained else {}
        is_reported = "updates" in report
        model_file = ModelFile(
            self.run.model_file, self.checkpoints, self.strategy, training.average, self.print_fn
        )
        was_missing = model_file.restore(model, keeper)
        # Barrier: change the folder only after all workers are ready.
        distribution.sum_over_workers(self.strategy, 0.0)
        self._on_chief(lambda: self._write_start(is_reported))
        if not is_trained:
            self._fit(model, stream, validation, keeper, progress, [logger, guard, *others])
        if was_missing or not is_reported:
            model_file.average(model, validation)
        if is_reported:
            return {name: value for name, value in report.items() if name != "earlier"}
        return self._report(time.perf_counter() - started, model, stream, keeper, logger)

    @property
    def _resumes(self):
        """Whether to resume from the files in the folder; else they are replaced."""
        return self.resume and self.run.recipe_file.is_file()

    @property
    def _missing_tokenizers(self):
        return self.run.missing_tokenizers(self.recipe.vocabulary.joint)

    def _check_folder(self):
        self.run.check()
        path = str(self.run.path)
        if self._resumes and (conflicts := self.recipe.conflicts(self.run.recipe())):
            more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
            raise ValueError(
                f"{path!r} holds a run of another recipe: {', '.join(conflicts[:3])}{more}. Choose "
                "another `--run`, or replace it with `--no-resume`."
            )
        if self.resume and not self._resumes and self.run.trained:
            raise ValueError(
                f"{str(self.run.recipe_file)!r} is missing, but the folder holds a model or "
                "checkpoints. Restore a copy, or start again with `--no-resume`."
            )
        if self._resumes:
            self.run.check_tokenizers(self.recipe.vocabulary.joint)
        init_from = self.recipe.training.init_from
        if init_from is not None and pathlib.Path(init_from).resolve() == self.run.path.resolve():
            raise ValueError(
                "`init_from` must name another run than the one that is trained. Received: "
                f"init_from={init_from!r}, --run {path!r}"
            )

    def _on_chief(self, function):
        """Calls a function on the chief while the others wait. If it fails, all workers stop."""
        error = None
        if self.is_chief:
            try:
                function()
            except Exception as raised:
                error = raised
        if distribution.sum_over_workers(self.strategy, float(error is not None)):
            raise error or distribution.WorkerLostError(
                "The first worker could not start the run. Check its log, then start all workers "
                "again."
            )

    def _lock(self, stack):
        self.run.lock(stack, self.print_fn)
        self._check_folder()  # again, under the lock: another process may have changed it

    def _write_start(self, is_reported):
        """Writes manifest, tokenizers and recipe into the folder, just before the first update."""
        if not self._resumes:
            self.run.reset()
        staged = list(self.run.staging.glob("*"))
        run = self.run
        owned = (run.model_file, run.history_file, run.report_file, run.recipe_file, *staged)
        run.add_owned_files(*(file.name for file in owned))
        for file in staged:
            os.replace(file, run.path / file.name)
        if not is_reported:
            run.start_report()  # the existing report describes an older model
        write_text(run.recipe_file, self.recipe.to_yaml())

    def _print_size(self, model):
        replicas, micro_batches = self.strategy.num_replicas_in_sync, model.accumulation_steps
        if micro_batches > 1 or replicas > 1:
            self.print_fn(f"{replicas} replicas, {micro_batches} micro-batches on each")
        self.print_fn(f"{model.count_params():,} parameters")

    def _callbacks(self, model, tokenizers, keeper, averaged, progress):
        """The callbacks that translate and save, in order: each uses results of those before."""
        data, training, monitor = self.recipe.data, self.recipe.training, self.recipe.monitor
        callbacks = [] if averaged is None else [averaged]
        if self.is_chief and training.translation_sample is not None:
            pairs = data.pairs("validation", self.data_folder)
            sample = list(itertools.islice(pairs, training.translation_sample))
            epochs = training.translation_epochs
            search = {"max_source_tokens": data.max_length} | self.recipe.search
            search |= {"beam_size": 1, "on_too_long": "split"}  # quick, and never an error
            translator = Translator(model, *tokenizers, compiled=False, **search)
            evaluator = TranslationEvaluator(
                translator, sample, epochs, print_fn=self.print_fn, log_dir=self.run.logs
            )
            callbacks += [evaluator]
        if self.is_chief:
            best = (keeper.best() or {}).get(monitor)
            callbacks += [
                BestModel(self.run.model_file, monitor, best),
                keras.callbacks.TensorBoard(self.run.logs, write_graph=False),
                progress,
            ]
        return [*callbacks, keeper]  # last, because it may stop the run

    def _fit(self, model, stream, validation, keeper, progress, callbacks):
        try:
            with contextlib.ExitStack() as stack:
                if self.is_chief:
                    name = self.run.path.resolve().name
                    trackers = stack.enter_context(tracker_callbacks(self.recipe, name))
                    at = callbacks.index(keeper)  # the keeper may stop the run
                    callbacks = [*callbacks[:at], *trackers, *callbacks[at:]]
                model.fit(
                    stream.dataset(counts_epochs=False),  # the keeper sets them
                    epochs=self.recipe.training.epochs,
                    validation_data=validation,
                    callbacks=callbacks,
                    verbose=0,
                    shuffle=False,  # the stream shuffles
                )
        finally:
            progress.close()
            keeper.release()

    def _report(self, seconds, model, stream, keeper, logger):
        best = keeper.best() or {}
        entries = {
            "seconds": round(seconds, 1),
            "tokens_per_second": round(logger.tokens_per_second),
            "updates": int(model.optimizer.iterations.numpy()),
            "parameters": model.count_params(),
            "vocabulary_size": model.config.vocabulary_size,
            "padding_efficiency": round(stream.report.efficiency, 4),
            "dropped": stream.report.dropped,
            "epochs": len(keeper.history),
            "best_epoch": best.get("epoch", -1) + 1,
            **{name: best[name] for name in ("loss", self.recipe.monitor) if name in best},
        }
        if self.is_chief:
            self.run.start_report(**entries)
        return entries
