"""Checks before a long run: devices, data, vocabulary, memory, learning and disk space.

Each check uses the run's own settings and code, and does not write to the run folder.
"""

import gc
import math
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np

from keras_transformer import types
from keras_transformer.console import console
from keras_transformer.data.pieces import WORDS
from keras_transformer.data.report import Sample, UnknownSymbols
from keras_transformer.data.tokenizer_like import require_matching_vocabularies
from keras_transformer.processor import say_if_emulated
from keras_transformer.runs.build import config_of, find_tokenizers, schedule_warnings
from keras_transformer.runs.device_check import check_devices
from keras_transformer.runs.memory import is_out_of_memory, peak_memory_of_gpus
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from keras_transformer.training.workers import training_scope

CHECKS = ("devices", "data", "vocabulary", "memory", "learning", "disk")  # in this order
LEARNING_RATE = 0.001  # the recipe's warm-up rate is too low for ten steps
STEPS = 10
MAX_LOSS_RATIO = 0.9  # last loss / first loss
GIB = 2**30
MARKS = {True: "✓", False: "✗", None: "–"}
WARNING_MARK = "!"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `str()` gives one line for the user, and one for each warning.

    Args:
        name: what was checked.
        passed: `None` if the check did not run because another one failed.
        detail: what was measured, or what is wrong and what to do; one line.
        seconds: time since the previous check ended, so that all seconds add up to the whole time.
        warnings: what may be wrong although the check passed; lines of text.

    Example:

    >>> from keras_transformer.runs import Finding
    >>> print(Finding("devices", True, "1 replica: CPU:0", 0.3))
    ✓ devices     1 replica: CPU:0 (0.3 s)
    """

    name: str
    passed: bool | None
    detail: str
    seconds: float
    warnings: tuple[str, ...] = ()

    def __str__(self):
        mark = WARNING_MARK if self.passed and self.warnings else MARKS[self.passed]
        line = f"{mark} {self.name:<10}  {self.detail} ({self.seconds:.1f} s)"
        return "\n".join([line, *(f"  {WARNING_MARK} {warning}" for warning in self.warnings)])


class _NotRunError(Exception):
    """The check needs the result of a check that failed."""


def run_checks(
    recipe: Recipe,
    data_folder: types.Path,
    run_folder: types.Path | None = None,
    timeout: float = 60.0,
    print_fn: types.PrintFn = print,
    started: float | None = None,
) -> list[Finding]:
    """Runs all checks for a recipe: devices, data, vocabulary, memory, learning and disk.

    A failed check does not stop the others, unless they need its result. With several workers, call
    it on all of them at the same time.

    Args:
        recipe: `Recipe`.
        data_folder: folder that the recipe's paths are relative to.
        run_folder: path of the run's folder; it may not exist. If it holds a vocabulary, the checks
            use that vocabulary. The disk check measures the free space of this folder's disk.
            Nothing is written to the folder. Defaults to a new run, on the disk of the working
            directory.
        timeout: time limit of the device check, in seconds.
        print_fn: called with each finding as text. Standard error says which check runs.
        started: the value of `time.perf_counter()` that the first check's seconds count from.
            Defaults to now.

    Returns:
        the findings.

    Raises:
        ValueError: if the folder holds a run of another recipe.
    """
    findings = []
    start = time.perf_counter() if started is None else started  # of the check
    with tempfile.TemporaryDirectory() as scratch:
        checks = _Checks(recipe, data_folder, run_folder, scratch, timeout)
        checks.preparation = time.perf_counter() - start
        for number, name in enumerate(CHECKS, 1):
            console.print(f"Checking {name} ({number} of {len(CHECKS)})")
            warnings = []
            try:
                passed, detail, *warnings = getattr(checks, name)()
            except _NotRunError as error:
                passed, detail = None, f"not run: needs {error}"
            except Exception as error:  # any exception is a failed check
                passed, detail = False, f"{type(error).__name__}: {error}"
            end = time.perf_counter()
            seconds, start = end - start, end
            detail = " ".join(detail.split())
            findings.append(Finding(name, passed, detail, seconds, tuple(warnings)))
            print_fn(str(findings[-1]))
            gc.collect()  # a model has reference cycles, and the next check builds another one
    return findings


class _Checks:
    """The checks and the results that they share. A check returns (passed, detail, *warnings)."""

    def __init__(self, recipe, data_folder, run_folder, scratch, timeout):
        self.recipe, self.timeout, self.preparation = recipe, timeout, 0.0
        self.folders = Path(data_folder), scratch
        self.disk_folder = Path(run_folder or ".").absolute()
        # For the checks that train nothing: with one device, no missing worker can block them.
        training = replace(recipe.training, distribution="single", devices=None)
        single = replace(recipe, training=training)
        self.single_device_trainer = Trainer(single, *self.folders, print_fn=lambda line: None)
        # Raises an error if the folder holds a run of another recipe.
        self.run = Trainer(single, data_folder, run_folder or scratch).run
        self.trainer = self.tokenizers = self.sample = self.stream = self.batches = None

    def devices(self):
        """Runs first, because the cluster must be set up before any other use of TensorFlow."""
        training = self.recipe.training
        passed, detail = check_devices(training.distribution, training.devices, self.timeout)
        if passed:
            self.trainer = Trainer(self.recipe, *self.folders, print_fn=lambda line: None)
        warnings: list[str] = []
        say_if_emulated(keras.DTypePolicy(training.precision).compute_dtype, warnings.append)
        return passed, f"{detail}; imports and settings took {self.preparation:.1f} s", *warnings

    def data(self):
        sample = Sample(self.recipe.data.pairs("train", self.folders[0]))
        for _ in sample:  # reads all pairs
            pass
        self.sample = sample
        try:
            self.tokenizers = self._tokenizers()
        except Exception:  # the next check, `vocabulary`, raises it
            raise _NotRunError("vocabulary") from None
        self.stream = self.single_device_trainer.stream(self.tokenizers)
        report = self.stream.report
        detail = "; ".join(str(replace(report, warnings=())).splitlines())
        schedule = schedule_warnings(self.recipe.training, report.batches_per_epoch)
        return True, detail, *report.warnings, *schedule, *self._symbols()

    def vocabulary(self):
        _require(data=self.sample)  # the pairs were read
        tokenizers = self.tokenizers or self._tokenizers()  # raises the error that `data` hides
        _require(data=self.stream)  # the batches were made
        shapes = [self.stream.shape(batch) for batch in self.stream.batches(epoch=0)]
        rows, source_lengths, target_lengths = np.array(shapes).T
        token_slots = rows * (source_lengths + target_lengths)
        self.batches = token_slots, np.maximum(source_lengths, target_lengths)
        sides = zip(tokenizers, self.stream.report.changes, strict=True)
        results = [check_tokenizer(tokenizer, changes) for tokenizer, changes in sides]
        passed = all(is_known for is_known, _ in results)
        advice = "" if passed else ": train the vocabulary on this text"
        return passed, "; ".join(detail for _, detail in results) + advice

    def memory(self):
        _require(devices=self.trainer, vocabulary=self.batches)
        slots, lengths = self.batches
        try:
            model, _ = self._train([np.argmax(slots), np.argmax(lengths)])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False, (
                f"a batch of {slots.max():,} token slots does not fit: set `micro_batch_tokens` "
                f"or lower `batch_tokens` (now {self.recipe.training.batch_tokens})"
            )
        peaks = peak_memory_of_gpus()
        peak = f": {max(peaks) / GIB:.2f} GiB of a GPU" if peaks else ""
        weights, trained = bytes_of(model.weights), bytes_of(model.trainable_weights)
        states = bytes_of(model.optimizer.variables)
        return True, (
            f"updates on the largest batch ({slots.max():,} token slots) and on the batch with the "
            f"longest sentence ({lengths.max()} tokens) fit{peak}; weights take "
            f"{weights / GIB:.2f} GiB, gradients {trained / GIB:.2f}, the optimizer "
            f"{states / GIB:.2f}"
        )

    def learning(self):
        _require(devices=self.trainer, vocabulary=self.batches)
        order = np.argsort(self.batches[0])
        _, losses = self._train([order[len(order) // 2]] * STEPS, rate=LEARNING_RATE)
        first, last = losses[0], losses[-1]
        passed = bool(np.isfinite(losses).all()) and last <= MAX_LOSS_RATIO * first
        advice = f": must fall to {MAX_LOSS_RATIO:.0%} or less; check labels, smoothing, precision"
        result = f"{STEPS} steps on one batch: loss {first:.3f} -> {last:.3f}"
        return passed, result if passed else result + advice

    def disk(self):
        _require(vocabulary=self.tokenizers, data=self.stream)
        training = self.recipe.training
        with keras.device("cpu"):
            model = self.single_device_trainer.model(self.tokenizers, self.stream)
            parameters = model.count_params()
            weights = model.trainable_weights if training.has_base else model.weights
            checkpoint_size = bytes_of([*weights, *model.optimizer.variables])
        updates = training.epochs * self.stream.report.batches_per_epoch
        after_epochs = min(training.keep_last + training.keep_best, training.epochs)
        within_epochs = min(training.keep_last, updates // training.checkpoint_updates)
        # One more: a new checkpoint is written before an old one is deleted.
        number = after_epochs + within_epochs + 1
        needed = checkpoint_size * number
        parents = (self.disk_folder, *self.disk_folder.parents)
        folder = next(path for path in parents if path.is_dir())
        free = shutil.disk_usage(folder).free
        advice = ": free disk space, choose another `--run`, or lower `keep_last`"
        result = (
            f"{free / GIB:,.1f} GiB free in {folder}, {needed / GIB:,.2f} needed for {number} "
            f"checkpoints of {parameters:,} parameters"
        )
        return free >= needed, result if free >= needed else result + advice

    def _symbols(self):
        """Yields warnings: if most targets are one word, and on unknown symbols in `validation`."""
        targets = [target for _, target in self.sample.items]
        if self.tokenizers[1].kind == WORDS:
            single_words = sum(len(text) > 1 and len(text.split()) == 1 for text in targets)
            if 2 * single_words > len(targets):
                cure = "separate symbols by spaces, or set `target: characters`"
                yield f"most targets are one word: {cure}"
        if self.recipe.data.validation is not None:
            pairs = self.recipe.data.pairs("validation", self.folders[0])
            for index, side in enumerate(("source", "target")):
                # `UnknownSymbols` reads the texts only for a vocabulary of symbols.
                unknown = UnknownSymbols(self.tokenizers[index], (pair[index] for pair in pairs))
                yield from filter(None, [unknown.note(f"the {side} of `validation`")])

    def _tokenizers(self):
        data_folder, scratch = self.folders
        tokenizers = find_tokenizers(self.recipe, data_folder, self.run, scratch)
        require_matching_vocabularies(config_of(self.recipe, tokenizers), *tokenizers)
        return tokenizers

    def _train(self, indices, rate=None):
        """Trains a new model on the given batches with the run's settings.

        Returns:
            the model, and the losses.
        """
        keras.utils.set_random_seed(self.recipe.training.seed)
        model = self.trainer.model(self.tokenizers, self.stream)
        if rate is not None:
            with self.trainer.strategy.scope():
                model.compile(optimizer=keras.optimizers.Adam(rate), loss=model.loss)
        losses = []
        with training_scope(self.trainer.strategy):
            for index in indices:
                self.stream.seek(0, int(index))
                one_update = {"steps_per_epoch": 1, "shuffle": False, "verbose": 0}
                losses += model.fit(self.stream.dataset(), **one_update).history["loss"]
        return model, losses


def bytes_of(variables):
    """Returns the bytes that variables take."""
    return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in variables)


def check_tokenizer(tokenizer, changes):
    """Returns whether a tokenizer has tokens for the text of one side, and measurements as text.

    Args:
        tokenizer: `TokenizerLike`.
        changes: `TextChanges` of the texts of that side.
    """
    unknown = changes.unknown_tokens + changes.byte_tokens
    return not changes.lacks_characters, (
        f"{tokenizer.vocabulary_size:,} {changes.name} tokens, {unknown:.2%} unknown or byte "
        f"tokens in the text, {changes.changed:,} of {changes.lines:,} lines are changed"
    )


def _require(**results):
    missing = [name for name, result in results.items() if not result]
    if missing:
        raise _NotRunError(", ".join(missing))
