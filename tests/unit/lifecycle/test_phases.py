"""The phases of a recovery, up to the first step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.status import Phases
from muster.control.kubernetes_events import events_between
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, replica, report, running, running_story


def recovered(marks: dict[str, float | None], *, seen: float = 12.0) -> Story:
    """A job whose processes died at 10.125 s, observed at 10.250 s, in place at 10.500 s. Its first step is reported at `seen`."""
    story = running_story(1)
    story.see(replica(report=report(step=7, inPlace=True), reported=at(10)), seconds=10)
    termination = {"code": 137, "attempt": 0, "message": "killed", "endedAt": at(10.125).timestamp()}
    dead = report(step=7, inPlace=True, waiting=True, termination=termination)
    story.see(replica(report=dead, reported=at(10.25)), seconds=10.25)
    story.see(replica(report=report(attempt=1, inPlace=True, waiting=True), reported=at(10.5)), seconds=11.25)
    reported_marks = {name: None if second is None else at(second).timestamp() for name, second in marks.items()}
    story.see(replica(report=report(attempt=1, step=8, inPlace=True, marks=reported_marks), reported=at(seen)), seconds=seen)
    return story


@pytest.mark.parametrize(
    ("marks", "phases"),
    [
        ({"restoring": 11.55, "resumed": 11.6, "stepped": 11.8}, [0.125, 1.0, 0.3, 0.05, 0.2]),
        ({"resumed": 11.6, "stepped": 11.8}, [0.125, 1.0, 0.35, 0.0, 0.2]),  # a program of the user
        ({}, [0.125, 1.0, 0.75, 0.0, 0.0]),  # an older image
        ({"restoring": -90, "resumed": 11.6, "stepped": 800}, [0.125, 1.0, 0.0, 0.35, 0.4]),  # a wrong clock
    ],
)
def test_each_phase_has_its_milliseconds(marks: dict[str, float | None], phases: list[float]) -> None:
    measured = recovered(marks).record.phases
    assert measured
    assert list(vars(measured).values()) == phases


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=3), st.floats(11.26, 60))
def test_the_phases_add_up_for_any_clocks(moments: list[float], seen: float) -> None:
    story = recovered(dict(zip(("restoring", "resumed", "stepped"), moments, strict=True)), seen=seen)
    assert story.status.world
    assert story.status.world.first_step_time
    phases: Any = story.record.phases
    assert phases.total_seconds == pytest.approx((story.status.world.first_step_time - at(10.125)).total_seconds(), abs=0.003)
    assert story.status.world.first_step_time <= story.now
    assert min(vars(phases).values()) >= 0


def test_a_first_attempt_has_phases_without_detection() -> None:
    story = running_story(1)
    marks = {"restoring": at(12).timestamp(), "resumed": at(12.5).timestamp(), "stepped": at(13).timestamp()}
    story.see(replica(report=report(step=1, marks=marks)), seconds=14)
    assert story.record.phases == Phases(schedule_seconds=10, start_seconds=2, load_seconds=0.5, first_step_seconds=0.5)


def test_a_recovery_creates_one_event_with_its_phases() -> None:
    story = recovered({"restoring": 11.55, "resumed": 11.6, "stepped": 11.8})
    before = replace(story.status, attempts=(story.status.attempts[0], replace(story.record, phases=None)))
    [event_created] = [event for event in events_between(before, story.status) if event.reason == "Recovered"]
    assert story.record.phases is not None
    assert story.record.phases.total_seconds == pytest.approx(1.675)
    assert absent(event_created.message, "1.68 s", "0.12", "1.00", "0.30", "0.05", "0.20") == []
    assert not [event for event in events_between(story.status, story.status) if event.reason == "Recovered"]


def test_the_event_of_a_recovery_without_steps_names_no_step() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(failed(code=31, seconds=20), seconds=20)
    story.see(seconds=21)
    before = story.status
    story.see(replica(attempt=1), seconds=22.5)
    [event_created] = [event for event in events_between(before, story.status) if event.reason == "Recovered"]
    assert "2.50 s" in event_created.message
    assert "first" not in event_created.message


def test_the_next_attempt_is_due_at_an_exact_millisecond() -> None:
    story = running_story(1)
    termination = {"code": 10, "attempt": 0, "message": "ValueError"}
    story.see(*running(1, report=report(inPlace=True, waiting=True, termination=termination), reported=at(20.875)), seconds=20.875)
    assert story.status.next_attempt_time == at(20.875) + timedelta(seconds=10)
