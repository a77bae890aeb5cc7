"""Handles stop signals, and holds the lock of the run folder, while one `fit` runs."""

import contextlib
import pathlib
import signal
import threading
from typing import Any, ClassVar

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

    Attributes:
        signal: number of the first stop signal, or `None`. A second one acts at once.
        stack: `contextlib.ExitStack` that is closed with the scope.
    """

    _open: ClassVar[list["FitScope"]] = []

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stack = contextlib.ExitStack()
        self._params: object = None
        self._is_closed_by_fit = False
        self._thread = threading.current_thread()
        self._old_handlers: dict[int, Any] = {}

    @property
    def is_open(self) -> bool:
        """Whether the scope has begun and is not closed."""
        return self in FitScope._open

    def begin(self, params: object, is_closed_by_fit: bool) -> None:
        """Opens the scope; to be called in `on_train_begin`.

        Args:
            params: `params` of the callback. Keras gives all callbacks of a `fit` the same object.
            is_closed_by_fit: whether `fit` closes the scope also after an error. The `fit` of a
                plain Keras model does not; the next scope of the thread then closes this one.

        Raises:
            ValueError: if a scope of the same `fit` is open.
        """
        for scope in list(FitScope._open):
            if scope._params is params:
                raise ValueError("`fit` takes one `RunKeeper`. Received: several")
            if scope._is_left_open():
                scope.close()
        self.signal = None
        self._params, self._is_closed_by_fit = params, is_closed_by_fit
        self._thread = threading.current_thread()
        FitScope._open.append(self)
        if self._thread is threading.main_thread():
            for number in STOP_SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)

    def close(self) -> None:
        """Restores the old signal handlers and closes `stack`. May be called again."""
        if self.is_open:
            FitScope._open.remove(self)
        while self._old_handlers:
            number, handler = self._old_handlers.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
        self.stack.close()

    def _is_left_open(self):
        """Whether the `fit` of this scope failed and left it open. Asked when another begins."""
        # A thread that begins another `fit`, or has ended, no longer runs the old one.
        is_over = self._thread is threading.current_thread() or not self._thread.is_alive()
        return is_over and not self._is_closed_by_fit

    def _on_signal(self, number, frame):
        if self.signal is not None:
            self.close()
            signal.raise_signal(number)
        self.signal = number
