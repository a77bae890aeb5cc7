"""Dynamic batching: rows of concurrent requests run together. It knows no model and no HTTP."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

# A batch takes as long as its longest row. So a row joins a batch only if its length is between a
# quarter and twice that of the batch's first row.
SHORTEST, LONGEST = 1 / 4, 2
# Rows up to this many tokens share a batch anyway.
SHORT = 32
# Maximum number of rows times the longest length: a larger batch saves no time, and other rows wait
# for it.
MAX_BATCH_LENGTH = 1_024


class QueueFull(Exception):
    """The queue has no room for the rows of a caller."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One input of `run`.

    Args:
        group: hashable; only rows of the same group share a batch.
        length: int, number of tokens; rows of about the same length share a batch.
        value: the input itself.
    """

    group: Hashable
    length: int
    value: Any


@dataclasses.dataclass(eq=False)
class _Waiting:
    """A row that waits for its answer."""

    row: Row
    answer: asyncio.Future
    caller: object
    client: Hashable
    was_passed_over: bool = False  # its client's oldest row, left out in the client's turn


class Batcher:
    """Collects rows of concurrent callers, and runs them in batches, some of them at the same time.

    Each caller belongs to a client, and each client has a queue. Clients take turns, so that one
    with many rows does not hold up the others: after its turn, a client stands behind all others.
    In a client's turn, the batch begins with the oldest row of the caller whose waiting rows have
    the smallest total length. If the batch leaves out the oldest row of the client, the client's
    next turn begins with that row, so no row waits forever.

    Rows of the same group and of about the same length fill the batch: one of each client, then a
    second of each, and so on. Of one client, the oldest row of each caller comes first, then the
    rows that are nearest in length. A batch of long rows has fewer of them.

    While all workers run batches, rows queue up for the next one: batches grow with the load. If
    several workers are free, they share the rows. Before each batch that is not full, the batcher
    waits `max_wait` for more rows, even if some have waited already, because callers that just got
    their answers often send the next rows at once. If callers have begun to prepare rows by then,
    it waits for them, up to `max_wait_announced`: a running batch would slow them down, because it
    needs the same interpreter. It does not wait for callers that begin later; otherwise one client
    could delay every batch.

    If a batch of several callers fails, the rows of each caller run again by themselves, so only
    the callers at fault fail. A caller that is cancelled takes its rows out of the queue.

    Args:
        run: function of a group and the list of its rows' values; returns a list of answers. It is
            called in the executor.
        executor: `concurrent.futures.Executor` with at least `workers` workers.
        workers: int, maximum number of batches at the same time. Defaults to `1`.
        max_batch: int, maximum number of rows in a batch.
        max_wait: float, seconds. Defaults to `0.002`.
        max_wait_announced: float, seconds. Defaults to `0.02`.
        max_queue: int, maximum number of waiting rows.
    """

    def __init__(
        self,
        run: Callable[[Any, list], Sequence],
        executor: Executor,
        *,
        workers: int = 1,
        max_batch: int,
        max_wait: float = 0.002,
        max_wait_announced: float = 0.02,
        max_queue: int,
    ) -> None:
        self._run = run
        self._executor = executor
        self._workers = workers
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._max_wait_announced = max_wait_announced
        self._max_queue = max_queue
        self._queues: dict[Hashable, list[_Waiting]] = {}  # of each client, the next one first
        self._last_client: Hashable = None  # whose turn the last batch was
        self._running: list[list[_Waiting]] = []
        self._arrival = asyncio.Event()
        self._forming = asyncio.Lock()
        self._announced: dict[object, float] = {}  # when each caller began to prepare rows

    @property
    def queue_length(self) -> int:
        """The number of waiting rows."""
        return sum(map(len, self._queues.values()))

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Context in which a caller prepares the rows that it is going to submit."""
        caller = object()
        self._announced[caller] = asyncio.get_running_loop().time()
        self._arrival.set()  # a batch that waits may now wait longer
        try:
            yield
        finally:
            del self._announced[caller]
            self._arrival.set()

    async def submit(self, rows: Sequence[Row], client: Hashable = None) -> list:
        """Returns the answer for each row.

        Raises:
            QueueFull: if the rows do not fit into the queue, or the client would then hold more
                places than are free: one client alone gets at most half of the queue, and leaves
                room for a second one. None of the rows is run.
            Exception: what `run` raised for one of the rows, or what `fail` was given.
        """
        places = len(self._queues.get(client, ())) + len(rows)
        if places > self._max_queue - self.queue_length - len(rows):
            raise QueueFull
        loop, caller = asyncio.get_running_loop(), object()
        waiting = [_Waiting(row, loop.create_future(), caller, client) for row in rows]
        self._queues.setdefault(client, []).extend(waiting)
        self._arrival.set()
        try:
            return await asyncio.gather(*(entry.answer for entry in waiting))
        finally:
            # If the caller is gone, or one of its rows failed, nobody reads the other answers.
            for entry in waiting:
                entry.answer.cancel()
            self._set_queue(client, _unanswered(self._queues.get(client, ())))

    def fail(self, error: Exception) -> None:
        """Raises an error in all callers, also in those whose rows are running."""
        for entry in _unanswered(itertools.chain(*self._queues.values(), *self._running)):
            entry.answer.set_exception(error)

    async def work(self) -> None:
        """Runs batches until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self):
        while True:
            async with self._forming:
                batch = await self._next_batch()
                self._running.append(batch)
            await self._answer(batch)
            self._running.remove(batch)

    async def _next_batch(self):
        """Waits for rows, and takes a batch out of the queues; `[]` if the callers have left."""
        while not self._queues:
            await self._next_arrival(None)
        start = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            while len(self._rows_in_turn()) < self._max_batch:
                await self._next_arrival(start + self._wait_after(start))
        rows = self._rows_in_turn()  # again, because callers may have left
        # The free workers share the rows.
        share = math.ceil(len(rows) / (self._workers - len(self._running)))
        longest = itertools.accumulate((entry.row.length for entry in rows), max)
        max_rows = sum(n * length <= MAX_BATCH_LENGTH for n, length in enumerate(longest, 1))
        batch = rows[: min(share, self._max_batch, max(max_rows, 1))]
        if batch:
            self._take(batch)
        return batch

    def _wait_after(self, start):
        """Returns the seconds to wait for rows from `start` on: more if some are announced."""
        first_time = next(iter(self._announced.values()), math.inf)
        is_announced = first_time <= start + self._max_wait
        return self._max_wait_announced if is_announced else self._max_wait

    def _take(self, batch):
        """Takes a batch out of the queues, in the turn of the client of its first row."""
        queues = self._queues_in_turn()
        self._last_client = batch[0].client
        oldest = self._queues[self._last_client][0]
        oldest.was_passed_over = True  # without effect if it is in the batch
        remaining = ([entry for entry in queue if entry not in batch] for queue in queues)
        self._queues = {queue[0].client: queue for queue in remaining if queue}

    def _set_queue(self, client, queue):
        """Sets the waiting rows of a client; a client without rows has no turn."""
        if queue:
            self._queues[client] = queue
        else:
            self._queues.pop(client, None)

    async def _next_arrival(self, deadline):
        self._arrival.clear()
        async with asyncio.timeout_at(deadline):
            await self._arrival.wait()

    def _queues_in_turn(self):
        """Returns the queues in the order of turns; the client of the last batch comes last."""
        clients = sorted(self._queues, key=lambda client: client == self._last_client)
        return [self._queues[client] for client in clients]

    def _rows_in_turn(self):
        """Returns the rows that may be in the next batch, in the order in which they join it."""
        if not (queues := self._queues_in_turn()):
            return []
        leader = _leader(queues[0])
        candidates = [_joining(queue, leader) for queue in queues]
        turns = itertools.zip_longest(*candidates)  # one row of each client, while it has some
        return [entry for turn in turns for entry in turn if entry]

    async def _answer(self, batch):
        if not batch:
            return
        loop, values = asyncio.get_running_loop(), [entry.row.value for entry in batch]
        try:
            answers = await loop.run_in_executor(
                self._executor, self._run, batch[0].row.group, values
            )
        except Exception as error:
            callers = dict.fromkeys(entry.caller for entry in batch)
            for caller in callers:
                rows = [entry for entry in batch if entry.caller is caller]
                if len(callers) > 1:
                    await self._answer(_unanswered(rows))
                    continue
                for entry in _unanswered(rows):
                    entry.answer.set_exception(error)
            return
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(answer)


def _leader(queue):
    """Returns the row that a batch begins with, from the queue of the client whose turn it is.

    It is the oldest row of the client if that was passed over, else the oldest row of the caller
    whose rows have the smallest total length.
    """
    if queue[0].was_passed_over:
        return queue[0]
    lengths = collections.Counter()
    for entry in queue:
        lengths[entry.caller] += entry.row.length
    return min(queue, key=lambda entry: lengths[entry.caller])


def _joining(queue, leader):
    """Returns the rows of a client that may share the leader's batch, in order of preference."""
    mates = [entry for entry in queue if _may_share(entry.row, leader.row)]
    oldest = {entry.caller: entry for entry in reversed(mates)}

    def place(entry):
        distance = abs(entry.row.length - leader.row.length)
        return entry is not leader, oldest[entry.caller] is not entry, distance

    return sorted(mates, key=place)


def _may_share(row, leader):
    is_short = max(row.length, leader.length) <= SHORT
    is_near = SHORTEST * leader.length <= row.length <= LONGEST * leader.length
    return row.group == leader.group and (is_short or is_near)


def _unanswered(waiting):
    """Returns the rows whose callers still wait. If a caller is cancelled, its futures are done."""
    return [entry for entry in waiting if not entry.answer.done()]
