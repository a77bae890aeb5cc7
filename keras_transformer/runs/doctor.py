"""The checks before a long run: minutes now instead of a night that comes to nothing.

Each looks at one thing that ruins runs, the way the run itself would use it, and leaves no trace in
the run's folder.
"""

import gc
import resource
import shutil
import sys
import tempfile
import time
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.runs.roll_call import roll_call
from keras_transformer.runs.tokenizers import load_tokenizers
from keras_transformer.runs.trainer import Trainer

MOST_DROPPED = 0.25  # of the pairs
MOST_BAD = 0.01  # of the tokens unknown, or of the lines not given back
SAMPLE = 1000  # pairs
LEARNING_RATE = 0.001  # the run's own schedule hardly moves in ten steps
STEPS = 10
FALL = 0.9  # the last loss of the ten is at most so much of the first
NO_TOKENS = {b"<unk>", *(b"<0x%02X>" % byte for byte in range(256))}
GIB = 2**30
MARKS = {True: "✓", False: "✗", None: "–"}


@dataclass(frozen=True)
class Finding:
    """What one check found; `print` it.

    Args:
        name: str. What was checked.
        passed: bool, or `None` where the check could not run because another one failed.
        detail: str, one line: what was measured, or what is wrong and what to do.
        seconds: float.

    Example:

    >>> from keras_transformer.runs.doctor import Finding
    >>> print(Finding("devices", True, "1 replica: CPU:0", 0.3))
    ✓ devices     1 replica: CPU:0 (0.3 s)
    """

    name: str
    passed: bool | None
    detail: str
    seconds: float

    def __str__(self):
        return f"{MARKS[self.passed]} {self.name:<10}  {self.detail} ({self.seconds:.1f} s)"


class _NotRunError(Exception):
    """A check needs what another one did not give."""


def run_checks(recipe, data_folder, run_folder=None, timeout=60.0, print_fn=print):
    """Checks whether a run by a recipe would go well: devices, data, vocabulary, memory and so on.

    A check that fails does not keep the later ones from running, unless they need its result.
    Several workers are examined together: call it on all of them at once.

    Args:
        recipe: `Recipe`.
        data_folder: path that the recipe's files are relative to.
        run_folder: path of the run's folder. Its vocabulary is used if it has one, and the disk is
            the one it is on; nothing is written there. Defaults to the working directory.
        timeout: float. Seconds in which the devices have to add up a vector.
        print_fn: callable that takes a line of text: each finding, as soon as it is made.

    Returns:
        list of `Finding`.

    Raises:
        ValueError: if the folder holds a run of another recipe.
    """
    findings = []
    with tempfile.TemporaryDirectory() as scratch:
        examination = _Examination(recipe, data_folder, run_folder, scratch, timeout)
        for name in ("devices", "data", "vocabulary", "memory", "learning", "disk"):
            started = time.perf_counter()
            try:
                passed, detail = getattr(examination, name)()
            except _NotRunError as error:
                passed, detail = None, f"not run: needs {error}"
            except Exception as error:  # whatever goes wrong here would go wrong in the run
                passed, detail = False, f"{type(error).__name__}: {error}"
            seconds = time.perf_counter() - started
            findings.append(Finding(name, passed, " ".join(detail.split()), seconds))
            print_fn(str(findings[-1]))
            gc.collect()  # a model is full of cycles, and the next check builds another
    return findings


class _Examination:
    """The checks, and what the later ones need of the earlier."""

    def __init__(self, recipe, data_folder, run_folder, scratch, timeout):
        self.recipe, self.timeout = recipe, timeout
        self.folders = data_folder, scratch
        self.place = Path(run_folder or ".").absolute()
        # What needs no devices is done without them: it cannot wait for a worker that is not there.
        alone = replace(recipe.training, distribution="single", devices=None)
        alone = replace(recipe, training=alone)
        self.alone = Trainer(alone, *self.folders, print_fn=lambda line: None)
        self.of_run = None
        if run_folder is not None:
            run = Trainer(alone, data_folder, run_folder).run  # refuses a run of another recipe
            files = run.tokenizer_files(recipe.vocabulary.joint)
            if all(file.is_file() for file in (run.recipe_file, *files)):
                self.of_run = files
        self.texts = 0
        self.trainer = self.tokenizers = self.stream = self.batches = None

    def devices(self):
        """In front of all others: several workers have to find each other first."""
        training = self.recipe.training
        passed, detail = roll_call(training.distribution, training.devices, self.timeout)
        if passed:
            self.trainer = Trainer(self.recipe, *self.folders, print_fn=lambda line: None)
        return passed, detail

    def data(self):
        pairs = self.recipe.data.pairs("train", self.folders[0])
        self.texts = sum(bool(source.strip() and target.strip()) for source, target in pairs)
        if not self.texts:
            return False, "`train` holds no pair with text on both sides"
        try:
            self.tokenizers = self._tokenizers()
        except Exception:
            raise _NotRunError("vocabulary") from None
        self.stream = self.alone.stream(self.tokenizers)
        report = self.stream.report
        passed = sum(report.dropped.values()) <= MOST_DROPPED * report.pairs_read
        advice = "" if passed else f"more than {MOST_DROPPED:.0%} of the pairs are dropped: "
        return passed, advice + "; ".join(str(report).splitlines())

    def vocabulary(self):
        _need(data=self.texts)
        tokenizers = self.tokenizers or self._tokenizers()
        _need(data=self.stream)
        source, target = (tokenizer.vocabulary_size for tokenizer in tokenizers)
        config = self.recipe.model_config(target, source)
        sizes = {"source": config.source_vocabulary_size, "target": config.vocabulary_size}
        batches = _survey(self.stream)
        for name, size in sizes.items():
            low, high = batches[f"{name}_low"].min(), batches[f"{name}_high"].max()
            if low < 0 or high >= size:
                return False, (
                    f"{name} ids go from {low} to {high}, the model's table from 0 to {size - 1}: "
                    "learn the vocabulary anew, or take another file"
                )
        self.batches = batches
        pairs = enumerate(self.recipe.data.pairs("train", self.folders[0]))
        every = -(-self.texts // SAMPLE)
        sample = zip(*(pair for number, pair in pairs if number % every == 0), strict=True)
        sides = zip(sizes, tokenizers, sample, strict=True)
        verdicts, details = zip(*(_suits(*side) for side in sides), strict=True)
        advice = "" if all(verdicts) else ": learn the vocabulary from this text"
        return all(verdicts), "; ".join(details) + advice

    def memory(self):
        _need(devices=self.trainer, vocabulary=self.batches)
        slots, lengths = self.batches["slots"], self.batches["longest"]
        gpus = [f"GPU:{n}" for n in range(len(tf.config.list_physical_devices("GPU")))]
        for gpu in gpus:
            tf.config.experimental.reset_memory_stats(gpu)
        before = _peak_of_process()
        try:
            self._train([np.argmax(slots), np.argmax(lengths)])
        except (tf.errors.ResourceExhaustedError, MemoryError):
            return False, (
                f"a batch of {slots.max():,} token slots does not fit: set `micro_batch_tokens` "
                f"or lower `batch_tokens` (now {self.recipe.training.batch_tokens})"
            )
        taken = [tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus]
        taken = f"{max(taken or [_peak_of_process() - before]) / GIB:.2f} GiB"
        return True, (
            f"updates on the largest batch ({slots.max():,} token slots) and on that of the "
            f"longest sentence ({lengths.max()} tokens) took {taken}{' of a GPU' * bool(gpus)}"
        )

    def learning(self):
        _need(devices=self.trainer, vocabulary=self.batches)
        order = np.argsort(self.batches["slots"])
        losses = self._train([order[len(order) // 2]] * STEPS, rate=LEARNING_RATE)
        passed = bool(np.isfinite(losses).all()) and losses[-1] <= FALL * losses[0]
        advice = "" if passed else f", not to {FALL:.0%}: look at labels, smoothing and precision"
        first, *_, last = losses
        return passed, f"{STEPS} steps on one batch: loss {first:.3f} -> {last:.3f}{advice}"

    def disk(self):
        _need(vocabulary=self.tokenizers, data=self.stream)
        training = self.recipe.training
        with tf.device("CPU:0"):
            parameters = self.alone.model(self.tokenizers).count_params()
        copies = 3 + (training.ema_momentum is not None)  # weights, Adam's two means, the average
        updates = training.epochs * self.stream.report.batches_per_epoch
        kept = training.keep_last + training.keep_best
        number = min(kept, training.epochs) + 1
        number += min(training.keep_last, updates // training.checkpoint_updates)
        needed = 4 * copies * parameters * number
        folder = next(path for path in (self.place, *self.place.parents) if path.is_dir())
        free = shutil.disk_usage(folder).free
        advice = "" if free >= needed else ": free some, choose another `--run`, lower `keep_last`"
        return free >= needed, (
            f"{free / GIB:,.1f} GiB free in {folder}, {needed / GIB:,.2f} needed for {number} "
            f"checkpoints of {parameters:,} parameters{advice}"
        )

    def _tokenizers(self):
        return load_tokenizers(self.of_run) if self.of_run else self.alone.tokenizers()

    def _train(self, indices, rate=None):
        """Trains a new model on batches the way the run does, and returns the loss of each."""
        keras.utils.set_random_seed(self.recipe.training.seed)
        model = self.trainer.model(self.tokenizers)
        if rate is not None:
            with self.trainer.strategy.scope():
                model.compile(optimizer=keras.optimizers.Adam(rate), loss=model.loss)
        losses = []
        for index in indices:
            self.stream.seek(0, int(index))
            batch = self.stream.dataset().take(1)
            losses += model.fit(batch, verbose=0, shuffle=False).history["loss"]
        return losses


def _survey(stream):
    """What the model gets in an epoch: a row per batch, by name.

    Every id is looked at, since a GPU reads zeros beyond the end of a table and says nothing.
    """
    rows = []
    stream.seek(0)
    for inputs, labels, _ in stream.dataset().as_numpy_iterator():
        source, target = inputs["encoder_token_ids"], inputs["decoder_token_ids"]
        both = np.stack([target, labels])
        ids = source.min(), source.max(), both.min(), both.max()
        rows.append((*ids, source.size + target.size, max(source.shape[1], target.shape[1])))
    names = ("source_low", "source_high", "target_low", "target_high", "slots", "longest")
    return dict(zip(names, np.array(rows).T, strict=True))


def _suits(name, tokenizer, lines):
    """Whether a tokenizer suits some lines, and the shares of tokens and lines that tell it."""
    token_ids = tokenizer.tokenize(lines)
    tokens = tokenizer.tokens(token_ids.flat_values).numpy().tolist()
    unknown = sum(token in NO_TOKENS for token in tokens) / max(1, len(tokens))
    returned = 0
    for line, text in zip(lines, tokenizer.detokenize(token_ids).numpy(), strict=True):
        line = line.replace("\u2581", " ")  # the rule of `Tokenizer`, restated
        if tokenizer.normalization == "nfkc":
            line = " ".join(unicodedata.normalize("NFKC", line).split())
        returned += text.decode() == line
    returned /= len(lines)
    return unknown <= MOST_BAD and returned >= 1 - MOST_BAD, (
        f"{tokenizer.vocabulary_size:,} {name} tokens, {unknown:.2%} of the text's unknown or "
        f"spelt in bytes, {returned:.1%} of the lines come back"
    )


def _peak_of_process():
    """Most bytes that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _need(**results):
    missing = [name for name, result in results.items() if not result]
    if missing:
        raise _NotRunError(", ".join(missing))
