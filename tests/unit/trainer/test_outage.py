"""How long training goes on while its saves fail, and when it tries again: a world of two ranks as threads, with a clock of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from muster_contract.errors import StorageUnavailable
from muster_contract.notices import NoticeReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.outage import Outage
from tests.unit.trainer.quick_run import run_of
from tests.unit.trainer.test_saving import Rank, on_all, ranks_of_two

LIMIT = Outage.LIMIT


class Clock:
    """The clock of all ranks. Sleeping moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_tries_become_rare_and_the_first_success_ends_the_outage(clock: Clock) -> None:
    failing, pauses = Outage(clock.read), []
    for _ in range(9):
        began = clock.now
        failing.add(waited=0.0)
        assert not failing.is_due
        while not failing.is_due:
            clock.now += 0.5
        pauses.append(clock.now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failing.seconds == sum(pauses)
    failing.end()
    assert (failing.is_on, failing.seconds) == (False, 0.0)
    failing.add(waited=0.0)
    assert failing.pause == 1


def test_a_storage_that_blocks_each_try_takes_a_tenth_of_the_time(clock: Clock) -> None:
    failing = Outage(clock.read)
    clock.now += 40.0
    failing.add(waited=40.0)
    assert failing.seconds == 40.0
    clock.now += 9 * 40.0 - 1
    assert not failing.is_due
    clock.now += 1
    assert failing.is_due


def test_the_last_try_is_at_the_limit(clock: Clock) -> None:
    failing = Outage(clock.read)
    clock.now += 240.0
    failing.add(waited=240.0)
    clock.now += LIMIT - 241
    assert not failing.is_due
    clock.now += 1
    assert failing.is_due


class Trains(Checkpoints):
    """The checkpoints of one rank of a training that resumed at `first`. `fails` is the error of its next saves."""

    def __init__(self, engine: Rank, clock: Clock, *, first: int = 20) -> None:
        self.saved: list[Any] = []
        self.tries_to_fail = sys.maxsize
        self.fails: StorageUnavailable | None = StorageUnavailable("no space is left")
        self.run = run_of(engine, done=first, checkpoint=CheckpointSpec("/checkpoints", every_steps=10, asynchronous=False))
        interval = SimpleNamespace(seconds=None)
        saver: Any = SimpleNamespace(step=None, path=None, seconds=0.0, in_flight=False, interval=interval, save=self._save_now)
        super().__init__(self.run, make_saver=lambda _: saver, clock=clock.read, sleep=clock.sleep)
        self.start(first, None, waited=0.0)

    def _save_now(self, manifest: Any) -> None:
        self.tries_to_fail -= 1
        if self.fails and self.tries_to_fail >= 0:
            raise self.fails
        self.saved.append(manifest[0])
        vars(self.saver).update(step=manifest[0], path="there")


class TwoRanks:
    def __init__(self, clock: Clock, **fields: Any) -> None:
        self.ranks = [Trains(rank, clock, **fields) for rank in ranks_of_two()]
        self.pool = ThreadPoolExecutor(2)

    def all(self, call: Callable[[Trains], Any]) -> list[Any]:
        return on_all(self.pool, self.ranks, call)

    def save(self, step: int = 30) -> list[Any]:
        return self.all(lambda training: training.save(step))

    def mend(self) -> None:
        for rank in self.ranks:
            rank.fails = None


def test_a_failed_save_is_tried_again_and_then_the_interval_counts_again(clock: Clock) -> None:
    world = TwoRanks(clock)
    assert world.save() == [None, None]
    first, other = world.ranks
    assert [rank.run.phases for rank in world.ranks] == [["Training"]] * 2
    assert [training.is_time for training in world.ranks] == [False, False]
    assert not first.is_due(40)
    assert not other.is_due(40)
    clock.now += 1
    assert [training.is_time for training in world.ranks] == [True, False]  # rank 0 votes for all
    world.mend()
    assert world.save(33) == [None, None]
    assert [rank.saved for rank in world.ranks] == [[33], [33]]
    assert not first.is_time
    assert first.is_due(40)
    assert other.is_due(40)


def test_one_notice_names_the_cause_and_how_long_training_goes_on(clock: Clock) -> None:
    world = TwoRanks(clock)
    for _ in range(3):
        world.save()
        clock.now += 10
    first, other = world.ranks
    ((reason, message),) = first.run.notices
    assert reason is NoticeReason.SAVE_FAILED
    assert message == "no space is left; training goes on, tries again, and ends if no save succeeds within 600 s"
    assert other.run.notices == []
    world.mend()
    world.save()
    for rank in world.ranks:
        rank.fails = StorageUnavailable("the file system is read-only")
    world.save()
    assert len(first.run.notices) == 2


def test_all_ranks_end_with_one_message_after_the_limit(clock: Clock) -> None:
    world = TwoRanks(clock)
    world.save()
    clock.now += LIMIT
    assert world.save() == [None, None]
    clock.now += 1
    errors = world.save()
    assert all(isinstance(error, StorageUnavailable) for error in errors)
    assert {str(error) for error in errors} == {"no space is left; no save has succeeded for 601 s; the limit is 600 s"}


def test_the_rank_that_has_seen_the_outage_for_longest_decides(clock: Clock) -> None:
    """The other one is new in this world."""
    world = TwoRanks(clock)
    world.ranks[1].outage.add(waited=0.0)
    clock.now += LIMIT + 1
    assert all(isinstance(error, StorageUnavailable) for error in world.save())


def test_the_time_of_an_outage_ends_with_a_save(clock: Clock) -> None:
    world = TwoRanks(clock)
    world.save()
    clock.now += LIMIT - 1
    world.mend()
    world.save(31)
    for rank in world.ranks:
        rank.fails = StorageUnavailable("away")
    clock.now += LIMIT
    assert world.save(32) == [None, None]


def test_the_first_save_of_a_job_must_succeed(clock: Clock) -> None:
    """The storage may never have worked."""
    world = TwoRanks(clock, first=0)
    assert all(str(error) == "no space is left" for error in world.save())


def test_the_last_save_is_tried_again_until_it_succeeds(clock: Clock) -> None:
    world = TwoRanks(clock)
    for rank in world.ranks:
        rank.tries_to_fail = 6
    assert world.all(lambda training: training.save_at_end()) == [True, True]
    assert [rank.saved for rank in world.ranks] == [[60], [60]]
    assert sorted(clock.sleeps) == sorted([1, 2, 4, 5, 5, 5] * 2)


def test_the_last_save_fails_after_the_limit(clock: Clock) -> None:
    world = TwoRanks(clock)
    errors = world.all(lambda training: training.save_at_end())
    assert all("no save has succeeded for 60" in str(error) for error in errors), errors


def test_a_stop_request_ends_the_tries_of_the_last_save(clock: Clock) -> None:
    world = TwoRanks(clock)
    world.ranks[1].run.stop.requested = True
    assert world.all(lambda training: training.save_at_end()) == [False, False]


def test_a_rescue_is_not_tried_where_the_storage_blocks(clock: Clock) -> None:
    world = TwoRanks(clock)
    for rank in world.ranks:
        rank.count_failure(waited=40.0)
    assert [rank.saver.seconds for rank in world.ranks if rank.saver] == [40.0, 40.0]
