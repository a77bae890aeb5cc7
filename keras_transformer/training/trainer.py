"""From a recipe to a trained run: data, vocabulary, model, `fit`, report.

The way through the whole package that `keras-transformer train` takes.
"""

import itertools
import shutil
import time
from pathlib import Path

import keras

from keras_transformer.data.pipeline import BatchStream
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.translator import Translator, load_tokenizers
from keras_transformer.models.transformer import Transformer, load_model
from keras_transformer.run_folder import RunFolder, replaced, write_text
from keras_transformer.training.callbacks import (
    AveragedWeights,
    BestModel,
    StopOnNonFiniteLoss,
    TrainingLogger,
    TranslationEvaluator,
    better,
)
from keras_transformer.training.checkpoints import (
    CheckpointFolder,
    average_checkpoints,
    restore_model_state,
)
from keras_transformer.training.distribution import (
    get_strategy,
    is_chief,
    lost_workers_told,
    sum_over_workers,
)
from keras_transformer.training.keeper import RunKeeper
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.progress import TrainingProgress
from keras_transformer.training.schedules import WarmupSchedule, paper_optimizer


class Trainer:
    """Trains one run, or goes on with one that was interrupted, at the exact batch.

    Args:
        recipe: `Recipe`.
        data_folder: path that the recipe's files are relative to.
        run_folder: path of the run's folder, made if it is not there. Several workers must all see
            the same one.
        say: callable that takes a line of text for the user.

    Raises:
        ValueError: if the folder holds a run of another recipe, the strategy is not to be had, or
            `init_from` names a run of another model.
    """

    def __init__(self, recipe, data_folder, run_folder, say=print):
        self.recipe = recipe
        self.data_folder = Path(data_folder)
        self.run = RunFolder(run_folder)
        if self.run.recipe_file.is_file() and not recipe.continues(self.run.recipe()):
            raise ValueError(
                f"{str(self.run.path)!r} holds a run of another recipe. Choose another folder with "
                "`--run`, or begin it anew with `--no-resume`."
            )
        training = recipe.training
        # Several workers have to find each other before TensorFlow is used for anything.
        self.strategy = get_strategy(training.distribution, training.devices)
        self.is_chief = is_chief(self.strategy)
        self.say = say if self.is_chief else lambda line: None
        self.monitor = training.monitor or ("val_loss" if recipe.data.validation else "loss")
        self.checkpoints = CheckpointFolder(
            self.run.checkpoints,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            mode=better(self.monitor).__name__,
        )

    @property
    def finished(self):
        """Whether the run was trained to its end before."""
        # `evaluate` writes a report too, also of a run that was interrupted.
        return "updates" in self.run.report() and self.run.recipe() == self.recipe

    def train(self):
        """Trains the run to its end, from where it was interrupted if it was.

        Returns:
            dict, the report that is also written to `report.json`.

        Raises:
            TrainingInterrupted: told to stop by Ctrl-C or SIGTERM; the same call goes on.
            NonFiniteLossError: a loss that is not finite.
            WorkerLostError: another worker has ended.
        """
        with lost_workers_told(self.strategy):
            return self._train()

    def _train(self):
        started = time.perf_counter()
        keras.utils.set_random_seed(self.recipe.training.seed)
        if self.is_chief:
            self._clear()
        tokenizers = self.tokenizers()
        stream = self.stream(tokenizers)
        self.say(str(stream.report))
        model = self.model(tokenizers)
        self.say(f"{model.count_params():,} parameters")
        validation = None
        if self.recipe.data.validation is not None:
            validation = self.stream(tokenizers, "validation").dataset()
        if self.is_chief:
            write_text(self.run.recipe_file, self.recipe.to_yaml())
        averaged = AveragedWeights() if self.recipe.training.ema_momentum else None
        guard = StopOnNonFiniteLoss(stream, self.checkpoints)
        keeper = RunKeeper(
            self.run,
            self.checkpoints,
            stream,
            self.monitor,
            patience=self.recipe.training.patience,
            every=self.recipe.training.checkpoint_updates,
            averaged=averaged,
            guard=guard,
        )
        if not keeper.restore(model, self.say) and self.recipe.training.init_from is not None:
            self._take_weights(model)
        logger = TrainingLogger(stream)
        callbacks = self._callbacks(model, tokenizers, keeper, averaged)
        if not keeper.finished:
            self._fit(model, stream, validation, keeper, [logger, guard, *callbacks])
        self._average(model, validation)
        return self._report(started, model, stream, keeper, logger)

    def tokenizers(self):
        """Returns the tokenizers of source and target: of this run, of the recipe, or learned."""
        files = self.run.tokenizer_files(self.recipe.vocabulary.joint)
        if self.is_chief and not all(file.is_file() for file in files):
            self.run.path.mkdir(parents=True, exist_ok=True)
            self._make_tokenizers(files)
        sum_over_workers(self.strategy, 0.0)  # the others wait for the chief here
        return load_tokenizers(files)

    def stream(self, tokenizers, split="train"):
        """Returns the `BatchStream` of a split of the recipe's data."""
        return BatchStream(
            self._pairs(split),
            *tokenizers,
            batch_tokens=self.recipe.training.batch_tokens,
            max_length=self.recipe.data.max_length,
            max_length_ratio=self.recipe.data.max_length_ratio,
            shuffle=split == "train",
            seed=self.recipe.training.seed,
        )

    def model(self, tokenizers):
        """Returns the compiled model, its weights random."""
        source, target = tokenizers
        training = self.recipe.training
        config = self.recipe.model_config(
            target.vocabulary_size,
            None if self.recipe.vocabulary.joint else source.vocabulary_size,
        )
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
            self.say(f"{replicas} replicas, {model.accumulation_steps} micro-batches on each")
        return model

    def _clear(self):
        """Removes what a start that failed, or a training that now goes on, has left."""
        self.run.report_file.unlink(missing_ok=True)  # of another model than there will be
        if not self.run.recipe_file.is_file():
            self.run.delete_tokenizers()

    def _pairs(self, split):
        """The sentence pairs of a split, as something that can be iterated more than once."""
        return self.recipe.data.pairs(split, self.data_folder)

    def _make_tokenizers(self, files):
        settings = self.recipe.vocabulary
        init_from = self.recipe.training.init_from
        if init_from is not None:
            given = RunFolder.existing(init_from).tokenizer_files(settings.joint)
        elif settings.files is not None:
            given = [self.data_folder / name for name in settings.files]
        else:
            self._learn_vocabulary(files)
            return
        for name, file in zip(given, files, strict=True):
            Tokenizer(name).save(file)

    def _learn_vocabulary(self, files):
        settings = self.recipe.vocabulary
        pairs = self._pairs("train")
        if settings.joint:
            texts = [itertools.chain.from_iterable(pairs)]
        else:
            texts = [(pair[side] for pair in pairs) for side in (0, 1)]
        for text, file in zip(texts, files, strict=True):
            Tokenizer.train(
                text,
                settings.size,
                file,
                model_type=settings.model_type,
                normalization=settings.normalization,
                character_coverage=settings.character_coverage,
            )

    def _take_weights(self, model):
        """The weights of `init_from`, which has to be the same model but for dropout."""
        path = self.recipe.training.init_from
        other = load_model(RunFolder.existing(path).model_file)
        mine, theirs = model.config.to_dict(), other.config.to_dict()
        unlike = [n for n in mine if "dropout" not in n and mine[n] != theirs[n]]
        if unlike:
            raise ValueError(
                f"`init_from` must name a run of the same model. Received: {path!r}, where "
                + ", ".join(f"{name} is {theirs[name]}, not {mine[name]}" for name in unlike)
            )
        model.set_weights(other.get_weights())

    def _callbacks(self, model, tokenizers, keeper, averaged):
        training = self.recipe.training
        callbacks = [] if averaged is None else [averaged]
        if self.is_chief and training.translation_sample is not None:
            sample = itertools.islice(self._pairs("validation"), training.translation_sample)
            callbacks.append(
                TranslationEvaluator(
                    Translator(model, *tokenizers, beam_size=1),
                    list(sample),
                    epochs=training.translation_epochs,
                    say=self.say,
                )
            )
        if self.is_chief:
            best = keeper.best() or {}
            callbacks += [
                BestModel(self.run.model_file, self.monitor, best.get(self.monitor)),
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

    def _average(self, model, validation):
        """Lets the run's model be the average of the last checkpoints, if the recipe says so."""
        number = self.recipe.training.average
        if number is None:
            return
        paths = self.checkpoints.last(number)
        restore_model_state(model, average_checkpoints(paths), parts=("model",))
        self.say(f"Averaged {', '.join(path.name for path in paths)}.")
        if validation is not None:
            loss = model.evaluate(validation, verbose=0)
            self.say(f"Validation loss {loss:.4f}")
        if self.is_chief:
            with replaced(self.run.model_file) as partial:
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
        return self.run.add_to_report(**entries) if self.is_chief else entries


def begin_anew(run_folder):
    """Deletes what a run has trained, so that the next training does not go on with it."""
    run = RunFolder(run_folder)
    for folder in (run.checkpoints, run.logs):
        if folder.is_dir():
            shutil.rmtree(folder)
    run.delete_tokenizers()
    made = (run.recipe_file, run.model_file, run.averaged_file, run.history_file, run.report_file)
    for file in (*made, *run.path.glob("*.png")):
        file.unlink(missing_ok=True)
