"""The work queue: what client-go's promises, and nothing lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from muster.control.errors import UnavailableError
from muster.control.queue import WorkQueue
from muster.lifecycle.policy import Delays

LIMIT = 10.0


class Book:
    """Remembers what a queue says of itself."""

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
    scene: Callable[[WorkQueue, Book], Awaitable[None]],
    *,
    workers: int = 4,
    urgent: Callable[[str], bool] = lambda _: False,
) -> None:
    async def play() -> None:
        book = Book()
        queue = WorkQueue(book, workers=workers, delays=Delays(first=0.001, longest=0.004))
        queue.open(urgent)
        try:
            await scene(queue, book)
        finally:
            await queue.drain(1.0)

    asyncio.run(play())


def test_a_key_added_many_times_before_it_is_taken_up_is_worked_on_once() -> None:
    seen: Counter[str] = Counter()

    async def work(key: str) -> None:
        seen[key] += 1

    async def scene(queue: WorkQueue, _: Book) -> None:
        for _ in range(200):
            queue.add("a")
        queue.add("b")
        assert queue.depth == 2
        queue.start(work)
        await until(lambda: seen.total() == 2 and queue.depth == 0)

    with_queue(work, scene)
    assert seen == {"a": 1, "b": 1}


def test_one_key_is_never_worked_on_twice_at_once_and_news_during_its_work_bring_it_again() -> None:
    active, seen, gate = 0, 0, asyncio.Event()

    async def work(_: str) -> None:
        nonlocal active, seen
        active += 1
        assert active == 1
        seen += 1
        await gate.wait()
        active -= 1

    async def scene(queue: WorkQueue, _: Book) -> None:
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


def test_a_key_that_fails_comes_back_later_and_later_and_holds_up_no_other() -> None:
    seen: Counter[str] = Counter()

    async def work(key: str) -> None:
        seen[key] += 1
        if key == "bad" and seen[key] <= 4:
            raise ValueError(key)

    async def scene(queue: WorkQueue, book: Book) -> None:
        queue.start(work)
        queue.add("bad")
        queue.add("good")
        await until(lambda: seen["bad"] == 5 and book.worked_on == 2)
        assert [delay for _, delay in book.failures] == [0.001, 0.002, 0.004, 0.004]
        assert queue.failing == 0

    with_queue(work, scene, workers=1)


def test_a_failed_key_waits_at_least_as_long_as_the_api_server_asks() -> None:
    async def work(key: str) -> None:
        error = UnavailableError("429: too many requests")
        error.retry_seconds = 0.05
        raise error

    async def scene(queue: WorkQueue, book: Book) -> None:
        queue.start(work)
        queue.add("job")
        await until(lambda: len(book.failures) == 2)
        assert [delay for _, delay in book.failures] == [0.05, 0.05]

    with_queue(work, scene)


def test_of_several_times_the_earliest_counts_and_a_key_that_is_due_forgets_them() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Book) -> None:
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


def test_work_that_asks_to_come_back_comes_back() -> None:
    seen = 0

    async def work(_: str) -> float | None:
        nonlocal seen
        seen += 1
        return 0.001 if seen < 3 else None

    async def scene(queue: WorkQueue, _: Book) -> None:
        queue.start(work)
        queue.add("a")
        await until(lambda: seen == 3)

    with_queue(work, scene, workers=1)


def test_draining_lets_work_end_and_takes_up_nothing_more() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def work(key: str) -> None:
        begun.set()
        await asyncio.sleep(0.01)
        ended.append(key)

    async def scene(queue: WorkQueue, _: Book) -> None:
        queue.start(work)
        queue.add("a")
        queue.add("b")
        await begun.wait()
        await queue.drain(5.0)
        assert ended == ["a"]

    with_queue(work, scene, workers=1)


def test_draining_does_not_wait_for_work_without_end() -> None:
    async def work(_: str) -> None:
        await asyncio.sleep(1000)

    async def scene(queue: WorkQueue, _: Book) -> None:
        queue.start(work)
        queue.add("a")
        await until(lambda: queue.longest_work() > 0)
        async with asyncio.timeout(LIMIT):
            await queue.drain(0.01)

    with_queue(work, scene, workers=1)


def test_what_is_due_by_time_lets_go_first_what_is_due_by_news_but_not_for_long() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Book) -> None:
        queue.add_after("patient", 0.2)  # it lets others go first for two seconds
        queue.add_after("urgent", 0.2)
        await until(lambda: queue.depth == 2)
        queue.add("news")
        queue.add("urgent")  # something happened to this one too
        queue.start(work)
        await until(lambda: len(seen) == 3)

    with_queue(work, scene, workers=1)
    assert seen == ["urgent", "news", "patient"]


def test_nothing_waits_for_ever_behind_a_stream_of_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.control.queue.PATIENCE", 0.1)
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)
        await asyncio.sleep(0)

    async def scene(queue: WorkQueue, _: Book) -> None:
        queue.add_after("patient", 0.001)
        await until(lambda: queue.depth == 1)
        queue.start(work)
        async with asyncio.timeout(LIMIT):
            while "patient" not in seen:
                for number in range(10 - queue.depth):
                    queue.add(f"news {len(seen)} {number}")
                await asyncio.sleep(0)

    with_queue(work, scene, workers=1)
    assert len(seen) > 10


def test_it_is_calm_when_nothing_is_due_nor_under_way_or_all_is_over() -> None:
    async def scene(queue: WorkQueue, book: Book) -> None:
        started, told = asyncio.Event(), list[str]()
        go_on.clear()

        async def tell() -> None:
            started.set()
            await queue.calm(LIMIT)
            told.append("calm")

        await queue.calm(0.0)
        queue.add("a")
        queue.start(work)
        telling = asyncio.create_task(tell())
        await started.wait()
        queue.add("b")
        await until(lambda: queue.depth == 1)
        assert told == []
        go_on.set()
        await until(lambda: book.worked_on == 2)
        await telling
        go_on.clear()
        queue.add("c")
        await until(lambda: queue.depth == 0)
        await queue.calm(0.01)
        telling = asyncio.create_task(tell())
        await queue.drain(0.01)
        await telling

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

    async def scene(queue: WorkQueue, book: Book) -> None:
        for number in range(20):
            queue.add(f"a/{number}")
        queue.start(work)
        await until(lambda: active["a"] == 4)
        queue.add("b/0")
        await until(lambda: active["b"] == 1)
        gate.set()
        await until(lambda: book.worked_on == 21)

    with_queue(work, scene, workers=8)
    assert most == {"a": 4, "b": 1}


def test_what_recovers_goes_before_what_starts() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async def scene(queue: WorkQueue, _: Book) -> None:
        for number in range(5):
            queue.add(f"a/new {number}")
        queue.add("a/recovers")
        queue.add_after("b/recovers", 0.001, happened=True)
        await until(lambda: queue.depth == 7)
        queue.start(work)
        await until(lambda: len(seen) == 7)

    with_queue(work, scene, workers=1, urgent=lambda key: key.endswith("recovers"))
    assert set(seen[:2]) == {"a/recovers", "b/recovers"}


def test_a_queue_that_was_drained_does_not_open_again() -> None:
    async def work(_: str) -> None:
        raise AssertionError("no key may be worked on during shutdown")

    async def scene(queue: WorkQueue, book: Book) -> None:
        await queue.drain(1.0)
        queue.open()
        queue.start(work)
        queue.add("a")
        assert queue.depth == 0

    with_queue(work, scene)
