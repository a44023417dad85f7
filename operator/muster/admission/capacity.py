"""Checks of `spec.scheduling.capacity`. Whether the installation has a class, `acceptance/pod_checks.py` checks."""

from __future__ import annotations

from collections.abc import Iterator

from muster.admission.sentences import not_one_of
from muster.api.capacity import DEFAULT_CLASSES
from muster.api.chosen_classes import classes_at, classes_of
from muster.api.problems import Problem
from muster.api.spec import Capacity, TrainingJobSpec
from muster.strategies.base import Strategy

_FIELD = "spec.scheduling.capacity"


def class_names(capacity: Capacity) -> Iterator[tuple[str, str]]:
    """The classes that a job names, each with its path."""
    for path, names in _lists(capacity):
        yield from ((f"{path}[{number}]", name) for number, name in enumerate(names))
    yield from ((f"{_FIELD}.limits.{name}", name) for name in capacity.limits)


def capacity_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    capacity = spec.scheduling.capacity
    if capacity is None:
        return
    if not any(names for _, names in _lists(capacity)):
        yield Problem(_FIELD, "names no class; write classes: [spot, on-demand], or roles with such lists")
    if spec.scheduling.queue:
        message = "is not possible with scheduling.queue, because the flavors of the queue choose the nodes; leave one of the two out"
        yield Problem(_FIELD, message)
    for role in capacity.roles:
        if role not in strategy.roles:
            yield Problem(f"{_FIELD}.roles", not_one_of(list(strategy.roles), role))
    for path, names in _lists(capacity):
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield Problem(path, f"has {name} more than once; write each class once, the preferred one first")
    if capacity.spares is not None and not spec.recovery.spares:
        yield Problem(f"{_FIELD}.spares", "needs spares; write recovery.spares too, or leave it out")
    yield from _limit_problems(strategy, spec, capacity)
    falls_back = any(len(names) > 1 for path, names in _lists(capacity) if path != f"{_FIELD}.spares")
    if falls_back and capacity.fallback_after_seconds >= spec.startup_deadline_seconds:
        message = (
            f"{capacity.fallback_after_seconds} s are not less than startupDeadlineSeconds ({spec.startup_deadline_seconds}), so the job "
            "would end before it falls back; write less, or a longer startupDeadlineSeconds"
        )
        yield Problem(f"{_FIELD}.fallbackAfterSeconds", message)


def capacity_remarks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Classes that only an installation knows."""
    capacity = spec.scheduling.capacity
    named = class_names(capacity) if capacity else ()
    for name in dict.fromkeys(name for _, name in named if name not in DEFAULT_CLASSES):
        yield Problem(_FIELD, f"class {name} is no default one, so only your cluster knows its nodes; the manifests here do not request it")


def _limit_problems(strategy: Strategy, spec: TrainingJobSpec, capacity: Capacity) -> Iterator[Problem]:
    """Limits that leave no class to some replica, or that limit what no role uses."""
    used = {name for path, names in _lists(capacity) for name in names if path != f"{_FIELD}.spares"}
    for name in capacity.limits:
        if name not in used:
            yield Problem(f"{_FIELD}.limits.{name}", "limits a class that no role uses; add it to classes or roles, or leave the limit out")
        if name in (capacity.spares or ()):
            yield Problem(f"{_FIELD}.limits.{name}", "limits a class of the spares; leave it out of spares, or leave the limit out")
    for role in strategy.roles:
        found = strategy.role(spec, role)
        names = classes_of(spec, role)
        if found is None or not names:
            continue
        replicas = max(found.replicas, spec.elastic.max_replicas if spec.elastic and role == strategy.worker_role else 0)
        served = sum(bool(classes_at(spec, role, place, count=replicas)) for place in range(replicas))
        if served < replicas:
            remedy = f"raise the limit of {' or '.join(names)}, or add a class"
            message = f"give a class to {served} replicas of {role}, and it may have {replicas}; {remedy}"
            yield Problem(f"{_FIELD}.limits", message)


def _lists(capacity: Capacity) -> list[tuple[str, list[str]]]:
    return [
        (f"{_FIELD}.classes", capacity.classes),
        *((f"{_FIELD}.roles.{role}", names) for role, names in capacity.roles.items()),
        (f"{_FIELD}.spares", capacity.spares or []),
    ]
