"""The capacity classes that a pod may use: a function of spec and status, so that every leader asks for the same."""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec import Capacity, RoleName, TrainingJobSpec
from muster.api.status import CapacityStatus, TrainingJobStatus

Names = tuple[str, ...]


def classes_of(spec: TrainingJobSpec, role: RoleName, index: int | None = None) -> Names:
    """The classes of a role, the preferred one first. With `index`, those that its limits leave to this replica. Empty: any node."""
    capacity = spec.scheduling.capacity
    if capacity is None:
        return ()
    names = capacity.roles.get(role, capacity.classes)
    return tuple(names if index is None else within_limits(capacity, names, index))


def within_limits(capacity: Capacity, names: Sequence[str], index: int) -> list[str]:
    """The classes that a replica with this index may use. A limit leaves the class to the replicas with the lowest indexes."""
    return [name for name in names if index < capacity.limits.get(name, index + 1)]


def allowed(spec: TrainingJobSpec, status: TrainingJobStatus, role: RoleName, index: int, *, standby: bool = False) -> Names:
    """The classes that a pod of this replica asks for now: the preferred one, and those to which its role has fallen back."""
    capacity, entry = spec.scheduling.capacity, entry_of(status, role)
    if capacity is None:
        return ()
    if standby and capacity.spares is not None and not (entry and entry.returning):
        return tuple(capacity.spares)
    names, within = classes_of(spec, role), classes_of(spec, role, index)
    tried = names[: level(names, entry) + 1]
    return tuple(name for name in within if name in tried) or within[:1]


def level(names: Names, entry: CapacityStatus | None) -> int:
    """How far a role has fallen back: the position of the last class that it may use."""
    return max((number for number, name in enumerate(names) if entry and name in entry.classes), default=0)


def entry_of(status: TrainingJobStatus, role: RoleName) -> CapacityStatus | None:
    return next((each for each in status.capacity if each.role == role), None)
