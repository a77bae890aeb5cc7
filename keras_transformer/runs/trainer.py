"""Trains a run from its recipe: prepares data, vocabulary and model, calls `fit`, and reports."""

import contextlib
import dataclasses
import math
import os
import pathlib
import time
from typing import Any

import keras
import numpy as np

from keras_transformer.atomic_file import write_text
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.decoding.lines import learned_limits
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs import build
from keras_transformer.runs.averaging import average_into, last_to_average
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss, TrainingLogger
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.devices import run_devices
from keras_transformer.runs.event_log import EventLogger
from keras_transformer.runs.fine_tuning import base_of, save_plain_model
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.keeper import RunKeeper
from keras_transformer.runs.load import take_weights
from keras_transformer.runs.progress import TrainingProgress
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.translation_evaluator import TranslationEvaluator
from keras_transformer.settings import yaml_line
from keras_transformer.texts import first_of
from keras_transformer.training import workers
from keras_transformer.training.best_epoch import monitor_mode
from keras_transformer.training.callbacks import AveragedWeights, BestModel
from keras_transformer.training.model_state import save_model
from keras_transformer.types import Path, PrintFn

MAX_BATCHES = 10_000  # maximum number of batches that the limits of length are learned from


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
        resume: `False`: delete the run in the folder and start again, in the first call of `train`.
            Defaults to `True`.

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
        self.recipe = recipe
        self.data_folder = pathlib.Path(data_folder)
        self.run = RunFolder(run_folder)
        self.resume = resume
        training = recipe.training
        self.checkpoints = CheckpointFolder(
            self.run.checkpoints,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            mode=monitor_mode(recipe.monitor),
        )
        self._check_folder()
        # With several workers, the strategy must be created before any other use of TensorFlow.
        self.strategy = run_devices(training)
        self.is_chief = workers.is_chief(self.strategy)
        self.print_fn = print_fn if self.is_chief else lambda line: None

    @property
    def finished(self) -> bool:
        """Whether the run is finished, so that `train` has nothing to do."""
        # Only the report of a finished run has "updates"; others may hold scores of `evaluate`.
        if not (self.resume and self.run.model_file.is_file() and "updates" in self.run.report()):
            return False
        run_recipe = self.run.recipe()
        return run_recipe == self._with_limits(run_recipe.search)

    def train(self) -> dict[str, Any]:
        """Trains the run to its end. Resumes it if it was interrupted.

        Returns:
            the report. It is also written to `report.json`.

        Raises:
            RunInUseError: another process trains the run.
            TrainingInterrupted: after Ctrl-C or SIGTERM. The same call resumes.
            NonFiniteLossError: a loss that is not finite.
            WorkerLostError: another worker has ended.
        """
        with workers.raise_worker_lost(self.strategy), contextlib.ExitStack() as stack:
            self._on_chief(lambda: stack.enter_context(self.run.locked()))
            self._on_chief(self._check_folder)  # again, under the lock
            stack.enter_context(workers.training_scope(self.strategy))
            return self._train()

    def tokenizers(self) -> build.Tokenizers:
        """Returns the tokenizers of source and target.

        They are loaded from the run if it has them, else from files of the recipe, else trained.
        """
        joint = self.recipe.vocabulary.joint
        files = self.run.tokenizer_files(joint)
        if not self._resumes:
            names = (file.name for file in self.run.new_tokenizer_files(joint))
            files = [self.run.staging / name for name in names]
            self._on_chief(lambda: build.make_tokenizers(self.recipe, self.data_folder, files))
        return build.load_tokenizers(files)

    def stream(self, tokenizers: build.Tokenizers, split: str = "train") -> BatchStream:
        """Returns the batches of a split of the recipe's data, see `build_stream`."""
        return build.build_stream(
            self.recipe, self.data_folder, tokenizers, split, self.run, self.print_fn
        )

    def model(self, tokenizers: build.Tokenizers, stream: BatchStream) -> Transformer:
        """Returns the compiled model, with random weights, to train on `stream`."""
        batches_per_epoch = stream.report.batches_per_epoch
        return build.build_model(self.recipe, tokenizers, self.strategy, batches_per_epoch)

    def _with_limits(self, search):
        """Returns the recipe with the limits of length of `search` added, where it sets none."""
        names = search.keys() & {"length_ratio", "extra_length"}
        limits = {name: search[name] for name in sorted(names)}
        return dataclasses.replace(self.recipe, search=limits | self.recipe.search)

    def _learn_limits(self, stream, tokenizers):
        """Adds to the recipe's `search` the limit of length that the training pairs need.

        A search counts no tokens of languages.
        """
        rows = np.concatenate(stream.batches(epoch=0)[:MAX_BATCHES])  # in random order
        lengths = stream.lengths[rows] - int(bool(tokenizers[0].language_ids))
        if limits := learned_limits(lengths, self.recipe.search):
            self.recipe = self._with_limits(limits)
            self.print_fn(
                "`search` gets the limit of length that 99.9% of the training pairs need: "
                f"{yaml_line(limits)}"
            )

    def _train(self):
        started = time.perf_counter()
        training = self.recipe.training
        keras.utils.set_random_seed(training.seed)
        for split in ("train", "validation"):
            if getattr(self.recipe.data, split) is not None:
                # Errors in the data come before the vocabulary is trained and pairs are tokenised.
                self.recipe.data.pairs(split, self.data_folder)
        tokenizers = self.tokenizers()
        stream = self.stream(tokenizers)
        self.print_fn(str(stream.report))
        self._learn_limits(stream, tokenizers)
        base = base_of(training)
        model = self.model(tokenizers, stream)
        self._print_size(model)
        validation = self._validation(tokenizers)
        logger = TrainingLogger(stream)
        guard = StopOnNonFiniteLoss(stream, self.checkpoints)
        averaged = AveragedWeights() if training.ema_momentum else None
        keeper = RunKeeper(
            self.run,
            stream,
            validation=validation,
            monitor=self.recipe.monitor,
            patience=training.patience,
            every=training.checkpoint_updates,
            checkpoints=self.checkpoints,
            averaged=averaged,
            guard=guard,
            print_fn=self.print_fn,
        )
        keeper.base = base
        keeper.set_params({"epochs": training.epochs})  # `fit` is not called if all are trained
        self._set_weights(model, keeper)
        is_trained = keeper.finished or keeper.state.epoch >= training.epochs
        # The order matters: a callback reads what the callbacks before it add to the logs.
        callbacks = [logger, guard, *filter(None, [averaged])]
        if self.is_chief and not is_trained:
            callbacks += self._callbacks_of_chief(model, tokenizers, stream, keeper)
        callbacks += [keeper]
        report = self.run.report() if is_trained else {}
        is_reported = "updates" in report
        # Barrier: change the folder only after all workers are ready.
        workers.sum_over_workers(self.strategy, 0.0)
        self._on_chief(lambda: self._write_start(is_reported, keeper.best()))
        self.resume = True  # an interrupted start goes on in the next call
        if not is_trained:
            self._fit(model, stream, validation, callbacks)
        if training.average is not None and not is_reported:
            self._average(model, validation)
        if is_reported:
            return report
        return self._report(time.perf_counter() - started, model, stream, keeper, logger)

    def _set_weights(self, model, keeper):
        """Sets a model to the newest checkpoint, or to the weights of `init_from`.

        A run with a base needs both: its checkpoints hold only what is trained.
        """
        init_from = self.recipe.training.init_from
        if keeper.base is not None:
            take_weights(model, init_from)
        is_resumed = self._resumes and keeper.restore(model)
        if not is_resumed and keeper.base is None and init_from is not None:
            take_weights(model, init_from)

    def _validation(self, tokenizers):
        """Returns the dataset of the validation split, or `None`; prints which pairs it drops."""
        if self.recipe.data.validation is None:
            return None
        stream = self.stream(tokenizers, "validation")
        lines = str(dataclasses.replace(stream.report, notes=())).splitlines()
        pairs, _batches, _padding, *remarks = lines
        self.print_fn("\n".join([f"Validation: {pairs}", *remarks]))
        return stream.dataset()

    @property
    def _resumes(self):
        """Whether to resume from the files in the folder; else they are replaced."""
        return self.resume and self.run.recipe_file.is_file()

    def _check_folder(self):
        self.run.check()
        path = str(self.run.path)
        if self._resumes and (conflicts := self.recipe.conflicts(self.run.recipe())):
            raise ValueError(
                f"{path!r} holds a run of another recipe: {first_of(conflicts, 3)}. Choose "
                "another `--run`, or replace it with `--no-resume`."
            )
        files = self.run.tokenizer_files(self.recipe.vocabulary.joint)
        missing = [str(file) for file in (self.run.recipe_file, *files) if not file.is_file()]
        if self.resume and self.run.trained and missing:
            raise ValueError(
                f"{missing[0]!r} is missing, but the folder holds a model or checkpoints. Restore "
                "a copy, or start again with `--no-resume`."
            )
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
        if workers.sum_over_workers(self.strategy, float(error is not None)):
            raise error or workers.WorkerLostError(
                "The first worker could not start the run. Check its log, then start all workers "
                "again."
            )

    def _write_start(self, is_reported, best):
        """Writes manifest, tokenizers and recipe into the folder, just before the first update."""
        run = self.run
        if best is not None and not run.model_file.is_file():
            raise ValueError(
                f"{str(run.model_file)!r}, the model of epoch {best['epoch'] + 1}, is "
                "missing. Restore a copy, or start again with `--no-resume`."
            )
        if not self._resumes:
            run.reset()
        staged = list(run.staging.glob("*"))
        files = (run.model_file, run.history_file, run.report_file, run.recipe_file, *staged)
        run.add_owned_files(*(file.name for file in files))
        for file in staged:
            os.replace(file, run.path / file.name)
        if not is_reported:
            run.report_file.unlink(missing_ok=True)  # it describes an older model
        write_text(run.recipe_file, self.recipe.to_yaml())

    def _print_size(self, model):
        replicas, micro_batches = self.strategy.num_replicas_in_sync, model.accumulation_steps
        if micro_batches > 1 or replicas > 1:
            self.print_fn(f"{replicas} replicas, {micro_batches} micro-batches on each")
        trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        total = model.count_params()
        trained_text = f", {trained:,} of them trained" if trained < total else ""
        self.print_fn(f"{total:,} parameters{trained_text}")

    def _callbacks_of_chief(self, model, tokenizers, stream, keeper):
        """The chief's callbacks: translations, best model, TensorBoard, progress."""
        training, monitor = self.recipe.training, self.recipe.monitor
        best = (keeper.best() or {}).get(monitor)
        callbacks = [
            BestModel(
                self.run.model_file,
                monitor,
                best,
                save_fn=save_plain_model if training.has_base else None,
            ),
            EventLogger(self.run.logs),
            TrainingProgress(stream.report.batches_per_epoch),
        ]
        if training.translation_sample is None:
            return callbacks
        sample, languages = build.translation_sample(self.recipe, self.data_folder, tokenizers)
        most = build.most_source_tokens(self.recipe, model.config, tokenizers)
        search = {"max_source_tokens": most} | self.recipe.search
        search |= {"beam_size": 1, "on_too_long": "split"}  # quick, and never an error
        evaluator = TranslationEvaluator(
            Translator(model, *build.tag_sources(self.recipe, tokenizers), **search),
            sample,
            training.translation_epochs,
            print_fn=self.print_fn,
            languages=languages,
        )
        return [evaluator, *callbacks]

    def _fit(self, model, stream, validation, callbacks):
        if keras.config.backend() == "jax" and stream.report.shapes:
            self.print_fn(
                "The first batch of each shape takes longer: JAX compiles the update, or reads the "
                "program that an earlier run compiled."
            )
        model.fit(
            stream.dataset(counts_epochs=False),  # the keeper sets the epoch
            epochs=self.recipe.training.epochs,
            validation_data=validation,
            callbacks=callbacks,
            verbose=0,
            shuffle=False,  # the stream shuffles
        )

    def _average(self, model, validation):
        """Replaces the model by the average of the last epochs."""
        training = self.recipe.training
        number = training.average
        paths = last_to_average(self.checkpoints, number)
        average_into(model, paths, has_base=training.has_base)
        names = ", ".join(path.name for path in paths)
        self.print_fn(f"Averaged {names} (`average` is {number}).")
        if validation is not None:
            logs = model.evaluate(validation, verbose=0, return_dict=True)
            self.print_fn(f"Validation loss {logs['loss']:.4f}")
        if self.is_chief:
            save = save_plain_model if training.has_base else save_model
            save(model, self.run.model_file)

    def _report(self, seconds, model, stream, keeper, logger):
        best = keeper.best() or {}
        entries = {
            "backend": keras.config.backend(),
            "seconds": round(seconds, 1),
            "tokens_per_second": round(logger.tokens_per_second),
            "updates": int(model.optimizer.iterations.numpy()),
            "parameters": model.count_params(),
            "vocabulary_size": model.config.vocabulary_size,
            "padding_efficiency": round(stream.report.efficiency, 4),
            "dropped": stream.report.dropped,
            "notes": list(stream.report.notes),
            "overlaps": stream.report.overlaps,
            "epochs": len(keeper.state.history),
            "best_epoch": best.get("epoch", -1) + 1,
            **{name: best[name] for name in ("loss", self.recipe.monitor) if name in best},
        }
        if self.is_chief:
            self.run.replace_report(**entries)
        return entries
