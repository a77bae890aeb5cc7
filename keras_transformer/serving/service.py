"""`Service`: a translator for the protocols. Rows of concurrent requests run in common batches.

Text is read and joined in threads, off the event loop; other threads run the batches of rows.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool

from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.request import Request
from keras_transformer.decoding.text_settings import WHOLE_LINES
from keras_transformer.decoding.translator import Translator
from keras_transformer.serving.batching import Batcher, QueueFull, Row
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.work import Attend, Score, Search, Trees

_FAILED = "The model failed, and the server ends. Its log says why. Try again later."


class Service:
    """A translator that answers concurrent requests.

    Threads run the model: rows that arrive while all are busy make the next batch larger.

    Attributes:
        failure: the exception that ended loading or the batcher, or `None`.
        metrics: `Metrics`.

    Args:
        load: function without arguments that returns a `Translator`, whose engine has a `card`. It
            is called once, in one of the threads.
        limits: `Limits`.
        settings: mapping of settings of `text_translator` that differ from the model's. Optional.
        workers: int, threads that run the model. Defaults to `1`.
        max_batch: int, maximum number of rows in a batch. Defaults to `32`.
    """

    def __init__(
        self,
        load: Callable[[], Translator],
        limits: Limits,
        settings: Mapping[str, Any] | None = None,
        workers: int = 1,
        max_batch: int = 32,
    ) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self._load = load
        self._settings = dict(settings or {})
        self._text_translator: Translator | None = None
        self._translator: Translator | None = None
        self._is_draining = False
        self._threads = ThreadPoolExecutor(workers, "model")
        sizes = {"workers": workers, "max_batch": max_batch, "max_queue": limits.max_queue}
        self._batcher = Batcher(self._run_batch, self._threads, **sizes)
        self.metrics.queue_rows.set_function(lambda: self._batcher.queue_length)

    @property
    def translator(self) -> Translator:
        """The translator.

        Raises:
            RequestError: while it is being loaded, or if it failed.
        """
        if self.failure:
            raise RequestError(503, _FAILED)
        if self._translator is None:
            raise RequestError(503, "The model is being loaded. Try again later.")
        return self._translator

    @property
    def text_translator(self) -> Translator:
        """The translator for texts of several sentences, with the server's settings."""
        return self._text_translator or self.translator

    @property
    def card(self) -> dict[str, Any]:
        """The model card."""
        return self.translator.engine.card

    @property
    def name(self) -> str:
        """The name of the model, as its card says."""
        return self.card["name"]

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts requests: the model is loaded and no shutdown has begun."""
        return self._translator is not None and not self._is_draining

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

    async def translate(
        self,
        lines: list[str] | Callable[[], list[str]],
        client: Hashable = None,
        translator: Translator | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each line, best first.

        Args:
            lines: list of strings; or a function that returns them, called in a thread.
            client: the client that asks; clients take turns. Optional.
            translator: defaults to `translator`.
            **options: as in `Translator.request`: `n_best`, `target_prefix`, `target_language`, and
                settings.

        Raises:
            RequestError: if the request is wrong or too large, the queue is full, or the answer
                takes longer than `timeout` of the limits.
        """
        translator, limits = translator or self.translator, self.limits

        def read_request() -> Request:
            texts = lines if isinstance(lines, list) else lines()
            limits.check_texts(texts)
            request = translator.request(texts, **options)
            limits.check_request(request)
            return request

        with _request_errors():
            with self._batcher.announced():
                first_request = await run_in_threadpool(read_request)
            request: Request | None = first_request
            answers: list[list[Hypothesis]] = [[]] * len(first_request.lines)
            async with self._time_limit():
                while request is not None:
                    search = Search(
                        request.settings,
                        request.n_best,
                        request.text_settings.distinct_texts,
                        has_prefixes=request.prefixes is not None,
                    )
                    hypotheses = await self._submit(search, request.columns, client)
                    request.fill(answers, hypotheses)
                    # Lines that have lost protected text are translated again, cut around it.
                    has_lost = any(best.protected for best, *_ in answers)
                    request = await run_in_threadpool(request.again, answers) if has_lost else None
        return answers

    async def score(
        self,
        sources: list[str],
        targets: list[str],
        client: Hashable = None,
        **languages: list[str],
    ) -> list[Hypothesis]:
        """Returns the scores of given translations.

        Args:
            sources, targets: lists of strings, of the same length.
            client: as in `translate`; so are the errors.
            **languages: as in `Translator.score`.
        """
        columns = await self._pairs(sources, targets, **languages)
        async with self._time_limit():
            return await self._submit(Score(), columns, client)

    async def attend(
        self, sources: list[str], targets: list[str], max_tokens: int, client: Hashable = None
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Returns the ids of each source, of its target, and the attention between them.

        Args:
            sources, targets, client: as in `score`.
            max_tokens: int. Maximum number of tokens of each; later ones are left out.

        Returns:
            list of int arrays `(S,)`, `(T,)` and float32 arrays `(T, S)`: the mean of the decoder's
            attention to the source, over all blocks and heads.
        """
        pairs = await self._pairs(sources, targets)
        columns = [[row[:max_tokens] for row in column] for column in pairs]
        async with self._time_limit():
            attention = await self._submit(Attend(), columns, client)
        return list(zip(*columns, attention, strict=True))

    async def search_tree(self, lines: list[str], client: Hashable = None) -> list[Any]:
        """Returns what the search does with each line: `SearchTree` of `Engine.search_tree`."""
        self.limits.check_texts(lines)
        with _request_errors():
            request = await run_in_threadpool(self.translator.request, lines, **WHOLE_LINES)
        async with self._time_limit():
            return await self._submit(Trees(), request.columns, client)

    async def _pairs(self, sources, targets, **languages):
        for texts in (sources, targets):
            self.limits.check_texts(texts)
        with _request_errors():
            return await run_in_threadpool(self.translator.pairs, sources, targets, **languages)

    @contextlib.asynccontextmanager
    async def _time_limit(self):
        try:
            async with asyncio.timeout(self.limits.timeout):
                yield
        except TimeoutError as error:
            problem = f"There was no answer within {self.limits.timeout} s."
            advice = "Send fewer or shorter lines in a request, or try again later."
            raise RequestError(503, f"{problem} {advice}") from error

    async def _submit(self, work, columns, client):
        """Returns the answer of some `Work` for each row of `columns`.

        A few lines may have more pieces than the queue has room for, so at most `max_lines` rows
        are submitted at once.
        """
        values = list(zip(*columns, strict=True))
        rows = [Row(work, sum(map(len, value)), value) for value in values]
        step = self.limits.max_lines
        answers: list[Any] = []
        try:
            for start in range(0, len(rows), step):
                answers += await self._batcher.submit(rows[start : start + step], client)
            return answers
        except QueueFull as error:
            problem = f"{self._batcher.queue_length} lines wait for the model."
            raise RequestError(503, f"{problem} Try again when others are answered.") from error

    async def _load_and_work(self):
        loop = asyncio.get_running_loop()
        try:
            translators = await loop.run_in_executor(self._threads, self._load_translators)
            self._translator, self._text_translator = translators
            await self._batcher.work()
        except Exception as error:  # the server ends when `failure` is set
            self.failure = error
            self._batcher.fail(RequestError(503, _FAILED))

    def _load_translators(self):
        """Returns `translator` and `text_translator`."""
        translator = self._load()
        if not self._settings:
            return translator, translator
        settings = translator.all_settings | self._settings
        return translator, Translator(translator.engine, **settings)

    def _run_batch(self, work, values):
        """Runs rows of equal `Work`; `values` are the token ids of each row."""
        self.metrics.rows.labels(work.name).inc(len(values))
        self.metrics.batch_rows.observe(len(values))
        with _request_errors():
            return work.run(self.translator, values)


@contextlib.contextmanager
def _request_errors():
    """Turns a translator's errors into `RequestError`: 400 if it refuses the input, else 503."""
    try:
        yield
    except RequestError:
        raise
    except (ValueError, TypeError) as error:
        raise RequestError(400, str(error)) from error
    except (RuntimeError, MemoryError) as error:
        raise RequestError(503, f"The model failed: {error}") from error
