"""What a run is told by while it trains: its speed, what it translates, when it goes wrong.

Called by Keras during `fit`. Those that add to the logs stand in front of those that record them.
"""

import keras

from keras_transformer import evaluation
from keras_transformer.atomic_file import atomic_path


def better(name):
    """Returns `max` or `min`, whichever picks the better of two values of a logged name."""
    higher = any(word in name for word in ("bleu", "chrf", "accuracy"))
    return max if higher else min


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
        print_fn: callable that takes a line of text. Defaults to `print`.

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

    def __init__(self, translator, pairs, epochs=1, tokenized=False, samples=3, print_fn=print):
        super().__init__()
        self._translator = translator
        self._sources, self._references = map(list, zip(*pairs, strict=True))
        self._epochs = epochs
        self._tokenized = tokenized
        self._samples = samples
        self._print = print_fn

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._epochs:
            return
        translations = self._translator(self._sources)
        logs["val_bleu"] = evaluation.bleu(
            translations, self._references, tokenized=self._tokenized
        ).value
        logs["val_chrf"] = evaluation.chrf(translations, self._references).value
        self._print("")  # ends the line of Keras's progress bar
        for source, translation in zip(self._sources[: self._samples], translations, strict=False):
            self._print(f"{source} -> {translation}")


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
            with atomic_path(self._path) as partial:
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
