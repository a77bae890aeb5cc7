"""Runs the model in threads, in batches of rows of all requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_transformer.serving.batching import Batcher, QueueFull, Row
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.languages import check_tags
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.signature import NUMPY_TYPES
from keras_transformer.serving.tokens import check_tokens

# Signatures that give a row the same result in any batch. The others pad rows to the longest one,
# so each of their requests runs alone.
TRANSLATING = ("serving_default", "translate_n_best")
BATCHED = (*TRANSLATING, "score")
_FAILED = "The model failed, and the server ends. Its log says why. Try again later."


class Engine:
    """A model that answers concurrent requests.

    Threads run the model: lines that arrive while all are busy make the next batch larger.

    Attributes:
        failure: the exception that ended loading or the batcher, or `None`.
        metrics: `Metrics`.

    Args:
        load: function without arguments that returns a `ServedModel`. It is called once, in one of
            the threads.
        limits: `Limits`.
        workers: int, threads that run the model. Defaults to `1`.
        max_batch: int, maximum number of lines in a batch. Defaults to `32`.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        limits: Limits,
        workers: int = 1,
        max_batch: int = 32,
    ) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self._load = load
        self._model: Any = None
        self._is_draining = False
        self._threads = ThreadPoolExecutor(workers, "model")
        sizes = {"workers": workers, "max_batch": max_batch, "max_queue": limits.max_queue}
        self._batcher = Batcher(self._run_batch, self._threads, **sizes)
        self.metrics.queue_rows.set_function(lambda: self._batcher.queue_length)

    @property
    def model(self) -> Any:
        """The `ServedModel`.

        Raises:
            RequestError: while it is being loaded, or if it failed.
        """
        if self.failure:
            raise RequestError(503, _FAILED)
        if self._model is None:
            raise RequestError(503, "The model is being loaded. Try again later.")
        return self._model

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts requests: the model is loaded and no shutdown has begun."""
        return self._model is not None and not self._is_draining

    def drain(self) -> None:
        """Marks the server as shutting down; it still answers."""
        self._is_draining = True

    def stop(self) -> None:
        """Ends all open requests with 503, because a running batch cannot be cancelled."""
        self._batcher.fail(RequestError(503, "The server is being stopped. Try again later."))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loads the model and runs batches until the context ends."""
        task = asyncio.create_task(self._load_and_work())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._threads.shutdown(wait=False)

    async def run(
        self, name: str, values: dict[str, Any], client: Hashable = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature.

        Args:
            name: str, of a signature.
            values: dict from the names of inputs to JSON lists, one element for each line.
            client: who asks; clients take turns. Optional.

        Returns:
            dict from the names of outputs to arrays, the lines on the first axis.

        Raises:
            RequestError: if the request is wrong or too large, the queue is full, or the answer
                takes longer than `timeout` of the limits.
        """
        signature = self.model.signature(name)
        self.limits.check(signature, values)
        columns = signature.columns(values)
        check_tags(self.model.card, name, columns)
        if name in TRANSLATING:
            await check_tokens(self.model, name, columns)
        rows = list(_rows(signature, columns))
        try:
            async with asyncio.timeout(self.limits.timeout):
                return signature.joined(await self._batcher.submit(rows, client))
        except QueueFull as error:
            waiting = f"{self._batcher.queue_length} lines wait for the model."
            raise RequestError(503, f"{waiting} Try again when others are answered.") from error
        except TimeoutError as error:
            late = f"There was no answer within {self.limits.timeout} s."
            cure = "Send fewer or shorter lines in a request, or try again later."
            raise RequestError(503, f"{late} {cure}") from error

    async def _load_and_work(self):
        loop = asyncio.get_running_loop()
        try:
            self._model = await loop.run_in_executor(self._threads, self._load)
            await self._batcher.work()
        except Exception as error:  # the server ends when `failure` is set
            self.failure = error
            self._batcher.fail(RequestError(503, _FAILED))

    def _run_batch(self, group, values):
        """Calls the model; `values` are the inputs of one or more lines each."""
        name, options, _ = group
        signature = self._model.signatures[name]
        inputs = {key: np.concatenate([value[key] for value in values]) for key in values[0]}
        for key, value in options:
            inputs[key] = np.full(1, value, NUMPY_TYPES[signature.inputs[key].dtype])
        sizes = [signature.lines(value) for value in values]
        self.metrics.rows.labels(name).inc(sum(sizes))
        self.metrics.batch_rows.observe(sum(sizes))
        outputs = self._model.call(name, inputs)
        ends = np.cumsum(sizes)[:-1]
        pieces = {key: np.split(array, ends) for key, array in outputs.items()}
        return [dict(zip(pieces, each, strict=True)) for each in zip(*pieces.values(), strict=True)]


def _rows(signature, columns):
    """Splits a request into rows, which may run in different batches.

    Rows with the same signature and options form a group and may share a batch.
    """
    lines = signature.lines(columns)
    if lines and signature.name not in BATCHED:
        yield Row((signature.name, (), object()), _text_length(columns), columns)
        return
    options = columns.keys() & signature.defaults
    for line in range(lines):
        chosen = {name: columns[name][line % len(columns[name])] for name in options}
        inputs = {name: columns[name][line : line + 1] for name in columns.keys() - options}
        length = len(chosen.get("target_prefix", b"")) + _text_length(inputs)
        yield Row((signature.name, tuple(sorted(chosen.items())), None), length, inputs)


def _text_length(columns):
    texts = (column for column in columns.values() if column.dtype == object)
    return sum(len(text) for column in texts for text in column.flat)
