"""Rescues: a rank saves what it has after it lost its peers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from muster_contract.errors import PeerLost, StorageUnavailable
from muster_contract.events import Event, Step
from muster_contract.notices import NoticeReason
from muster_trainer.training.loop import Training


class Left:
    """A training at step 13 that has lost its peers. It has saved step 10 in two seconds."""

    def __init__(
        self,
        *,
        rank: int = 0,
        rescues: bool = True,
        done: int | None = 13,
        seconds: float = 2.0,
        step: int | None = 10,
        saved_before: int | None = None,
    ) -> None:
        self.stored: list[int] = []
        self.has_memory = self._delays_events = False
        self.engine = SimpleNamespace(rank=rank, rescues=rescues, store_in_memory=self._record_store)
        self.task = SimpleNamespace(config=SimpleNamespace(nanLoss="Skip"))
        self.done, self.saved_before = done, saved_before
        self.last = Step(step=done, loss="0.5") if done is not None else None
        self.sent: list[Event] = []
        self.summaries = SimpleNamespace(close=lambda: None)
        self.saver: Any = SimpleNamespace(step=step, seconds=seconds, rescue=self._save)
        self.events = SimpleNamespace(emit=self.sent.append, phase=lambda phase: None, notice=self._notice)
        self.saved: list[Any] = []
        self.notices: list[tuple[NoticeReason, str]] = []
        self.error: Exception | None = None

    def _manifest(self, step: int, reason: str) -> tuple[int, str]:
        return step, reason

    def _save(self, manifest: tuple[int, str]) -> None:
        if self.error:
            raise self.error
        self.saved.append(manifest)

    def _record_store(self, step: int, event: str | None) -> bool:
        if self.has_memory:
            self.stored.append(step)
        return self.has_memory

    def _last_as_text(self) -> str | None:
        return None

    def _store_in_memory(self) -> bool:
        return Training._store_in_memory(self)  # type: ignore[arg-type]

    def _notice(self, reason: NoticeReason, message: str) -> None:
        self.notices.append((reason, message))

    def _wait_for_next_world(self, error: PeerLost) -> bool:
        return False

    def _train(self) -> None:
        raise PeerLost("rank 0: connection closed")

    def _rescue(self) -> None:
        Training._rescue(self)  # type: ignore[arg-type]


@pytest.mark.parametrize("left", [Left(), Left(seconds=0.0), Left(step=None), Left(seconds=4.9)])
def test_a_rescue_saves_uncommitted_steps_and_the_error_is_the_lost_peer(left: Left) -> None:
    with pytest.raises(PeerLost, match="connection closed"):
        Training.run(left)  # type: ignore[arg-type]
    assert left.saved == [(13, "PeerLost")]


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(Left(rescues=False), id="a part of the state"),
        pytest.param(Left(done=None), id="before the first step"),
        pytest.param(Left(done=0, step=None), id="nothing done"),
        pytest.param(Left(done=10), id="nothing new"),
        pytest.param(Left(step=None, saved_before=13), id="saved in the attempt before"),
        pytest.param(Left(seconds=5.1), id="longer than it is given"),
    ],
)
def test_a_rescue_needs_new_steps_time_and_the_whole_state(left: Left) -> None:
    left._rescue()
    assert left.saved == []


@pytest.mark.parametrize(("rank", "reported"), [(0, []), (2, [13])])
def test_another_rank_than_0_reports_its_last_step_before_it_saves(rank: int, reported: list[int]) -> None:
    left = Left(rank=rank)
    left._rescue()
    assert left.saved == [(13, "PeerLost")]
    assert [event.step for event in left.sent if isinstance(event, Step)] == reported


@pytest.mark.parametrize(("delays", "reported"), [(False, [13]), (True, [])])
def test_a_rank_that_cannot_save_reports_its_last_step_if_no_snapshot_is_due(delays: bool, reported: list[int]) -> None:
    left = Left(rank=2, rescues=False)
    left._delays_events = delays
    left._rescue()
    assert left.saved == []
    assert [event.step for event in left.sent if isinstance(event, Step)] == reported


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_keeps_its_state_in_memory_writes_nothing_to_the_storage(rank: int) -> None:
    left = Left(rank=rank)
    left.has_memory = True
    left._rescue()
    assert (left.stored, left.saved) == ([13], [])
    assert [event.step for event in left.sent if isinstance(event, Step)] == [13]


def test_a_rescue_needs_storage() -> None:
    left = Left()
    left.saver = None
    left._rescue()
    assert left.saved == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StorageUnavailable("no space is left"), "no space is left$"),
        (RuntimeError("aborted"), r"RuntimeError: aborted \(.*test_rescue.py, line \d+\)$"),
    ],
)
def test_a_failed_rescue_is_reported_and_the_error_is_the_lost_peer(error: Exception, cause: str) -> None:
    left = Left()
    left.error = error
    with pytest.raises(PeerLost):
        Training.run(left)  # type: ignore[arg-type]
    ((reason, message),) = left.notices
    assert reason is NoticeReason.RESCUE_FAILED
    assert re.match(f"the peers are gone, and step 13 could not be saved: {cause}", message)
