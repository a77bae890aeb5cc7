"""What a run is told by while it trains: its speed, what it translates, when it goes wrong.

Called by Keras during `fit`. Those that add to the logs stand in front of those that record them.
"""

import time

import keras
import numpy as np

from keras_transformer import evaluation
from keras_transformer.run_folder import replaced


def better(name):
    """Returns `max` or `min`, whichever picks the better of two values of a logged name."""
    higher = any(word in name for word in ("bleu", "chrf", "accuracy"))
    return max if higher else min


class TrainingLogger(keras.callbacks.Callback):
    """Adds `learning_rate`, `tokens_per_second` and `padding_efficiency` to the logs.

    To those of each batch, for the progress bar, and to those of the epoch, where the gradient
    norm is the mean over its updates.

    Args:
        stream: `BatchStream` that the model trains from, which knows how many real target tokens
            a batch has.
    """

    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_second(self):
        """float. Real target tokens per second of all training so far, validation not counted."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def on_epoch_begin(self, epoch, logs=None):
        # Row n: what the first n batches hold.
        self._counts = np.pad(self._stream.token_counts(epoch).cumsum(axis=0), ((1, 0), (0, 0)))
        self._begin(batch=0)

    def on_train_batch_end(self, batch, logs=None):
        if not logs:  # done before the run was interrupted
            self._begin(batch + 1)
            return
        self._norms.append(logs["gradient_norm"])
        _, tokens, slots = self._counts[batch + 1]
        target_tokens = self._counts[batch + 1, 0] - self._counts[self._first, 0]
        self._values = {
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": target_tokens / (time.perf_counter() - self._begun),
            "padding_efficiency": tokens / slots,
        }
        logs.update(self._values)
        self._epoch = target_tokens, time.perf_counter() - self._begun

    def on_epoch_end(self, epoch, logs=None):
        self._tokens, self._seconds = np.add((self._tokens, self._seconds), self._epoch)
        norms = {"gradient_norm": float(np.mean(self._norms))} if self._norms else {}
        logs.update(self._values | norms)

    def _begin(self, batch):
        self._first, self._begun = batch, time.perf_counter()
        self._norms, self._values, self._epoch = [], {}, (0.0, 0.0)


class NonFiniteLossError(ArithmeticError):
    """A loss or gradient that is infinite or not a number; the message says where it came from."""


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Ends the training by an error at the first loss, gradient or weight that is not finite.

    Args:
        stream: `BatchStream` that the model trains from, for the lines of the batch.
        folder: `CheckpointFolder`, for the last good checkpoint.

    Raises:
        NonFiniteLossError: out of `fit`, before anything of it is saved.
    """

    def __init__(self, stream, folder):
        super().__init__()
        self._stream = stream
        self._folder = folder

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        # float16 overflows are no failure: the update is skipped, and the scale is lowered.
        scaled = hasattr(self.model.optimizer, "inner_optimizer")
        names = ["loss"] if scaled else ["loss", "gradient_norm"]
        self._batch = batch
        self._check(names, logs or {})

    def on_epoch_end(self, epoch, logs=None):
        self._check(["val_loss"], logs)
        # In front of whoever saves the best model.
        self.check_state({v.path: v.numpy() for v in self.model.trainable_variables})

    def check_state(self, arrays):
        """Checks what is about to be saved: an update can go wrong after a loss that was right.

        Args:
            arrays: dict of name to array, as of `model_state`.

        Raises:
            NonFiniteLossError: one of them is not finite.
        """
        wrong = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self._fail(f"{wrong[0]}{more} not finite")

    def _check(self, names, logs):
        wrong = [f"{name} {logs[name]}" for name in names if not np.isfinite(logs.get(name, 0.0))]
        if wrong:
            self._fail(" and ".join(wrong))

    def _fail(self, what):
        lines = np.sort(self._stream.batches(self._epoch)[self._batch]) + 1
        newest = self._folder.last(1)
        good = f"The last good checkpoint is {newest[0]}." if newest else "There is no checkpoint."
        update = int(self.model.optimizer.iterations.numpy())
        raise NonFiniteLossError(
            f"{what} at update {update} (epoch {self._epoch + 1}, batch {self._batch + 1}), from "
            f"the training pairs of lines {', '.join(map(str, lines))}. {good} Look at these "
            "lines; lower the learning rate, lengthen the warm-up, or set `clip_norm`."
        )


class TranslationEvaluator(keras.callbacks.Callback):
    """Translates a sample after an epoch, logs `val_bleu` and `val_chrf`, and shows some lines.

    Place it in front of the callbacks that record the logs or choose the best epoch by them.

    Args:
        translator: callable from a list of strings to a list of strings, such as a `Translator` of
            the model that is trained.
        pairs: list of (source, reference) strings.
        epochs: int. After every how many epochs. Defaults to `1`.
        tokenized: bool. BLEU on the tokens between white space, for text that is tokenised.
            Defaults to `False`.
        samples: int. How many translations are shown. Defaults to `3`.
        say: callable that takes a line of text. Defaults to `print`.

    Example:

    >>> pairs = [("a b c d", "a b c d"), ("e f g h", "E F G H")]
    >>> evaluator = keras_transformer.TranslationEvaluator(lambda lines: lines, pairs, samples=1)
    >>> logs = {}
    >>> evaluator.on_epoch_end(0, logs)
    <BLANKLINE>
    a b c d -> a b c d
    >>> round(logs["val_bleu"], 2)
    50.0
    """

    def __init__(self, translator, pairs, epochs=1, tokenized=False, samples=3, say=print):
        super().__init__()
        self._translator = translator
        self._sources, self._references = map(list, zip(*pairs, strict=True))
        self._epochs = epochs
        self._tokenized = tokenized
        self._samples = samples
        self._say = say

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._epochs:
            return
        translations = self._translator(self._sources)
        logs["val_bleu"] = evaluation.bleu(
            translations, self._references, tokenized=self._tokenized
        ).value
        logs["val_chrf"] = evaluation.chrf(translations, self._references).value
        self._say("")  # ends the line of Keras's progress bar
        for source, translation in zip(self._sources[: self._samples], translations, strict=False):
            self._say(f"{source} -> {translation}")


class BestModel(keras.callbacks.Callback):
    """Writes the model to a file after each epoch that is better than all before.

    The file appears whole or not at all.

    Args:
        path: path of the `.keras` file.
        monitor: str. Name of a logged value; see `better`.
        best: float. The best value so far, if the run goes on. Optional.
    """

    def __init__(self, path, monitor, best=None):
        super().__init__()
        self._path = path
        self._monitor = monitor
        self._best = best

    def on_epoch_end(self, epoch, logs=None):
        value = logs.get(self._monitor)
        if value is None or value == self._best:
            return
        if self._best is None or better(self._monitor)(value, self._best) == value:
            self._best = value
            with replaced(self._path) as partial:
                self.model.save(partial)


class AveragedWeights(keras.callbacks.Callback):
    """Lets what follows an epoch see the exponential moving average of the weights.

    Validation and the callbacks after this one see the average, until `give_back`. The exchange is
    exact to the bit. For an optimizer made with `use_ema=True`.
    """

    def __init__(self):
        super().__init__()
        self._weights = None

    def on_test_begin(self, logs=None):
        if self._weights is not None:
            return
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        averages = optimizer._model_variables_moving_average
        self._weights = [variable.numpy() for variable in self.model.trainable_variables]
        for variable, average in zip(self.model.trainable_variables, averages, strict=True):
            variable.assign(average.numpy())

    def on_epoch_end(self, epoch, logs=None):
        self.on_test_begin()  # where there is no validation

    def give_back(self):
        """Puts the weights back."""
        if self._weights is not None:
            for variable, value in zip(self.model.trainable_variables, self._weights, strict=True):
                variable.assign(value)
            self._weights = None
