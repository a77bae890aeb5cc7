"""From a recipe to a trained run: data, vocabulary, model, `fit`, report.

The way through the whole package that `keras-transformer train` takes.
"""

import contextlib
import itertools
import os
import time
from pathlib import Path

import keras

from keras_transformer.atomic_file import atomic_path, write_text
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.averaging import average_into, ema_as_weights, last_to_average
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss, TrainingLogger
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.keeper import RunKeeper
from keras_transformer.runs.load import take_weights
from keras_transformer.runs.progress import TrainingProgress
from keras_transformer.runs.tokenizers import load_tokenizers, make_tokenizers
from keras_transformer.training.callbacks import (
    AveragedWeights,
    BestModel,
    TranslationEvaluator,
    better,
)
from keras_transformer.training.distribution import (
    WorkerLostError,
    get_strategy,
    is_chief,
    raise_worker_lost,
    sum_over_workers,
)
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.model_state import restore_model_state
from keras_transformer.training.schedules import WarmupSchedule, paper_optimizer


class Trainer:
    """Trains one run, or goes on with one that was interrupted, at the exact batch.

    All that can fail before the first update is done first: data, vocabulary, batches and model.
    Until then nothing in the run's folder changes.

    Args:
        recipe: `Recipe`.
        data_folder: path that the recipe's files are relative to.
        run_folder: path of the run's folder, made if it is not there. Several workers must all see
            the same one.
        print_fn: callable that takes a line of text for the user.
        resume: bool. `False`: delete the run in the folder and begin anew. Defaults to `True`.

    Raises:
        ValueError: if the folder holds a run of another recipe or something else, the strategy is
            not available, `init_from` names this run, or `max_length` reaches beyond learned
            positions.
    """

    def __init__(self, recipe, data_folder, run_folder, print_fn=print, resume=True):
        recipe.check_lengths()
        self.recipe = recipe
        self.data_folder = Path(data_folder)
        self.run = RunFolder(run_folder)
        self.resume = resume
        self._check_folder()
        training = recipe.training
        # Several workers have to find each other before TensorFlow is used for anything.
        self.strategy = get_strategy(training.distribution, training.devices)
        self.is_chief = is_chief(self.strategy)
        self.print_fn = print_fn if self.is_chief else lambda line: None
        self.monitor = training.monitor or ("val_loss" if recipe.data.validation else "loss")
        self.checkpoints = CheckpointFolder(
            self.run.checkpoints,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            mode=better(self.monitor).__name__,
        )

    @property
    def finished(self):
        """Whether there is nothing to do: the run was trained to its end before."""
        # `evaluate` writes a report too, also of a run that was interrupted.
        is_done = self.resume and self.run.model_file.is_file() and "updates" in self.run.report()
        return is_done and self.run.recipe() == self.recipe and not self._lost_tokenizers

    def train(self):
        """Trains the run to its end, from where it was interrupted if it was.

        Returns:
            dict, the report that is also written to `report.json` (there, those of earlier models
            of the run are kept under `earlier`).

        Raises:
            RunInUseError: another process trains the run.
            TrainingInterrupted: told to stop by Ctrl-C or SIGTERM; the same call goes on.
            NonFiniteLossError: a loss that is not finite.
            WorkerLostError: another worker has ended.
        """
        with raise_worker_lost(self.strategy), contextlib.ExitStack() as stack:
            self._chief_does(lambda: self._claim(stack))
            return self._train()

    def _train(self):
        started = time.perf_counter()
        keras.utils.set_random_seed(self.recipe.training.seed)
        tokenizers = self.tokenizers()
        stream = self.stream(tokenizers)
        self.print_fn(str(stream.report))
        model = self.model(tokenizers)
        self.print_fn(f"{model.count_params():,} parameters")
        validation = None
        if self.recipe.data.validation is not None:
            validation = self.stream(tokenizers, "validation")
            self.print_fn(f"Validation: {str(validation.report).splitlines()[0]}")
        averaged = AveragedWeights() if self.recipe.training.ema_momentum else None
        guard = StopOnNonFiniteLoss(stream, self.checkpoints)
        keeper = RunKeeper(
            self.run,
            self.checkpoints,
            stream,
            self.monitor,
            validation=validation,
            patience=self.recipe.training.patience,
            every=self.recipe.training.checkpoint_updates,
            averaged=averaged,
            guard=guard,
        )
        goes_on = self._goes_on and keeper.restore(model, self.print_fn)
        if not goes_on and self.recipe.training.init_from is not None:
            take_weights(model, self.recipe.training.init_from)
        validation = None if validation is None else validation.dataset()
        logger = TrainingLogger(stream)
        callbacks = self._callbacks(model, tokenizers, keeper, averaged)
        is_trained = keeper.finished or keeper.epoch >= self.recipe.training.epochs
        report = self.run.report() if is_trained else {}
        is_reported = "updates" in report
        was_missing = self._ensure_model(model, keeper)
        sum_over_workers(self.strategy, 0.0)  # the chief waits here until all are ready
        self._chief_does(lambda: self._begin(is_reported))
        if not is_trained:
            self._fit(model, stream, validation, keeper, [logger, guard, *callbacks])
        if was_missing or not is_reported:
            self._average(model, validation)
        if is_reported:
            return {name: value for name, value in report.items() if name != "earlier"}
        return self._report(started, model, stream, keeper, logger)

    def tokenizers(self):
        """Returns the tokenizers of source and target: of this run, of the recipe, or learned."""
        files = self.run.tokenizer_files(self.recipe.vocabulary.joint)
        if not self._goes_on or self._lost_tokenizers:
            files = [self.run.staging / file.name for file in files]
            self._chief_does(lambda: make_tokenizers(self.recipe, self.data_folder, files))
        return load_tokenizers(files)

    def stream(self, tokenizers, split="train"):
        """Returns the `BatchStream` of a split of the recipe's data.

        Pairs of other splits than `"train"` are dropped only where they cannot be scored: an empty
        side, or more tokens than learned positions.
        """
        is_train = split == "train"
        return BatchStream(
            self._pairs(split),
            *tokenizers,
            batch_tokens=self.recipe.training.batch_tokens,
            # What is validated must not depend on what is trained on.
            max_length=self.recipe.data.max_length if is_train else None,
            max_length_ratio=self.recipe.data.max_length_ratio if is_train else None,
            shuffle=is_train,
            seed=self.recipe.training.seed,
            config=self._config(tokenizers),
        )

    def model(self, tokenizers):
        """Returns the compiled model, its weights random."""
        training, config = self.recipe.training, self._config(tokenizers)
        schedule = WarmupSchedule(config.hidden_dim, training.warmup_steps)
        if training.learning_rate is not None:
            schedule = WarmupSchedule.from_peak(
                config.hidden_dim, training.learning_rate, training.warmup_steps
            )
        optimizer_arguments = {"global_clipnorm": training.clip_norm}
        if training.ema_momentum is not None:
            optimizer_arguments |= {"use_ema": True, "ema_momentum": training.ema_momentum}
        with self.strategy.scope():
            model = Transformer(config, dtype=training.precision)
            model.compile(
                optimizer=paper_optimizer(config, learning_rate=schedule, **optimizer_arguments),
                # No metrics: each passes over all logits again, a tenth of a small model's time.
                loss=SmoothedCrossEntropy(training.label_smoothing),
            )
            # Now, since the loss scaling of float16 would give its variables other names later.
            model.optimizer.build(model.trainable_variables)
        replicas = self.strategy.num_replicas_in_sync
        model.accumulation_steps = training.micro_batches(replicas)
        if model.accumulation_steps > 1 or replicas > 1:
            self.print_fn(f"{replicas} replicas, {model.accumulation_steps} micro-batches on each")
        return model

    @property
    def _goes_on(self):
        """Whether what is in the folder belongs to this run: else it is replaced."""
        return self.resume and self.run.recipe_file.is_file()

    @property
    def _lost_tokenizers(self):
        return self.run.lost_tokenizers(self.recipe.vocabulary.joint)

    def _check_folder(self):
        self.run.check()
        path = str(self.run.path)
        if self._goes_on and not self.recipe.continues(self.run.recipe()):
            raise ValueError(
                f"{path!r} holds a run of another recipe. Choose another folder with `--run`, or "
                "begin it anew with `--no-resume`."
            )
        if self.resume and not self._goes_on and self.run.trained:
            raise ValueError(
                f"{str(self.run.recipe_file)!r} is missing, beside what was trained by it. Put a "
                "copy of it back, or begin anew with `--no-resume`."
            )
        if self._goes_on:
            self.run.check_tokenizers(self.recipe.vocabulary.joint)
        init_from = self.recipe.training.init_from
        if init_from is not None and Path(init_from).resolve() == self.run.path.resolve():
            raise ValueError(
                "`init_from` must name another run than the one that is trained. Received: "
                f"init_from={init_from!r}, --run {path!r}"
            )

    def _chief_does(self, function):
        """Lets the first worker do something while the others wait; its failure ends all."""
        error = None
        if self.is_chief:
            try:
                function()
            except Exception as raised:
                error = raised
        if sum_over_workers(self.strategy, float(error is not None)):
            raise error or WorkerLostError(
                "The first worker could not begin the run. Look into its output, then start all "
                "workers again."
            )

    def _claim(self, stack):
        if not stack.enter_context(self.run.claimed()):
            self.print_fn(
                f"Files cannot be locked in {self.run.path}: see that no other process trains it."
            )
        self._check_folder()  # again: another process may have trained until now

    def _begin(self, is_reported):
        """Makes the folder that of this run, once all is ready for its first update."""
        if not self._goes_on:
            self.run.reset()
        staged = list(self.run.staging.glob("*"))
        made = (self.run.model_file, self.run.history_file, self.run.report_file)
        self.run.add_made(*(file.name for file in (*made, self.run.recipe_file, *staged)))
        for file in staged:
            os.replace(file, self.run.path / file.name)
        if not is_reported:
            self.run.begin_report()  # the last one is of another model than there will be
        write_text(self.run.recipe_file, self.recipe.to_yaml())

    def _config(self, tokenizers):
        source, target = tokenizers
        is_joint = self.recipe.vocabulary.joint
        return self.recipe.model_config(
            target.vocabulary_size, None if is_joint else source.vocabulary_size
        )

    def _pairs(self, split):
        """The sentence pairs of a split, as something that can be iterated more than once."""
        return self.recipe.data.pairs(split, self.data_folder)

    def _callbacks(self, model, tokenizers, keeper, averaged):
        training = self.recipe.training
        callbacks = [] if averaged is None else [averaged]
        if self.is_chief and training.translation_sample is not None:
            sample = itertools.islice(self._pairs("validation"), training.translation_sample)
            bound = self.recipe.data.max_length
            translator = Translator(model, *tokenizers, beam_size=1, max_source_tokens=bound)
            epochs = training.translation_epochs
            callbacks.append(
                TranslationEvaluator(translator, list(sample), epochs, print_fn=self.print_fn)
            )
        if self.is_chief:
            best = (keeper.best() or {}).get(self.monitor)
            callbacks += [
                BestModel(self.run.model_file, self.monitor, best),
                keras.callbacks.TensorBoard(self.run.logs, write_graph=False),
            ]
        return [*callbacks, keeper]

    def _fit(self, model, stream, validation, keeper, callbacks):
        progress = TrainingProgress(stream.report.batches_per_epoch)
        if self.is_chief:
            # Behind what adds to the logs; in front of the keeper, which may stop the run.
            place = callbacks.index(keeper)
            callbacks = [*callbacks[:place], progress, *callbacks[place:]]
        try:
            model.fit(
                stream.dataset(counts_epochs=False),  # the keeper seeks
                initial_epoch=keeper.epoch,
                epochs=self.recipe.training.epochs,
                validation_data=validation,
                callbacks=callbacks,
                verbose=0,
                shuffle=False,  # the dataset does that
            )
        finally:
            progress.close()
            keeper.release()

    def _ensure_model(self, model, keeper):
        """Writes the best epoch's model again if the file was deleted; returns whether it was."""
        best = keeper.best()
        is_missing = self.is_chief and best is not None and not self.run.model_file.is_file()
        if not sum_over_workers(self.strategy, float(is_missing)):
            return False
        # A checkpoint at the end of an epoch says where to go on: in the next one.
        end = best["epoch"] + 1, 0
        saved = self.checkpoints.metadata().items()
        paths = [path for path, at in saved if (at.get("epoch"), at.get("batch")) == end]
        if paths:
            arrays = ema_as_weights(read_checkpoint(paths[0])[0])
            restore_model_state(model, arrays, parts=("model", "optimizer"))
            self._save(model)
            keeper.restore(model, print_fn=lambda line: None)
            self.print_fn(
                f"{self.run.model_file} was missing; it is that of {paths[0].name} again."
            )
        elif self.recipe.training.average is None:
            raise ValueError(
                f"{str(self.run.model_file)!r} is missing, and the checkpoint of its epoch, "
                f"{best['epoch'] + 1}, is not kept. Put a copy of it back, or begin anew with "
                "`--no-resume`."
            )
        return True

    def _average(self, model, validation):
        """Lets the run's model be the average of the last checkpoints, if the recipe says so."""
        number = self.recipe.training.average
        if number is None:
            return
        paths = last_to_average(self.checkpoints, number)
        average_into(model, paths)
        self.print_fn(f"Averaged {', '.join(path.name for path in paths)} (`average` is {number}).")
        if validation is not None:
            loss = model.evaluate(validation, verbose=0)
            self.print_fn(f"Validation loss {loss:.4f}")
        self._save(model)

    def _save(self, model):
        if self.is_chief:
            with atomic_path(self.run.model_file) as partial:
                model.save(partial)

    def _report(self, started, model, stream, keeper, logger):
        best = keeper.best() or {}
        entries = {
            "seconds": round(time.perf_counter() - started, 1),
            "tokens_per_second": round(logger.tokens_per_second),
            "updates": int(model.optimizer.iterations.numpy()),
            "parameters": model.count_params(),
            "vocabulary_size": model.config.vocabulary_size,
            "padding_efficiency": round(stream.report.efficiency, 4),
            "dropped": stream.report.dropped,
            "epochs": len(keeper.history),
            "best_epoch": best.get("epoch", -1) + 1,
            **{name: best[name] for name in ("loss", self.monitor) if name in best},
        }
        if self.is_chief:
            self.run.begin_report(**entries)
        return entries
