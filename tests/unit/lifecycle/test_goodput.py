"""Where did the time go?"""

from __future__ import annotations

import pytest
from lifecycle_cases import at, failed, replica, report, running, running_story

from muster.api.status import Goodput
from muster.lifecycle.goodput import _PARTS


def total(books: Goodput) -> float:
    return sum(getattr(books, part) for part in _PARTS)


def test_every_second_is_in_one_part_and_lost_steps_move_theirs() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=15)
    story.see(replica(report=report(step=50, checkpoint={"step": 40, "path": "c"})), seconds=65)
    story.see(failed(code=31, seconds=65, report=report(step=50)), seconds=65.5)
    story.see(seconds=67)
    story.see(replica(attempt=1), seconds=70)
    story.see(replica(attempt=1, report=report(attempt=1, step=41, resumed={"found": 40, "step": 40, "path": "c"})), seconds=75)
    story.see(replica(attempt=1, phase="Succeeded", last_words=None), seconds=100)
    books = story.status.goodput
    assert books is not None
    assert total(books) == pytest.approx(100)
    assert books.queued_seconds == pytest.approx(10)
    assert books.starting_seconds == pytest.approx(5)
    assert books.recovering_seconds == pytest.approx(10), "from the failure on, not from when it was seen"
    assert books.redone_seconds == pytest.approx(50 * 9 / 50, abs=0.1)
    assert books.productive_seconds + books.redone_seconds == pytest.approx(75)
    assert books.ratio == pytest.approx(books.productive_seconds / 100, abs=0.001)


def test_time_suspended_is_not_held_against_the_job() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=10)
    story.edit(suspend=True)
    story.see(*running(1), seconds=110)
    story.see(seconds=120)
    story.edit(suspend=False)
    story.see(seconds=1120)
    books = story.status.goodput
    assert books is not None
    assert (books.suspended_seconds, books.productive_seconds) == (1010, 100)
    assert books.ratio == pytest.approx(100 / 110, abs=0.001)


def test_a_script_that_tells_no_steps_is_productive_while_it_runs() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(replica(phase="Succeeded"), seconds=110)
    assert story.status.goodput is not None
    assert story.status.goodput.productive_seconds == 100


def test_nothing_is_booked_after_the_end() -> None:
    story = running_story(1)
    story.see(replica(phase="Succeeded"), seconds=110)
    books = story.status.goodput
    story.see(seconds=5000)
    assert story.status.goodput == books


def test_saves_are_booked_by_what_they_took_and_never_more_than_there_was() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=1)), seconds=15)
    story.see(replica(report=report(step=20, saved_seconds=2.5, phase="Saving")), seconds=65)
    story.see(replica(report=report(step=40, saved_seconds=4)), seconds=115)
    books = story.status.goodput
    assert books is not None
    assert (books.checkpoint_seconds, books.productive_seconds) == (4, 96)
    story.see(replica(report=report(step=60, saved_seconds=1e6)), seconds=155)
    assert story.status.goodput is not None
    assert story.status.goodput.productive_seconds == 0
    assert total(story.status.goodput) == 155


def test_the_time_in_which_a_world_hung_was_not_productive() -> None:
    story = running_story(1, recovery={"hang": {"stepSeconds": 60}})
    story.see(replica(report=report(step=1, at_second=15), reported=at(15)), seconds=15)
    story.see(replica(report=report(step=20, at_second=100), reported=at(100)), seconds=100)
    story.see(replica(report=report(step=20, idleSeconds=65), reported=at(165)), seconds=165)
    books = story.status.goodput
    assert books is not None
    assert (books.productive_seconds, books.recovering_seconds) == (85, 65)
