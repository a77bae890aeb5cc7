"""Dynamic batching, without a model: who shares a batch, whose turn it is, limits, failures."""

import asyncio
import collections
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.serving.batching import Batcher, QueueFull, Row
from tests.waiting import until


class Model:
    """Records the batches, and answers `(group, value)` when so many run at once and may run."""

    def __init__(self, at_once=1):
        self.batches = []
        self._together = threading.Barrier(at_once, timeout=10)
        self.may_run = threading.Event()
        self.may_run.set()

    def __call__(self, group, values):
        self.batches.append((group, values))
        self.may_run.wait()
        self._together.wait()
        return [(group, value) for value in values]


def run(scenario, model, **settings):
    """Runs `scenario(batcher)`."""
    settings = {"max_batch": 4, "max_wait": 0.002, "max_queue": 1000} | settings

    async def main():
        with ThreadPoolExecutor(settings.get("workers", 1)) as executor:
            batcher = Batcher(model, executor, **settings)
            work = asyncio.create_task(batcher.work())
            try:
                return await asyncio.wait_for(scenario(batcher), 20)
            finally:
                model.may_run.set()
                work.cancel()

    return asyncio.run(main())


def rows_of(values, group="g"):
    return [Row(group, 1, value) for value in values]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 125)), max_size=9), max_size=9
    ),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_every_row_gets_its_own_answer_in_batches_of_its_group(requests, max_batch, workers):
    model = Model()

    async def scenario(batcher):
        rows = [
            [Row(group, length, (i, j)) for j, (group, length) in enumerate(request)]
            for i, request in enumerate(requests)
        ]
        return await asyncio.gather(*(batcher.submit(each) for each in rows))

    answers = run(scenario, model, max_batch=max_batch, max_wait=0, workers=workers)
    assert answers == [
        [(group, (i, j)) for j, (group, _) in enumerate(request)]
        for i, request in enumerate(requests)
    ]
    assert all(1 <= len(values) <= max_batch for _, values in model.batches)
    ran = sorted(value for _, values in model.batches for value in values)
    assert ran == sorted((i, j) for i, request in enumerate(requests) for j in range(len(request)))


def test_workers_run_batches_at_once_and_share_what_is_there():
    model = Model(at_once=3)

    async def scenario(batcher):
        await batcher.submit(rows_of(range(5)))
        await batcher.submit(rows_of(range(12)))

    run(scenario, model, workers=3)
    assert sorted(len(values) for _, values in model.batches) == [1, 2, 2, 4, 4, 4]


def test_callers_that_come_again_at_once_share_a_batch_with_those_that_waited():
    model = Model()
    model.may_run.clear()

    async def scenario(batcher):
        async def twice(value):
            await batcher.submit(rows_of([value]))
            await batcher.submit(rows_of([value + 10]))

        first = asyncio.create_task(twice(0))
        await until(lambda: model.batches)  # it runs alone
        others = [asyncio.create_task(twice(value)) for value in (1, 2, 3)]
        await until(lambda: batcher.queue_length == 3)
        model.may_run.set()
        await asyncio.gather(first, *others)

    run(scenario, model, max_wait=0.5)
    assert [sorted(values) for _, values in model.batches[:2]] == [[0], [1, 2, 3, 10]]


@pytest.mark.parametrize(("prepares", "begins"), [(True, 0), (True, 0.1), (False, 0.1)])
def test_batch_waits_for_rows_that_are_prepared_as_long_as_they_are(prepares, begins):
    """Also if a caller begins to prepare them while the batch waits."""
    model = Model()

    async def slow_caller(batcher):
        await asyncio.sleep(begins)
        with batcher.announced():
            await asyncio.sleep(0.5)  # more than `max_wait`
        if prepares:
            await batcher.submit(rows_of("b"))

    async def scenario(batcher):
        await asyncio.gather(slow_caller(batcher), batcher.submit(rows_of("a")))

    run(scenario, model, max_wait=0.3, max_wait_announced=15)
    assert model.batches == [("g", ["a", "b"] if prepares else ["a"])]


def test_batch_does_not_wait_for_rows_that_are_announced_late():
    """Else a client that sends one text after another would delay every batch."""
    model = Model()

    async def scenario(batcher):
        answered = asyncio.Event()

        async def early_caller():
            with batcher.announced():
                await asyncio.sleep(0.3)

        async def late_caller():
            await asyncio.sleep(0.15)
            with batcher.announced():
                await answered.wait()

        late = asyncio.gather(early_caller(), late_caller())
        await asyncio.sleep(0.05)  # the early one is announced
        async with asyncio.timeout(5):
            await batcher.submit(rows_of("a"))
        answered.set()
        await late

    run(scenario, model, max_wait=0.01, max_wait_announced=15)
    assert model.batches == [("g", ["a"])]


# Maximum rows of a batch, the lengths of each caller's rows, those of the rows of each batch.
BATCHES = {
    # 112 is at least a quarter of 225, but 33 is not, nor is 5 of 33.
    "the oldest row with those nearest in length": (
        3,
        [[25, 225, 33, 22, 112, 5, 27]],
        [[22, 25, 27], [112, 225], [33], [5]],
    ),
    "fewer rows if they are long": (
        4,
        [[2_250, 512, 500, 375, 250, 250]],
        [[2_250], [500, 512], [250, 375], [250]],
    ),
    "a single row before the many of another caller": (
        4,
        [range(12, 24), [3]],
        [[3, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21, 22], [23]],
    ),
}


@pytest.mark.parametrize(("max_batch", "callers", "expected"), BATCHES.values(), ids=BATCHES)
def test_batch_begins_with_a_row_and_holds_those_of_about_its_length(max_batch, callers, expected):
    model = Model()

    async def scenario(batcher):
        rows = ([Row("g", length, length) for length in lengths] for lengths in callers)
        await asyncio.gather(*map(batcher.submit, rows))

    run(scenario, model, max_batch=max_batch)
    assert [sorted(values) for _, values in model.batches] == expected


def waits_behind(flood, requests, client, **settings):
    """Returns how many batches each batch with rows of `requests` comes after the one before it.

    A request is a list of rows with the same value. Each is sent when the one before it has its
    answer. The requests of `flood`, of the client "office", are in front of the first, and each
    of them is sent again when it has its answer.
    """
    model = Model()
    model.may_run.clear()

    async def scenario(batcher):
        done = asyncio.Event()

        async def send_again(request):
            while not done.is_set():
                await batcher.submit(request, "office")

        tasks = [asyncio.create_task(send_again(request)) for request in flood]
        await until(lambda: model.batches)
        model.may_run.set()
        for request in requests:
            await batcher.submit(request, client)
        done.set()
        await asyncio.gather(*tasks)

    run(scenario, model, **settings)
    value = requests[0][0].value
    places = [place for place, (_, values) in enumerate(model.batches) if value in values]
    return [after - before for before, after in itertools.pairwise([0, *places])]


SHORT, LONG = Row("g", 3, "short"), Row("g", 125, "long")
FLOODS = {"a request": [[LONG] * 128], "requests": [[LONG] * 9] * 9, "lines": [[LONG]] * 128}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_short_lines_hardly_wait_for_long_ones_of_their_own_client(flood):
    """At most for three times as many batches as for those of another client."""
    own = waits_behind(flood, [[SHORT]] * 5, "office")
    other = waits_behind(flood, [[SHORT]] * 5, "home")
    assert max(own) <= 3 * max(other) and max(other) == 2


def test_request_of_long_lines_has_every_second_turn_among_short_ones():
    first, *others = waits_behind([[SHORT]] * 9, [[LONG] * 5], "office", max_batch=1)
    assert first <= 9 + 2 and others == [2] * 4


CALLS = st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(CALLS, max_size=12), st.integers(1, 3))
def test_callers_that_leave_take_their_rows_with_them(calls, workers):
    """A caller leaves after that many turns of the loop; 0 stays."""
    model = Model()

    async def submit(batcher, number, client, count, turns):
        task = asyncio.create_task(
            batcher.submit(rows_of([(number, n) for n in range(count)]), client)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns:
            task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    async def scenario(batcher):
        each = (submit(batcher, number, *call) for number, call in enumerate(calls))
        answers = await asyncio.gather(*each)
        assert batcher.queue_length == 0
        return answers, await batcher.submit(rows_of(["last"]))

    answers, last = run(scenario, model, max_batch=2, max_wait=0, workers=workers)
    assert last == [("g", "last")]
    for number, ((answer,), (_, count, turns)) in enumerate(zip(answers, calls, strict=True)):
        if not turns or not isinstance(answer, asyncio.CancelledError):
            assert answer == [("g", (number, n)) for n in range(count)]
    ran = [value for _, values in model.batches for value in values]
    assert len(ran) == len(set(ran))


ROWS = st.tuples(st.sampled_from("abc"), st.sampled_from("gh"), st.sampled_from([3, 75, 500]))


@given(st.lists(ROWS, min_size=1, max_size=40), st.integers(1, 5))
def test_clients_take_turns(waiting, max_batch):
    """A client's oldest row waits for at most two turns of each; all get equally many rows."""
    model = Model()
    rows = [Row(group, length, (client, group, length, number))
            for number, (client, group, length) in enumerate(waiting)]  # fmt: skip

    async def scenario(batcher):
        each = (batcher.submit([row], row.value[0]) for row in rows)
        await asyncio.gather(*each)

    run(scenario, model, max_batch=max_batch, max_wait=0)
    left, waits = {row.value: None for row in rows}, collections.Counter()
    clients = len({client for client, *_ in waiting})
    for _, values in model.batches:
        oldest = {value[0]: value for value in reversed(left)}
        for value in values:
            del left[value]
        waits.update(value for value in oldest.values() if value in left)
        assert max(waits.values(), default=0) < 2 * clients
        counts = collections.Counter(value[0] for value in values)
        behind = {client for client, *kind, _ in left if kind == list(values[0][1:3])}
        assert all(counts[client] >= max(counts.values()) - 1 for client in behind)


def test_full_queue_refuses_whole_requests_and_recovers():
    """A client may have as many rows as the queue has free places besides."""
    model = Model()
    model.may_run.clear()

    async def scenario(batcher):
        tasks = []

        async def submit(client, count):
            tasks.append(asyncio.create_task(batcher.submit(rows_of(range(count)), client)))
            await asyncio.sleep(0)  # its rows are in the queue, or it is refused
            return tasks[-1].done() and isinstance(tasks[-1].exception(), QueueFull)

        assert not await submit("a", 1)
        await until(lambda: model.batches)  # it runs
        assert await submit("a", 5) and not await submit("a", 4) and await submit("a", 1)
        assert not await submit("b", 2) and await submit("b", 1)
        assert not await submit("c", 1) and await submit("c", 1)
        assert batcher.queue_length == 7
        model.may_run.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await batcher.submit(rows_of([5, 6, 7]))

    assert run(scenario, model, max_queue=8) == [("g", 5), ("g", 6), ("g", 7)]
    assert sum(len(values) for _, values in model.batches) == 11
