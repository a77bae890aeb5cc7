"""Dynamic batching: rows of concurrent requests run together. It knows no model and no HTTP."""

import asyncio
import contextlib
import dataclasses
import heapq
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from typing import Any

# Rows share a batch if their lengths differ at most by this factor: a batch takes as long as its
# longest row.
MAX_LENGTH_RATIO = 4
# Rows up to this length share a batch whatever their ratio.
SHORT = 64


class QueueFull(Exception):
    """The queue has no room for all rows of a caller."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What a batch consists of.

    Args:
        group: hashable; only rows of the same group share a batch.
        length: int; rows of about the same length share a batch.
        value: what `run` gets.
    """

    group: Hashable
    length: int
    value: Any


@dataclasses.dataclass(eq=False)
class _Waiting:
    row: Row
    answer: asyncio.Future
    caller: object


class Batcher:
    """Collects rows of concurrent callers, and runs them in batches, one batch at a time.

    The oldest row is always in the next batch, so no row waits forever. Next comes the oldest row
    of each other caller in its group, so that a single row does not wait for a caller with many.
    Then come the rows that are nearest in length. While a batch runs, rows queue up for the next
    one: batches grow with the load. Before each batch that is not full, the batcher waits
    `max_wait` for more rows, even if some have waited already, because callers that just got their
    answers often send the next rows at once.

    If a batch of several callers fails, the rows of each caller run again by themselves, so only
    the callers at fault fail. A caller that is cancelled takes its rows out of the queue.

    Args:
        run: function of a group and the list of its rows' values; returns a list of answers. It is
            called in the executor.
        executor: `concurrent.futures.Executor`.
        max_batch: int, maximum number of rows in a batch.
        max_wait: float, seconds.
        max_queue: int, maximum number of waiting rows.
    """

    def __init__(
        self,
        run: Callable[[Any, list], Sequence],
        executor: Executor,
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
    ) -> None:
        self._run = run
        self._executor = executor
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._max_queue = max_queue
        self._queue: list[_Waiting] = []
        self._running: list[_Waiting] = []
        self._arrival = asyncio.Event()

    @property
    def queue_length(self) -> int:
        """The number of waiting rows."""
        return len(self._queue)

    async def submit(self, rows: Sequence[Row]) -> list:
        """Returns the answer for each row.

        Raises:
            QueueFull: if the queue has not enough room for all rows; none of them is run.
            Exception: what `run` raised for one of the rows, or what `fail` was given.
        """
        if len(self._queue) + len(rows) > self._max_queue:
            raise QueueFull
        loop, caller = asyncio.get_running_loop(), object()
        waiting = [_Waiting(row, loop.create_future(), caller) for row in rows]
        self._queue += waiting
        self._arrival.set()
        try:
            return await asyncio.gather(*(one.answer for one in waiting))
        finally:
            # If the caller is gone, or one of its rows failed, nobody reads the other answers.
            for one in waiting:
                one.answer.cancel()
            self._queue = _unanswered(self._queue)

    def fail(self, error: Exception) -> None:
        """Raises an error in all callers, also in those whose rows are running."""
        for one in _unanswered([*self._queue, *self._running]):
            one.answer.set_exception(error)

    async def work(self) -> None:
        """Runs batches until it is cancelled."""
        while True:
            self._running = await self._next_batch()
            await self._answer(self._running)

    async def _next_batch(self):
        while not self._queue:
            await self._next_arrival(None)
        deadline = asyncio.get_running_loop().time() + self._max_wait
        with contextlib.suppress(TimeoutError):
            while len(self._batch_of_oldest()) < self._max_batch:
                await self._next_arrival(deadline)
        batch = self._batch_of_oldest()  # again, because callers may have left
        taken = set(batch)
        self._queue = [one for one in self._queue if one not in taken]
        return batch

    async def _next_arrival(self, deadline):
        self._arrival.clear()
        async with asyncio.timeout_at(deadline):
            await self._arrival.wait()

    def _batch_of_oldest(self):
        if not self._queue:
            return []
        oldest = self._queue[0].row
        mates = [
            one
            for one in self._queue
            if one.row.group == oldest.group and _are_similar(one.row.length, oldest.length)
        ]
        firsts = {one.caller: one for one in reversed(mates)}
        return heapq.nsmallest(
            self._max_batch,
            mates,
            key=lambda one: (firsts[one.caller] is not one, abs(one.row.length - oldest.length)),
        )

    async def _answer(self, batch):
        if not batch:
            return
        values = [one.row.value for one in batch]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(
                self._executor, self._run, batch[0].row.group, values
            )
        except Exception as error:
            callers = dict.fromkeys(one.caller for one in batch)
            for caller in callers:
                rows = [one for one in batch if one.caller is caller]
                if len(callers) > 1:
                    await self._answer(_unanswered(rows))
                    continue
                for one in _unanswered(rows):
                    one.answer.set_exception(error)
            return
        for one, answer in zip(batch, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)


def _are_similar(one, other):
    short, long = sorted((one, other))
    return long <= max(SHORT, MAX_LENGTH_RATIO * short)


def _unanswered(waiting):
    """Returns the rows whose callers still wait: the future of a cancelled one is done."""
    return [one for one in waiting if not one.answer.done()]
