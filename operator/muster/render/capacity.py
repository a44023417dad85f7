"""Capacity classes in a pod: an affinity to nodes of the classes that it may use, and their tolerations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.api.capacity import DEFAULT_CLASSES, Classes, NodeSelectorTerm
from muster.api.constants import CAPACITY_CLASSES_ANNOTATION
from muster.api.problems import InvalidJobError, Problem
from muster.render.defaults import JobDefaults
from muster.render.pod_changes import annotated, preferring, requiring


def known_classes(defaults: Sequence[JobDefaults]) -> Classes | None:
    """The classes of the installation. None outside one, as in `muster render`."""
    return next((each.classes for each in defaults if each.classes is not None), None)


def with_classes(pod: dict[str, Any], names: Sequence[str], defaults: Sequence[JobDefaults]) -> dict[str, Any]:
    """The pod with a rule for nodes of one of these classes, a preference for the earlier ones, and the tolerations of all. Each
    alternative of its template is combined with each of the classes. No names leave the pod as it is.

    Outside an installation, classes that are no default ones are left out, because nobody knows their labels there."""
    pod = annotated(pod, CAPACITY_CLASSES_ANNOTATION, names)
    if not names:
        return pod
    known = known_classes(defaults)
    classes = DEFAULT_CLASSES if known is None else known
    if known is not None and (unknown := [name for name in names if name not in known]):
        raise InvalidJobError([Problem("spec.scheduling.capacity", f"{unknown[0]} is no class of this installation")])
    return {**pod, "spec": _placed(pod["spec"], [name for name in names if name in classes], classes)}


def _placed(spec: dict[str, Any], names: Sequence[str], classes: Classes) -> dict[str, Any]:
    terms = {name: [_wire(term) for term in classes[name].node_selector_terms] for name in names}
    if not terms:
        return spec
    weights = {name: max(1, 100 >> number) for number, name in enumerate(names[:-1])}  # the last one needs no preference
    preferred = [{"weight": weight, "preference": term} for name, weight in weights.items() for term in terms[name]]
    spec = requiring(spec, [term for name in names for term in terms[name]])
    if preferred:
        spec = preferring(spec, "nodeAffinity", *preferred)
    tolerations = list(spec.get("tolerations") or ())
    for each in (toleration.wire() for name in names for toleration in classes[name].tolerations):
        if each not in tolerations:
            tolerations.append(each)
    return {**spec, "tolerations": tolerations} if tolerations else spec


def _wire(term: NodeSelectorTerm) -> dict[str, Any]:
    """The term as in a pod: without empty lists."""
    return {
        key: [{name: value for name, value in each.items() if value != []} for each in values]
        for key, values in term.wire().items()
        if values
    }
