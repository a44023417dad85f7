"""The positions of waiting jobs: which queues are read how often, and which jobs get a pass."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.control.positions import LONGEST_PAUSE, REFUSED_SECONDS, SECONDS, STALE_SECONDS, Positions, positions_in
from muster.kubernetes.errors import ClusterError, NotFoundError, RefusedError, UnavailableError
from muster.lifecycle.observed import QueuePosition


def pending(*names: str) -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": name}, "positionInLocalQueue": place, "positionInClusterQueue": place + 10}
        for place, name in enumerate(names)
    ]


class Fixture:
    """Queues by name, a clock, and what has been asked and woken."""

    def __init__(self, **queues: list[str] | ClusterError) -> None:
        self.queues, self.now = queues, 100.0
        self.reads: list[str] = []
        self.woken: list[str] = []
        self.positions = Positions(self._read, enqueue=self.woken.append, clock=lambda: self.now)

    async def _read(self, namespace: str, queue: str) -> list[dict[str, Any]]:
        self.reads.append(f"{namespace}/{queue}")
        answer = self.queues[queue]
        if isinstance(answer, ClusterError):
            raise answer
        return pending(*answer)

    def look(self, *, after: float = 0.0) -> list[str]:
        """The jobs that get a pass."""
        self.now += after
        self.woken.clear()
        asyncio.run(self.positions.look())
        return list(self.woken)

    def place(self, job: str, queue: str = "team") -> int | None:
        position = self.positions.of(f"ns/{job}", queue)
        return position.in_local_queue if position else None


def test_only_queues_with_waiting_jobs_are_read_each_once_in_a_while() -> None:
    world = Fixture(team=["a", "b"], other=["c"])
    world.look()
    assert world.reads == []
    assert [world.place("a"), world.place("b")] == [None, None]
    assert world.look() == ["ns/a", "ns/b"]
    assert [world.place("a"), world.place("b")] == [1, 2]
    assert world.look(after=SECONDS / 2) == []
    assert world.reads == ["ns/team"]
    world.look(after=SECONDS)
    assert world.reads == ["ns/team", "ns/team"]
    for job in ("a", "b"):
        world.positions.forget(f"ns/{job}")
    world.look(after=SECONDS)
    assert len(world.reads) == 2


def test_a_job_gets_a_pass_when_its_position_has_changed_and_less_often_far_behind() -> None:
    jobs = [f"job-{number}" for number in range(200)]
    world = Fixture(team=jobs)
    for job in jobs:
        world.place(job)
    world.look()
    for job in jobs:
        world.place(job)
    world.queues["team"] = jobs[1:]
    woken = world.look(after=SECONDS)
    assert woken == [f"ns/job-{number}" for number in range(6)]  # the first has no position any more
    for key in woken:
        world.place(key.removeprefix("ns/"))
    world.look(after=LONGEST_PAUSE)
    assert len(world.woken) == 194


def test_a_position_that_may_not_be_read_is_absent_and_one_that_cannot_stays_a_while() -> None:
    world = Fixture(team=["a"], secret=RefusedError("no"), absent=NotFoundError("no"))
    for job, queue in (("a", "team"), ("b", "secret"), ("c", "absent")):
        world.place(job, queue)
    assert world.look() == ["ns/a"]
    assert [world.place("a"), world.place("b", "secret"), world.place("c", "absent")] == [1, None, None]
    world.queues["team"] = UnavailableError("down")
    assert world.look(after=SECONDS) == []
    assert world.place("a") == 1
    assert world.look(after=STALE_SECONDS + 1) == ["ns/a"]
    assert world.place("a") is None
    assert world.reads.count("ns/secret") == 1
    world.look(after=REFUSED_SECONDS)
    assert world.reads.count("ns/secret") == 2


def test_entries_that_cannot_be_read_are_left_out() -> None:
    broken: list[dict[str, Any]] = [{}, {"metadata": {"name": "x"}, "positionInLocalQueue": "?"}, {"metadata": {}}]
    negative = {"metadata": {"name": "y"}, "positionInLocalQueue": -1, "positionInClusterQueue": 0}
    assert positions_in([*broken, negative, *pending("a")]) == {"a": QueuePosition(1, 11)}


def test_jobs_get_a_pass_when_the_api_is_gone() -> None:
    async def story() -> None:
        woken = asyncio.Event()

        async def read(namespace: str, queue: str) -> list[dict[str, Any]]:
            return pending("a")

        positions = Positions(read, enqueue=lambda _: woken.set())
        positions.of("ns/a", "team")
        await positions.look()
        assert positions.of("ns/a", "team") == QueuePosition(1, 11)
        woken.clear()
        task = asyncio.create_task(positions.run(lambda: False))
        await woken.wait()
        assert positions.of("ns/a", "team") is None
        task.cancel()

    asyncio.run(asyncio.wait_for(story(), 60))
