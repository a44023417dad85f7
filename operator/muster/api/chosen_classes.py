"""The capacity classes that a pod may use: a function of spec and status, so that every leader asks for the same."""

from __future__ import annotations

from muster.api.spec import RoleName, TrainingJobSpec
from muster.api.status import CapacityStatus, TrainingJobStatus

Names = tuple[str, ...]


def classes_of(spec: TrainingJobSpec, role: RoleName) -> Names:
    """The classes of a role, the preferred one first. Empty: any node."""
    capacity = spec.scheduling.capacity
    return tuple(capacity.roles.get(role, capacity.classes)) if capacity else ()


def classes_at(spec: TrainingJobSpec, role: RoleName, place: int, *, count: int) -> Names:
    """The classes that the limits leave to the member at a place of `count` members of its role. Each limited class has as many places in a
    row: those after the places of the classes before it, so that limits divide a role, or else the last ones."""
    names, capacity = classes_of(spec, role), spec.scheduling.capacity
    limits = capacity.limits if capacity else {}
    found, before = [], 0
    for name in names:
        limit = limits.get(name)
        start = 0 if limit is None else min(before, max(0, count - limit))
        if limit is None or start <= place < start + limit:
            found.append(name)
        before += limit or 0
    return tuple(found)


def allowed(spec: TrainingJobSpec, status: TrainingJobStatus, role: RoleName, index: int, *, standby: bool = False) -> Names:
    """The classes that a pod of this replica asks for now: the preferred one, and those to which its role has fallen back. Limits do not
    count replicas that stand by."""
    capacity, entry = spec.scheduling.capacity, entry_of(status, role)
    if capacity is None:
        return ()
    if standby and capacity.spares is not None and not (entry and entry.returning):
        return tuple(capacity.spares)
    names = classes_of(spec, role)
    within = names if standby or not capacity.limits else _at_its_place(spec, status, role, index)
    tried = names[: level(names, entry) + 1]
    return tuple(name for name in within if name in tried) or within[:1] or names[:1]


def level(names: Names, entry: CapacityStatus | None) -> int:
    """How far a role has fallen back: the position of the last class that it may use."""
    return max((number for number, name in enumerate(names) if entry and name in entry.classes), default=0)


def entry_of(status: TrainingJobStatus, role: RoleName) -> CapacityStatus | None:
    return next((each for each in status.capacity if each.role == role), None)


def _at_its_place(spec: TrainingJobSpec, status: TrainingJobStatus, role: RoleName, index: int) -> Names:
    """The classes of a member. A worker that has taken the place of another one has that place."""
    places = status.world.places.get(role, {}) if status.world else {}
    count = len(places) or (spec.roles[role].replicas if role in spec.roles else 1)
    return classes_at(spec, role, places.get(index, index), count=count)
