"""Additions to the affinity and the annotations of a pod. What its template has stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

_RULES = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
Pod = dict[str, Any]
Spec = dict[str, Any]
Term = dict[str, Any]


def annotated(pod: Pod, name: str, values: Sequence[str]) -> Pod:
    """The pod with an annotation of Muster, which has the values with commas between them. Without values, also its template cannot set
    it."""
    metadata = pod["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != name}
    if values:
        annotations[name] = ",".join(values)
    if not annotations and "annotations" not in metadata:
        return pod
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def requiring(spec: Spec, terms: Sequence[Term]) -> Spec:
    """The spec of a pod that runs only on nodes of one of the terms. Each alternative of its template is combined with each term."""
    own = (_of(spec, "nodeAffinity").get(_RULES) or {}).get("nodeSelectorTerms") or [{}]
    return _with(spec, "nodeAffinity", _RULES, {"nodeSelectorTerms": [_both(one, other) for one in own for other in terms]})


def preferring(spec: Spec, kind: Literal["nodeAffinity", "podAffinity", "podAntiAffinity"], *weighted: Term) -> Spec:
    """The spec of a pod with further preferences, each a term with a weight."""
    return _with(spec, kind, _PREFERRED, [*(_of(spec, kind).get(_PREFERRED) or ()), *weighted])


def apart(spec: Spec, label_sets: Sequence[dict[str, str]]) -> Spec:
    """The spec of a pod that does not run on a node of a pod with one of these sets of labels."""
    terms = [{"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": labels}} for labels in label_sets]
    return _with(spec, "podAntiAffinity", _RULES, [*(_of(spec, "podAntiAffinity").get(_RULES) or ()), *terms])


def _of(spec: Spec, kind: str) -> dict[str, Any]:
    return (spec.get("affinity") or {}).get(kind) or {}


def _with(spec: Spec, kind: str, part: str, value: object) -> Spec:
    return {**spec, "affinity": {**(spec.get("affinity") or {}), kind: {**_of(spec, kind), part: value}}}


def _both(one: Term, other: Term) -> Term:
    """A term that holds if both hold."""
    return {**one, **{key: [*(one.get(key) or ()), *requirements] for key, requirements in other.items()}}
