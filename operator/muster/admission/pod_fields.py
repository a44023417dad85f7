"""Checks the fields of a pod's spec against the types of Kubernetes, which `deploy/pod_fields.py` writes into `pod_fields.json`.

A field that resembles one of Kubernetes is a slip and refused. Any other unknown field may be of a newer Kubernetes, so it only gets a
remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from muster.admission.paths import step
from muster.admission.sentences import MAX_LISTED, MAX_PROBLEMS, nearest, not_a_number, not_one_of, not_text, shown
from muster.api.problems import Problem

ROOT = "PodSpec"
NAMED_LISTS = ("containers", "initContainers", "env", "volumes")
"""Lists that `template.py` checks, because their items are merged by name."""

_SLIP = 0.75
"""How similar an unknown name is to that of a field if it is a slip, from 0 to 1."""
_PULL = ("Always", "IfNotPresent", "Never")
_VALUES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Toleration", "operator"): ("Exists", "Equal", "Lt", "Gt"),
    ("Toleration", "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("NodeSelectorRequirement", "operator"): ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    ("LabelSelectorRequirement", "operator"): ("In", "NotIn", "Exists", "DoesNotExist"),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("TopologySpreadConstraint", "nodeAffinityPolicy"): ("Honor", "Ignore"),
    ("TopologySpreadConstraint", "nodeTaintsPolicy"): ("Honor", "Ignore"),
    ("Container", "imagePullPolicy"): _PULL,
    ("ImageVolumeSource", "pullPolicy"): _PULL,
    ("Container", "restartPolicy"): ("Always", "OnFailure", "Never"),
    ("Container", "terminationMessagePolicy"): ("File", "FallbackToLogsOnError"),
    ("ContainerPort", "protocol"): ("TCP", "UDP", "SCTP"),
    ("HTTPGetAction", "scheme"): ("HTTP", "HTTPS"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("PreemptLowerPriority", "Never"),
    ("PodOS", "name"): ("linux", "windows"),
    ("PodSecurityContext", "fsGroupChangePolicy"): ("OnRootMismatch", "Always"),
    ("PodSecurityContext", "supplementalGroupsPolicy"): ("Merge", "Strict"),
    ("SeccompProfile", "type"): ("RuntimeDefault", "Localhost", "Unconfined"),
    ("AppArmorProfile", "type"): ("RuntimeDefault", "Localhost", "Unconfined"),
    ("SecurityContext", "procMount"): ("Default", "Unmasked"),
    ("VolumeMount", "mountPropagation"): ("None", "HostToContainer", "Bidirectional"),
    ("VolumeMount", "recursiveReadOnly"): ("Disabled", "IfPossible", "Enabled"),
}
"""The words of fields that take only certain words. The client of Kubernetes has them in prose only."""

_GPUS = "resources: {limits: {nvidia.com/gpu: 1}}"
_CLAIM = "persistentVolumeClaim: {claimName: name}"
_MEANT: Mapping[tuple[str, str], str] = {
    **{("Container", name): _GPUS for name in ("gpu", "gpus")},
    **{("Container", name): "env: [{name: NAME, value: text}]" for name in ("environment", "envVars")},
    **{("Volume", name): _CLAIM for name in ("pvc", "claim", "claimName")},
    ("VolumeMount", "path"): "mountPath",
    ("Toleration", "seconds"): "tolerationSeconds",
}
"""What to write for names that other tools have."""


@dataclass
class Findings:
    """What is wrong with a template, and what may be."""

    problems: list[Problem] = field(default_factory=list)
    remarks: list[Problem] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Comparing names takes time, and nobody reads more."""
        return len(self.problems) + len(self.remarks) >= MAX_PROBLEMS


def field_findings(value: Any, path: str, *, kind: str = ROOT) -> Findings:
    """The unknown fields, wrong types and unknown words in the spec of a pod, or in a part of it, at `path`."""
    findings = Findings()
    _check(value, kind, path, findings)
    return findings


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files("muster.admission").joinpath("pod_fields.json").read_text(encoding="utf-8"))
    return table


def _check(value: Any, kind: str, path: str, findings: Findings) -> None:
    if value is None or findings.is_full or kind == "any":
        return
    if kind[0] in "[{":
        _check_each(value, kind[1:-1], path, findings, is_list=kind[0] == "[")
    elif kind in _table()["types"]:
        _check_object(value, kind, path, findings)
    elif message := _wrong_type(value, kind):
        findings.problems.append(Problem(path, message))


def _check_each(value: Any, kind: str, path: str, findings: Findings, *, is_list: bool) -> None:
    of_objects = kind in _table()["types"]
    is_right_list = isinstance(value, list) and (not of_objects or all(isinstance(each, Mapping) for each in value))
    if is_list and not is_right_list and not path.endswith(NAMED_LISTS):
        message = "must be a list of mappings, as in the spec of a pod" if of_objects else f"must be a list, not {shown(value)}"
        findings.problems.append(Problem(path, message))
        return
    if not is_list and not isinstance(value, Mapping):
        findings.problems.append(Problem(path, "must be a mapping, as in the spec of a pod"))
        return
    for key, each in enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, Mapping) else ():
        if not (of_objects and not isinstance(each, Mapping)) and not str(key).startswith("$"):
            _check(each, kind, step(path, key), findings)


def _check_object(value: Any, kind: str, path: str, findings: Findings) -> None:
    if not isinstance(value, Mapping):
        findings.problems.append(Problem(path, "must be a mapping, as in the spec of a pod"))
        return
    fields = _table()["types"][kind]
    for name, each in value.items():
        here = step(path, name)
        if name.startswith("$") or findings.is_full:
            continue
        if name not in fields:
            _add_unknown(name, kind, here, findings)
        elif (words := _VALUES.get((kind, name))) and isinstance(each, str) and each not in ("", *words):
            findings.problems.append(Problem(here, not_one_of(words, each)))
        else:
            _check(each, fields[name], here, findings)


def _add_unknown(name: str, kind: str, path: str, findings: Findings) -> None:
    types = _table()["types"]
    place, fields = f"{_words(kind)} in Kubernetes {_table()['release']}", list(types[kind])
    other = next(_other_places(name, kind), None)
    slip = None if other else nearest(name, fields, cutoff=_SLIP)
    if other or slip:
        findings.problems.append(Problem(path, f"is not a field of {place}: {other or f'did you mean {slip}?'}"))
        return
    listed = f"; it has {', '.join(fields)}" if len(fields) <= MAX_LISTED else ""
    findings.remarks.append(Problem(path, f"is not a field of {place}, so an API server that does not know it drops it{listed}"))


def _other_places(name: str, kind: str) -> Iterator[str]:
    """Where a field belongs that was written one level too high or too low."""
    types = _table()["types"]
    if meant := _MEANT.get((kind, name)):
        yield f"write {meant}"
    if kind == "PodSpec" and name in types["Container"]:
        yield f"it is one of a container: write containers: [{{name: trainer, {name}: ...}}]"
    if kind == "Container" and name in types["PodSpec"]:
        yield f"it is one of the pod: write template.spec.{name}"


def _words(kind: str) -> str:
    return "a pod's spec" if kind == ROOT else f"{'an' if kind[0] in 'AEIO' else 'a'} {kind}"


def _wrong_type(value: Any, kind: str) -> str | None:
    match kind:
        case "text" if not isinstance(value, str):
            return not_text(value)
        case "number" if not isinstance(value, int) or isinstance(value, bool):
            return not_a_number(value)
        case "truth" if not isinstance(value, bool):
            return f"must be true or false, not {shown(value)}"
    return None
