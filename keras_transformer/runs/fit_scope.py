"""What lasts as long as one `fit`: the handling of stop signals, and the lock of the run folder."""

import contextlib
import inspect
import pathlib
import signal
import sys
import threading
from typing import ClassVar

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(Exception):
    """Training was stopped by a signal, after a checkpoint was written.

    Attributes:
        signal: `signal.Signals`, the received signal.
    """

    def __init__(self, number: int, path: pathlib.Path | str) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"Stopped by {self.signal.name}. The checkpoint is {path}.")

    def _render_traceback_(self) -> list[str]:
        """Called by IPython: a notebook shows these lines instead of a traceback."""
        return [f"{self} Run this cell again to go on."]


class FitScope:
    """Remembers a stop signal, instead of ending the process, while `fit` runs.

    Keras calls no callback when `fit` ends with an error. Such a scope is closed when the next
    signal arrives or the next scope begins.

    Attributes:
        signal: number of the first stop signal, or `None`. A second one acts at once.
        stack: `contextlib.ExitStack` that is closed with the scope.
    """

    _open: ClassVar[list["FitScope"]] = []

    def __init__(self):
        self.signal = None
        self.stack = contextlib.ExitStack()
        self._fit = None
        self._old_handlers = {}

    def begin(self):
        """Begins in `on_train_begin`."""
        for scope in list(FitScope._open):
            if not scope._is_running():
                scope.close()
        self.signal = None
        self._fit = _frame_of_fit()
        if any(self._fit is scope._fit is not None for scope in FitScope._open):
            raise ValueError("`fit` takes one `RunKeeper`. Received: several")
        FitScope._open.append(self)
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)

    def close(self):
        """Frees the lock and restores the signal handlers from before. May be called again."""
        self._fit = None
        if self in FitScope._open:
            FitScope._open.remove(self)
        while self._old_handlers:
            number, handler = self._old_handlers.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
        self.stack.close()

    def _on_signal(self, number, frame):
        if self.signal is not None or not self._is_running():
            self.close()
            signal.raise_signal(number)
        self.signal = number

    def _is_running(self):
        if self._fit is None:  # not called from `fit`
            return True
        return any(self._fit in _callers(frame) for frame in sys._current_frames().values())


def _frame_of_fit():
    return next((f for f in _callers(inspect.currentframe()) if f.f_code.co_name == "fit"), None)


def _callers(frame):
    """Yields a frame and the frames that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back
