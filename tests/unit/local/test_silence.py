"""A supervisor that sends no report counts as silent after some seconds, unless `muster run` itself stood still."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from muster.local.silence import LONGEST_PAUSE, SECONDS, Silence

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = 0.25


def looks(silence: Silence, reported: dict[str, datetime], seconds: float) -> set[str]:
    """The silent supervisors after regular looks for these seconds."""
    silent: set[str] = set()
    for _ in range(round(seconds / LOOK)):
        silent = silence.look(reported, LOOK)
    return silent


def test_only_the_supervisor_that_sends_no_new_report_is_silent() -> None:
    silence = Silence()
    silence.look({"a": BEGAN, "b": BEGAN}, LOOK)
    assert looks(silence, {"a": BEGAN, "b": BEGAN}, SECONDS - LOOK) == set()
    assert silence.look({"a": BEGAN, "b": BEGAN + timedelta(seconds=7)}, LOOK) == {"a"}


def test_a_report_ends_the_silence_before_it() -> None:
    silence = Silence()
    looks(silence, {"a": BEGAN}, SECONDS - LOOK)
    later = BEGAN + timedelta(seconds=7)
    silence.look({"a": later}, LOOK)
    assert looks(silence, {"a": later}, SECONDS - LOOK) == set()
    assert silence.look({"a": later}, LOOK) == {"a"}


def test_a_pause_of_muster_run_itself_counts_little() -> None:
    silence = Silence()
    silence.look({"a": BEGAN}, LOOK)
    assert silence.look({"a": BEGAN}, 3600.0) == set()
    assert looks(silence, {"a": BEGAN}, SECONDS - LONGEST_PAUSE - LOOK) == set()
    assert silence.look({"a": BEGAN}, LOOK) == {"a"}


def test_a_replica_that_has_ended_is_forgotten() -> None:
    silence = Silence()
    looks(silence, {"a": BEGAN}, SECONDS)
    silence.look({}, LOOK)
    assert looks(silence, {"a": BEGAN}, SECONDS) == set()
