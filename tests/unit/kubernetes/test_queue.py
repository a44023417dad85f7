"""The work queue: it has the guarantees of the queue of client-go, and loses no key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import UnavailableError
from muster.kubernetes.queue import WorkQueue

LIMIT = 10.0


class Record:
    """Records the measurements and failures of a queue."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, float]] = []
        self.worked_on = 0

    def waited(self, seconds: float) -> None:
        assert seconds >= 0

    def worked(self, seconds: float) -> None:
        self.worked_on += 1

    def failed(self, key: str, error: Exception, delay: float) -> None:
        self.failures.append((key, delay))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - the queue has no event of its own
            await asyncio.sleep(0.001)


def with_queue(
    work: Callable[[str], Awaitable[float | None]],
    scene: Callable[[WorkQueue, Record], Awaitable[None]],
    *,
    workers: int = 4,
    urgent: Callable[[str], bool] = lambda _: False,
) -> None:
    async def play() -> None:
        record = Record()
        queue = WorkQueue(record, workers=workers, delays=Delays(first=0.001, longest=0.004))
        queue.open(urgent)
        try:
            await scene(queue, record)
        finally:
            await queue.drain(1.0)

    asyncio.run(play())


def test_a_key_that_is_added_many_times_is_processed_once() -> None:
    seen: Counter[str] = Counter()

    async def work(key: str) -> None:
        seen[key] += 1

    async def scene(queue: WorkQueue, _: Record) -> None:
        for _ in range(200):
            queue.add("a")
        queue.add("b")
        assert queue.depth == 2
        queue.start(work)
        await until(lambda: seen.total() == 2 and queue.depth == 0)

    with_queue(work, scene)
    assert seen == {"a": 1, "b": 1}


def test_a_key_is_never_processed_twice_at_once_and_comes_back_after_a_new_event() -> None:
    active, seen, gate = 0, 0, asyncio.Event()

    async def work(_: str) -> None:
        nonlocal active, seen
        active += 1
        assert active == 1
        seen += 1
        await gate.wait()
        active -= 1

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.start(work)
        queue.add("a")
        await until(lambda: seen == 1)
        for _ in range(5):
            queue.add("a")
        gate.set()
        await until(lambda: seen == 2 and active == 0)
        await asyncio.sleep(0)
        assert queue.depth == 0

    with_queue(work, scene)
    assert seen == 2


def test_a_failed_key_backs_off_and_does_not_delay_others() -> None:
    seen: Counter[str] = Counter()

    async def work(key: str) -> None:
        seen[key] += 1
        if key == "bad" and seen[key] <= 4:
            raise ValueError(key)

    async def scene(queue: WorkQueue, record: Record) -> None:
        queue.start(work)
        queue.add("bad")
        queue.add("good")
        await until(lambda: seen["bad"] == 5 and record.worked_on == 2)
        assert [delay for _, delay in record.failures] == [0.001, 0.002, 0.004, 0.004]
        assert queue.failing == 0

    with_queue(work, scene, workers=1)


def test_a_failed_key_waits_at_least_for_retry_after() -> None:
    async def work(key: str) -> None:
        error = UnavailableError("429: too many requests")
        error.retry_seconds = 0.05
        raise error

    async def scene(queue: WorkQueue, record: Record) -> None:
        queue.start(work)
        queue.add("job")
        await until(lambda: len(record.failures) == 2)
        assert [delay for _, delay in record.failures] == [0.05, 0.05]

    with_queue(work, scene)


def test_the_earliest_timer_of_a_key_counts_and_adding_the_key_drops_them() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.start(work)
        queue.add_after("a", 100.0)
        queue.add_after("a", 0.001)
        queue.add_after("a", 50.0)
        await until(lambda: len(seen) == 1)
        queue.add_after("a", 0.02)
        queue.add("a")
        queue.add_after("b", 0.05)  # due after the forgotten time of the other key, which would come first
        await until(lambda: "b" in seen)
        assert seen == ["a", "a", "b"]

    with_queue(work, scene, workers=1)


def test_a_key_comes_back_after_the_delay_that_its_work_returns() -> None:
    seen = 0

    async def work(_: str) -> float | None:
        nonlocal seen
        seen += 1
        return 0.001 if seen < 3 else None

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.start(work)
        queue.add("a")
        await until(lambda: seen == 3)

    with_queue(work, scene, workers=1)


def test_draining_finishes_the_current_work_and_starts_no_other() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def work(key: str) -> None:
        begun.set()
        await asyncio.sleep(0.01)
        ended.append(key)

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.start(work)
        queue.add("a")
        queue.add("b")
        await begun.wait()
        await queue.drain(5.0)
        assert ended == ["a"]

    with_queue(work, scene, workers=1)


def test_draining_waits_only_for_a_limited_time() -> None:
    async def work(_: str) -> None:
        await asyncio.sleep(1000)

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.start(work)
        queue.add("a")
        await until(lambda: queue.longest_work() > 0)
        async with asyncio.timeout(LIMIT):
            await queue.drain(0.01)

    with_queue(work, scene, workers=1)


def test_timer_keys_yield_to_event_keys_for_a_limited_time() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.add_after("patient", 0.2)  # it yields to others for two seconds
        queue.add_after("urgent", 0.2)
        await until(lambda: queue.depth == 2)
        queue.add("news")
        queue.add("urgent")  # something happened to this one too
        queue.start(work)
        await until(lambda: len(seen) == 3)

    with_queue(work, scene, workers=1)
    assert seen == ["urgent", "news", "patient"]


def test_a_timer_key_is_processed_during_a_stream_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.kubernetes.queue.LONGEST_SLACK", 2.0)
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)
        await asyncio.sleep(0)

    async def scene(queue: WorkQueue, _: Record) -> None:
        queue.add_after("patient", 0.2)
        await until(lambda: queue.depth == 1)
        queue.start(work)
        async with asyncio.timeout(LIMIT):
            while "patient" not in seen:
                for number in range(10 - queue.depth):
                    queue.add(f"news {len(seen)} {number}")
                await asyncio.sleep(0)

    with_queue(work, scene, workers=1)
    assert len(seen) > 10


def test_the_queue_is_calm_when_no_key_is_due_or_active_and_after_draining() -> None:
    async def scene(queue: WorkQueue, record: Record) -> None:
        started, finished = asyncio.Event(), list[str]()
        go_on.clear()

        async def wait_for_calm() -> None:
            started.set()
            await queue.calm(LIMIT)
            finished.append("calm")

        await queue.calm(0.0)
        queue.add("a")
        queue.start(work)
        waiting = asyncio.create_task(wait_for_calm())
        await started.wait()
        queue.add("b")
        await until(lambda: queue.depth == 1)
        assert finished == []
        go_on.set()
        await until(lambda: record.worked_on == 2)
        await waiting
        go_on.clear()
        queue.add("c")
        await until(lambda: queue.depth == 0)
        await queue.calm(0.01)
        waiting = asyncio.create_task(wait_for_calm())
        await queue.drain(0.01)
        await waiting

    go_on = asyncio.Event()

    async def work(_: str) -> None:
        await go_on.wait()

    with_queue(work, scene, workers=1)


def test_no_namespace_has_more_than_half_of_the_workers() -> None:
    active: Counter[str] = Counter()
    most: Counter[str] = Counter()
    gate = asyncio.Event()

    async def work(key: str) -> None:
        namespace = key[0]
        active[namespace] += 1
        most[namespace] = max(most[namespace], active[namespace])
        await gate.wait()
        active[namespace] -= 1

    async def scene(queue: WorkQueue, record: Record) -> None:
        for number in range(20):
            queue.add(f"a/{number}")
        queue.start(work)
        await until(lambda: active["a"] == 4)
        queue.add("b/0")
        await until(lambda: active["b"] == 1)
        gate.set()
        await until(lambda: record.worked_on == 21)

    with_queue(work, scene, workers=8)
    assert most == {"a": 4, "b": 1}


def test_jobs_that_recover_go_before_jobs_that_start() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Record) -> None:
        for number in range(5):
            queue.add(f"a/new {number}")
        queue.add("a/recovers")
        queue.add_after("b/recovers", 0.001, happened=True)
        await until(lambda: queue.depth == 7)
        queue.start(work)
        await until(lambda: len(seen) == 7)

    with_queue(work, scene, workers=1, urgent=lambda key: key.endswith("recovers"))
    assert set(seen[:2]) == {"a/recovers", "b/recovers"}


def test_a_drained_queue_does_not_open_again() -> None:
    async def work(_: str) -> None:
        raise AssertionError("no key may be worked on during shutdown")

    async def scene(queue: WorkQueue, record: Record) -> None:
        await queue.drain(1.0)
        queue.open()
        queue.start(work)
        queue.add("a")
        assert queue.depth == 0

    with_queue(work, scene)
