"""The capacity classes that a pod may use: a function of spec and status, so that every leader asks for the same."""

from __future__ import annotations

from muster.api.spec import RoleName, TrainingJobSpec
from muster.api.status import CapacityStatus, TrainingJobStatus

Names = tuple[str, ...]


def classes_of(spec: TrainingJobSpec, role: RoleName, place: int | None = None) -> Names:
    """The classes of a role, the preferred one first. Empty: any node. `place` is that of a replica among the members of the role, and
    selects the classes that the limits leave to it: a limit gives a class to the first places."""
    capacity = spec.scheduling.capacity
    if capacity is None:
        return ()
    names = capacity.roles.get(role, capacity.classes)
    return tuple(name for name in names if place is None or place < capacity.limits.get(name, place + 1))


def allowed(spec: TrainingJobSpec, status: TrainingJobStatus, role: RoleName, index: int, *, standby: bool = False) -> Names:
    """The classes that a pod of this replica asks for now: the preferred one, and those to which its role has fallen back. Limits do not
    count replicas that stand by."""
    capacity, entry = spec.scheduling.capacity, entry_of(status, role)
    if capacity is None:
        return ()
    if standby and capacity.spares is not None and not (entry and entry.returning):
        return tuple(capacity.spares)
    names = classes_of(spec, role)
    within = names if standby or not capacity.limits else classes_of(spec, role, _place(status, role, index))
    tried = names[: level(names, entry) + 1]
    return tuple(name for name in within if name in tried) or within[:1]


def level(names: Names, entry: CapacityStatus | None) -> int:
    """How far a role has fallen back: the position of the last class that it may use."""
    return max((number for number, name in enumerate(names) if entry and name in entry.classes), default=0)


def entry_of(status: TrainingJobStatus, role: RoleName) -> CapacityStatus | None:
    return next((each for each in status.capacity if each.role == role), None)


def _place(status: TrainingJobStatus, role: RoleName, index: int) -> int:
    """The place of a replica among the members of its role. A worker that has taken the place of another one has that place."""
    members = (member.index for member in (status.world.members if status.world else ()) if member.role == role)
    return next((place for place, member in enumerate(members) if member == index), index)
