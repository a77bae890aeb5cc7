"""From a recipe to a trained run: data, vocabulary, model, `fit`, report.

The way through the whole package that `keras-transformer train` takes.
"""

import csv
import itertools
import json
import time
from pathlib import Path

import keras

from keras_transformer.data.pipeline import make_dataset
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.translator import load_tokenizers
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, write_text
from keras_transformer.training.callbacks import SpeedLogger
from keras_transformer.training.distribution import get_strategy
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.schedules import WarmupSchedule, paper_optimizer


class Trainer:
    """Trains one run, or goes on with one that was interrupted.

    Args:
        recipe: `Recipe`.
        data_folder: path that the recipe's files are relative to.
        run_folder: path of the run's folder, made if it is not there.

    Raises:
        ValueError: if the folder holds a run of another recipe.
    """

    def __init__(self, recipe, data_folder, run_folder):
        self.recipe = recipe
        self.data_folder = Path(data_folder)
        self.run = RunFolder(run_folder)
        if self.run.recipe_file.is_file() and self.run.recipe() != recipe:
            raise ValueError(
                f"{str(self.run.path)!r} holds a run of another recipe. Choose another folder with "
                "`--run`, or delete that one."
            )
        # The loss to keep the best model by.
        self.monitor = "loss" if recipe.data.validation is None else "val_loss"

    @property
    def finished(self):
        """Whether the run was trained to its end before."""
        return self.run.report_file.is_file()

    def train(self, say=print):
        """Trains the run to its end, from its last whole epoch if it was interrupted.

        Args:
            say: callable that takes a line of text for the user.

        Returns:
            dict, the report that is also written to `report.json`.
        """
        started = time.perf_counter()
        keras.utils.set_random_seed(self.recipe.training.seed)
        pairs = self._pairs("train")
        tokenizers = self._tokenizers(pairs)
        dataset, data_report = self._dataset(pairs, tokenizers, shuffle=True)
        say(str(data_report))
        validation = None
        if self.recipe.data.validation is not None:
            validation, _ = self._dataset(self._pairs("validation"), tokenizers, shuffle=False)
        self.run.path.mkdir(parents=True, exist_ok=True)
        write_text(self.run.recipe_file, self.recipe.to_yaml())
        with get_strategy().scope():
            model = self._model(tokenizers)
        say(f"{model.count_params():,} parameters")
        speed = SpeedLogger(data_report.target_tokens)
        model.fit(
            dataset,
            epochs=self.recipe.training.epochs,
            validation_data=validation,
            callbacks=self._callbacks(speed),
            shuffle=False,  # the dataset does that
        )
        return self.run.add_to_report(
            seconds=round(time.perf_counter() - started, 1),
            tokens_per_second=round(speed.tokens_per_second),
            updates=int(model.optimizer.iterations),
            parameters=model.count_params(),
            vocabulary_size=model.config.vocabulary_size,
            padding_efficiency=round(data_report.efficiency, 4),
            dropped=data_report.dropped,
            **self._best_epoch(),
        )

    def _pairs(self, split_name):
        """The sentence pairs of a split, as something that can be iterated more than once."""
        return self.recipe.data.pairs(split_name, self.data_folder)

    def _tokenizers(self, pairs):
        """The tokenizers of source and target: of this run, of the recipe, or learned now."""
        settings = self.recipe.vocabulary
        files = self.run.tokenizer_files(settings.joint)
        if not all(file.is_file() for file in files):
            if settings.files is not None:
                for name, file in zip(settings.files, files, strict=True):
                    Tokenizer(self.data_folder / name).save(file)
            else:
                self._learn_vocabulary(pairs, files)
        return load_tokenizers(files)

    def _learn_vocabulary(self, pairs, files):
        settings = self.recipe.vocabulary
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

    def _dataset(self, pairs, tokenizers, shuffle):
        return make_dataset(
            pairs,
            *tokenizers,
            batch_tokens=self.recipe.training.batch_tokens,
            max_length=self.recipe.data.max_length,
            max_length_ratio=self.recipe.data.max_length_ratio,
            shuffle=shuffle,
            seed=self.recipe.training.seed,
            first_epoch=self._epochs_done(),
        )

    def _model(self, tokenizers):
        source, target = tokenizers
        training = self.recipe.training
        config = self.recipe.model_config(
            target.vocabulary_size,
            None if self.recipe.vocabulary.joint else source.vocabulary_size,
        )
        model = Transformer(config, dtype=training.precision)
        schedule = WarmupSchedule(config.hidden_dim, training.warmup_steps)
        if training.learning_rate is not None:
            schedule = WarmupSchedule.from_peak(
                config.hidden_dim, training.learning_rate, training.warmup_steps
            )
        model.compile(
            optimizer=paper_optimizer(
                config, learning_rate=schedule, global_clipnorm=training.clip_norm
            ),
            loss=SmoothedCrossEntropy(training.label_smoothing),
            # No metrics: each passes over all logits again, a tenth of the time of a small model.
            # Batches have many shapes, and each would be compiled anew.
            jit_compile=False,
        )
        return model

    def _callbacks(self, speed):
        best = self._best_epoch().get(self.monitor)
        callbacks = [
            # First, so that what comes after sees what it adds to the logs.
            speed,
            keras.callbacks.BackupAndRestore(self.run.backup, delete_checkpoint=False),
            keras.callbacks.CSVLogger(self.run.history_file, append=True),
            keras.callbacks.TensorBoard(self.run.logs, write_graph=False),
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.ModelCheckpoint(
                self.run.model_file,
                monitor=self.monitor,
                mode="min",
                save_best_only=True,
                initial_value_threshold=best,
            ),
        ]
        if self.recipe.training.patience is not None:
            callbacks.append(
                keras.callbacks.EarlyStopping(
                    self.monitor, patience=self.recipe.training.patience, mode="min", baseline=best
                )
            )
        return callbacks

    def _epochs_done(self):
        metadata = self.run.backup / "training_metadata.json"
        return json.loads(metadata.read_text())["epoch"] if metadata.is_file() else 0

    def _best_epoch(self):
        """The number (from 1) and the losses of the epoch with the lowest monitored loss."""
        if not self.run.history_file.is_file():
            return {}
        with open(self.run.history_file, newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            return {}
        best = min(rows, key=lambda row: float(row[self.monitor]))
        losses = {name: float(best[name]) for name in {"loss", self.monitor}}
        return {"epochs": int(rows[-1]["epoch"]) + 1, "best_epoch": int(best["epoch"]) + 1} | losses
