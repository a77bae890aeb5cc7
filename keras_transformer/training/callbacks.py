"""What a run records beside its losses.

Called by Keras during `fit`, before the loggers see the epoch.
"""

import time

import keras


class SpeedLogger(keras.callbacks.Callback):
    """Adds `learning_rate` and `tokens_per_second` to the logs of each epoch.

    Stands before `CSVLogger`, `TensorBoard` and the like, which record what the logs hold.

    Args:
        tokens_per_epoch: int. Real target tokens of an epoch, padding not counted.
    """

    def __init__(self, tokens_per_epoch):
        super().__init__()
        self.tokens_per_epoch = tokens_per_epoch
        self._begun = None
        self._ended = None
        self._epochs = 0
        self._seconds = 0.0

    @property
    def tokens_per_second(self):
        """float. Over all epochs so far, validation not counted."""
        return self._epochs * self.tokens_per_epoch / self._seconds if self._epochs else 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.perf_counter()
        self._ended = None

    def on_test_begin(self, logs=None):
        # Validation is not training.
        self._ended = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = (self._ended or time.perf_counter()) - self._begun
        self._epochs += 1
        self._seconds += seconds
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)
        logs["tokens_per_second"] = self.tokens_per_epoch / seconds
