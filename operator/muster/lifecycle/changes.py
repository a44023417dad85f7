"""What changed between two statuses of a job. Kubernetes Events and the lines of a local run both show these changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from muster.api.status import AttemptRecord, Condition, ConditionType, Notice, TrainingJobStatus
from muster.lifecycle.facts.failure import DEVICE_REASONS


@dataclass(frozen=True)
class AttemptChange:
    """One attempt of the new status, together with its record in the old status."""

    record: AttemptRecord
    old: AttemptRecord | None
    """The record in the old status. None if the attempt is new."""
    previous: AttemptRecord | None
    """The attempt before it, in the new status."""

    @property
    def is_corrected(self) -> bool:
        """Whether the new status has another failure class for this attempt."""
        old = self.old.failure_class if self.old else None
        return old is not None and self.record.failure_class not in (None, old)

    @property
    def has_settled(self) -> bool:
        """Whether the cause of the failure has just become final."""
        return self.record.failure_class is not None and self.record.settled and not (self.old and self.old.settled)

    @property
    def has_stacks(self) -> bool:
        """Whether the stacks of the hang were just reported."""
        return bool(self.record.stacks) and not (self.old and self.old.stacks)

    @property
    def blames_a_device(self) -> bool:
        """Whether Muster has just found that a device caused the failure."""
        return self.record.reason in DEVICE_REASONS and not (self.old and self.old.reason is self.record.reason)

    @property
    def has_resumed(self) -> bool:
        return self.record.step_resumed is not None and (self.old is None or self.old.step_resumed is None)

    @property
    def has_recovered(self) -> bool:
        """Whether the attempt has just recovered from the failure of the attempt before it."""
        follows_failure = self.previous is not None and self.previous.failure_class is not None
        return follows_failure and self.record.phases is not None and (self.old is None or self.old.phases is None)


def attempt_changes(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[AttemptChange]:
    """All attempts of the new status, oldest first."""
    before = {record.attempt: record for record in old.attempts}
    for previous, record in zip((None, *new.attempts), new.attempts, strict=False):
        yield AttemptChange(record, before.get(record.attempt), previous)


def new_notices(old: TrainingJobStatus, new: TrainingJobStatus) -> list[Notice]:
    return [notice for notice in new.notices if notice not in old.notices]


def changed_condition(old: TrainingJobStatus, new: TrainingJobStatus, kind: ConditionType, *, holds: bool) -> Condition | None:
    """The condition, if its status is now `holds` and its message is new. None otherwise."""
    before, after = old.condition(kind), new.condition(kind)
    has_status = after is not None and after.status == ("True" if holds else "False")
    return after if has_status and after and (before is None or before.message != after.message) else None
