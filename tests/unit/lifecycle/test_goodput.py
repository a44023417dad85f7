"""Goodput: how the time of a job is split up."""

from __future__ import annotations

import pytest

from muster.api.status import Goodput, Phases
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, replica, report, running, running_story


def total(goodput: Goodput) -> float:
    return sum(seconds or 0.0 for name, seconds in vars(goodput).items() if name.endswith("_seconds"))


def restarted_after_step_50() -> Story:
    """Attempt 0 has done a step a second from second 15 on, has saved step 40, and has failed at second 65. Attempt 1 runs."""
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=15)
    story.see(replica(report=report(step=50, checkpoint={"step": 40, "path": "c"})), seconds=65)
    story.see(failed(code=31, seconds=65, report=report(step=50)), seconds=65.5)
    story.see(seconds=67)
    story.see(replica(attempt=1), seconds=70)
    return story


def test_every_second_is_in_one_part_and_lost_steps_move_to_redone() -> None:
    story = restarted_after_step_50()
    story.see(replica(attempt=1, report=report(attempt=1, step=41, resumed={"committedStep": 40, "step": 40, "path": "c"})), seconds=75)
    story.see(replica(attempt=1, phase="Succeeded", termination=None), seconds=100)
    goodput = story.status.goodput
    assert goodput is not None
    assert total(goodput) == pytest.approx(100)
    assert goodput.queued_seconds == pytest.approx(10)
    assert goodput.starting_seconds == pytest.approx(5)
    assert goodput.recovering_seconds == pytest.approx(10), "from the failure on, not from when it was seen"
    assert goodput.redone_seconds == pytest.approx(10, abs=0.1)
    assert goodput.productive_seconds + goodput.redone_seconds == pytest.approx(75)
    assert goodput.ratio == pytest.approx(goodput.productive_seconds / 100, abs=0.001)


def test_steps_that_are_redone_before_the_first_report_count_as_redone() -> None:
    story = restarted_after_step_50()
    story.see(replica(attempt=1, report=report(attempt=1, step=60, resumed={"committedStep": 40, "step": 40, "path": "c"})), seconds=90)
    goodput = story.status.goodput
    assert goodput is not None
    assert goodput.redone_seconds == pytest.approx(10, abs=0.1)
    assert goodput.productive_steps == 60


def test_suspended_time_does_not_lower_the_goodput() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=10)
    story.edit(suspend=True)
    story.see(*running(1), seconds=110)
    story.see(seconds=120)
    story.edit(suspend=False)
    story.see(seconds=1120)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.suspended_seconds, goodput.productive_seconds) == (1010, 100)
    assert goodput.ratio == pytest.approx(100 / 110, abs=0.001)


def test_the_time_of_a_program_without_steps_is_unreported() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(replica(phase="Succeeded"), seconds=110)
    goodput = story.status.goodput
    assert goodput == Goodput(queued_seconds=10.0, unreported_seconds=100.0)


def test_a_script_is_starting_until_its_first_step() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(replica(), seconds=20)
    story.see(replica(report=report(step=1)), seconds=30)
    assert story.status.message == "training"
    story.see(replica(report=report(step=50)), seconds=110)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.unreported_seconds, goodput.starting_seconds, goodput.productive_seconds) == (None, 20, 80)
    assert goodput.ratio == pytest.approx(80 / 110, abs=0.001)


@pytest.mark.parametrize("trainer", [{"script": "train.py"}, {"task": "digits"}])
def test_steps_done_before_the_first_report_of_them_were_productive(trainer: dict[str, str]) -> None:
    story = running_story(1, trainer=trainer)
    story.see(replica(report=report(step=30, marks={"stepped": at(15).timestamp()})), seconds=20)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.starting_seconds, goodput.productive_seconds, goodput.unreported_seconds) == (5, 5, None)
    assert total(goodput) == 20


def test_the_recovery_of_a_program_without_steps_ends_when_it_runs() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(failed(seconds=19), seconds=20)
    story.see(failed(seconds=19), seconds=30)
    story.see(replica(attempt=1, phase="Pending"), seconds=31)
    story.see(replica(attempt=1), seconds=33)
    assert story.record.phases is not None
    assert story.record.phases == Phases(detect_seconds=1.0, schedule_seconds=13.0)
    story.see(replica(attempt=1, phase="Succeeded"), seconds=50)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.recovering_seconds, goodput.unreported_seconds, goodput.ratio) == (14, 26, None)


def test_no_time_is_counted_after_the_end() -> None:
    story = running_story(1)
    story.see(replica(phase="Succeeded"), seconds=110)
    goodput = story.status.goodput
    story.see(seconds=5000)
    assert story.status.goodput == goodput


def test_saves_count_their_time_but_never_more_than_the_job_has() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=15)
    story.see(replica(report=report(step=20, saved_seconds=2.5, phase="Saving")), seconds=65)
    story.see(replica(report=report(step=40, saved_seconds=4)), seconds=115)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.checkpoint_seconds, goodput.productive_seconds) == (4, 96)
    story.see(replica(report=report(step=60, saved_seconds=1e6)), seconds=155)
    assert story.status.goodput is not None
    assert story.status.goodput.productive_seconds == 0
    assert total(story.status.goodput) == 155


def test_the_time_of_a_hang_is_not_productive() -> None:
    story = running_story(1, recovery={"hang": {"stepSeconds": 60}})
    story.see(replica(report=report(step=1, at_second=15), reported=at(15)), seconds=15)
    story.see(replica(report=report(step=20, at_second=100), reported=at(100)), seconds=100)
    story.see(replica(report=report(step=20, idleSeconds=65), reported=at(165)), seconds=165)
    goodput = story.status.goodput
    assert goodput is not None
    assert (goodput.productive_seconds, goodput.recovering_seconds) == (85, 65)
