"""What users read about capacity classes: which role waits for one, has fallen back, or goes back."""

from __future__ import annotations

from muster.api.chosen_classes import classes_of
from muster.api.status import CapacityStatus, Reason, TrainingJobStatus
from muster.lifecycle.facts import capacity
from muster.lifecycle.facts.facts import Facts


def capacity_sentence(status: TrainingJobStatus, facts: Facts) -> str:
    """What the roles with an entry in the status do. Empty if all have nodes of the class that they prefer."""
    return "; ".join(_sentence(entry, status, facts) for entry in status.capacity)


def capacity_reason(status: TrainingJobStatus) -> Reason:
    if any(len(entry.classes) > 1 for entry in status.capacity):
        return Reason.FELL_BACK
    return Reason.RETURNING if any(entry.returning for entry in status.capacity) else Reason.WAITING_FOR_CLASS


def _sentence(entry: CapacityStatus, status: TrainingJobStatus, facts: Facts) -> str:
    names, given = classes_of(facts.spec, entry.role), facts.spec.scheduling.capacity
    seconds = given.fallback_after_seconds if given else 0
    tried, next_one = entry.classes[:-1], names[len(entry.classes)] if len(entry.classes) < len(names) else ""
    if entry.returning:
        workers = "1 worker goes" if entry.returning == 1 else f"{entry.returning} workers go"
        return f"{workers} back to class {names[0]} once it has nodes"
    said = f"no node of class {_either(tried)} for {seconds} s, so pods of {entry.role} may also use {entry.classes[-1]}" if tried else ""
    if entry.waiting_since is None:
        time = capacity.return_time(entry.role, status, facts)
        return f"{said}, until {time:%H:%M:%S} UTC at least" if time else said
    now = "they wait for such nodes now" if tried else f"pods of {entry.role} wait for nodes of class {_either(entry.classes)}"
    time = capacity.fallback_time(entry.role, status, facts)
    later = f" and may use {next_one} too from {time:%H:%M:%S} UTC" if time else ""
    return f"{said}; {now}{later}" if tried else f"{now}{later}"


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names)
