"""Events that a program of the user's may write."""

from __future__ import annotations

import pytest

from muster_contract.events import MAX_ENTRIES, PROPERTY, Commit, CommitReason, Fingerprint, PhaseEvent, decode_event


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("Stop", CommitReason.STOP), ("Nightly", CommitReason.PERIODIC), (7, CommitReason.PERIODIC), (None, CommitReason.PERIODIC)],
)
def test_an_unknown_reason_of_a_commit_is_periodic(reason: object, expected: CommitReason) -> None:
    event = decode_event({"event": "commit", "step": 3, "reason": reason})
    assert isinstance(event, Commit)
    assert event.reason is expected


def test_a_program_may_report_an_activity_of_its_own() -> None:
    event = decode_event({"event": "phase", "phase": "Tokenizing"})
    assert isinstance(event, PhaseEvent)
    assert event.phase == "Tokenizing"


def test_only_the_first_items_of_a_property_are_read() -> None:
    """A report of a pod may have sixty thousand of them."""
    event = decode_event({"event": "fingerprint", "python": ["x"] * MAX_ENTRIES + [["y"]], "framework": [], "version": [["y"]]})
    assert isinstance(event, Fingerprint)
    assert (event.python, event.framework, event.version) == (", ".join(["x"] * MAX_ENTRIES)[:PROPERTY], "", None)
