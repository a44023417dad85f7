"""A rank that has lost its peers saves what it has: in memory, or else in the storage."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from muster_contract.errors import PeerLost, StorageUnavailable
from muster_contract.events import CommitReason, Event, Step
from muster_contract.notices import NoticeReason
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.recovery.ladder import Ladder
from muster_trainer.training.recovery.memory import Memory
from tests.unit.trainer.quick_run import run_of

LOST = PeerLost("rank 0: connection closed")


class Left:
    """A rank at step 13 that has lost its peers. It has saved step 10 in two seconds. `is_kept`: its memory can store the step."""

    def __init__(
        self,
        *,
        rank: int = 0,
        rescues: bool = True,
        done: int | None = 13,
        seconds: float = 2.0,
        step: int | None = 10,
        saved_before: int | None = None,
        has_storage: bool = True,
        every: int | None = None,
        is_kept: bool = False,
        error: Exception | None = None,
    ) -> None:
        self.saved: list[Any] = []
        self.stored: list[int] = []
        self.error, self.is_kept = error, is_kept
        between = SimpleNamespace(fixed=every)
        memory = SimpleNamespace(is_on=True, between=between, store_alone=self._store) if every or is_kept else None
        engine = SimpleNamespace(rank=rank, rescues=rescues, survival=None, memory=memory, disconnect=lambda: None)
        self.run = run_of(engine, done=done)
        saver: Any = SimpleNamespace(step=step, path=None, seconds=seconds, rescue=self._save) if has_storage else None
        checkpoints = Checkpoints(self.run, make_saver=lambda _: saver)
        checkpoints.saved_before = saved_before
        self.ladder = Ladder(self.run, Memory(self.run), checkpoints)

    def _store(self, step: int, event: str | None) -> bool:
        if self.is_kept:
            self.stored.append(step)
        return self.is_kept

    def _save(self, manifest: Any) -> None:
        if self.error:
            raise self.error
        self.saved.append(manifest)

    @property
    def reported(self) -> list[int]:
        events: list[Event] = self.run.sent
        return [event.step for event in events if isinstance(event, Step)]


@pytest.mark.parametrize("left", [Left(), Left(seconds=0.0), Left(step=None), Left(seconds=4.9)])
def test_a_rescue_saves_uncommitted_steps_and_the_process_ends(left: Left) -> None:
    assert not left.ladder.goes_on_after(LOST)
    assert left.saved == [(13, CommitReason.PEER_LOST)]


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(Left(rescues=False), id="a part of the state"),
        pytest.param(Left(done=None), id="before the first step"),
        pytest.param(Left(done=0, step=None), id="nothing done"),
        pytest.param(Left(done=10), id="nothing new"),
        pytest.param(Left(step=None, saved_before=13), id="saved in the attempt before"),
        pytest.param(Left(seconds=5.1), id="longer than it is given"),
        pytest.param(Left(has_storage=False), id="no storage"),
    ],
)
def test_a_rescue_needs_new_steps_time_storage_and_the_whole_state(left: Left) -> None:
    assert not left.ladder.goes_on_after(LOST)
    assert left.saved == []


@pytest.mark.parametrize(("rank", "reported"), [(0, []), (2, [13])])
def test_another_rank_than_0_reports_its_last_step_before_it_saves(rank: int, reported: list[int]) -> None:
    left = Left(rank=rank)
    left.ladder.save_without_peers()
    assert left.saved == [(13, CommitReason.PEER_LOST)]
    assert left.reported == reported


@pytest.mark.parametrize(("every", "reported"), [(None, [13]), (5, [13]), (1, [])])
def test_a_rank_that_cannot_save_reports_its_last_step_unless_a_snapshot_would_have(every: int | None, reported: list[int]) -> None:
    left = Left(rank=2, rescues=False, every=every)
    left.ladder.save_without_peers()
    assert left.saved == []
    assert left.reported == reported


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_keeps_its_state_in_memory_writes_nothing_to_the_storage(rank: int) -> None:
    left = Left(rank=rank, is_kept=True)
    left.ladder.save_without_peers()
    assert (left.stored, left.saved) == ([13], [])
    assert left.reported == [13]


def test_a_rank_without_a_state_stores_none_in_memory() -> None:
    left = Left(done=None, is_kept=True)
    left.ladder.save_without_peers()
    assert left.stored == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StorageUnavailable("no space is left"), "no space is left$"),
        (RuntimeError("aborted"), r"RuntimeError: aborted \(.*test_rescue.py, line \d+\)$"),
    ],
)
def test_a_failed_rescue_is_reported(error: Exception, cause: str) -> None:
    left = Left(error=error)
    assert not left.ladder.goes_on_after(LOST)
    ((reason, message),) = left.run.notices
    assert reason is NoticeReason.RESCUE_FAILED
    assert re.match(f"the peers are gone, and step 13 could not be saved: {cause}", message)
