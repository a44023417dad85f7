"""From what the API server holds to a job that can be decided on, whatever somebody wrote into it.

A job that cannot be read, or not be accepted, still gets an answer: the last version that could, or a stand-in, with what is wrong.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from muster.admission.bounds import bounded, left_out
from muster.admission.changes import changes
from muster.admission.job_policy import UNLIMITED, JobPolicy, violations
from muster.admission.sentences import problem_of
from muster.admission.validate import problems
from muster.api.constants import CONTROLLER
from muster.api.job import Metadata, TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import StrategyName, Trainer, TrainingJobSpec
from muster.api.status import ConditionType, TrainingJobStatus
from muster.control.cluster import Object
from muster.control.defaults import JobDefaults
from muster.lifecycle import records
from muster.render.addresses import ClusterAddresses
from muster.render.form import form_of
from muster.render.images import Images
from muster.render.manifests import render_replica
from muster.strategies.registry import strategy_of

_MOST_REPAIRS = 100

log = logging.getLogger("muster.admission")


@dataclass(frozen=True)
class Admitted:
    """A job to decide on, and what is wrong with it as it is written now."""

    job: TrainingJob
    problems: tuple[Problem, ...]
    form: str
    """What its replicas are made of now."""


@dataclass(frozen=True)
class _Judged:
    generation: int
    spec: TrainingJobSpec
    """The one to go by."""
    problems: tuple[Problem, ...]
    good: TrainingJobSpec | None
    """The last one that nothing was wrong with."""
    form: str


class Admission:
    """Judges each version of a spec once, and remembers the last good one of each job."""

    def __init__(self, images: Images, defaults: JobDefaults, policy: JobPolicy = UNLIMITED) -> None:
        self._images = images
        self._defaults = defaults
        self._policy = policy
        self._judged: dict[str, _Judged] = {}

    def admit(self, obj: Object) -> Admitted:
        """The job to decide on."""
        metadata = Metadata.model_validate(obj["metadata"])
        status = readable_status(obj.get("status"))
        judged = self._judged.get(metadata.uid)
        if judged is None or judged.generation != metadata.generation:
            judged = self._judged[metadata.uid] = self._answered(obj, metadata, status, last=judged)
        return Admitted(TrainingJob(metadata=metadata, spec=judged.spec, status=status), judged.problems, judged.form)

    def forget(self, uid: str) -> None:
        """The job is no more."""
        self._judged.pop(uid, None)

    def _answered(self, obj: Object, metadata: Metadata, status: TrainingJobStatus, *, last: _Judged | None) -> _Judged:
        """The judgement, also where there is a job that a check of ours breaks on: it is not valid, and its user is told."""
        try:
            return self._judge(obj, metadata, status, last=last)
        except Exception as error:
            log.exception("%s/%s cannot be read", metadata.namespace, metadata.name)
            good = last.good if last else None
            chosen = (good if records.is_open(status) else None) or _stand_in(obj.get("spec"))
            message = f"cannot be read ({type(error).__name__}): simplify it; the operator's log says where it stopped"
            return _Judged(metadata.generation, chosen, (Problem("spec", message),), good=good, form=self._form(chosen))

    def _judge(self, obj: Object, metadata: Metadata, status: TrainingJobStatus, *, last: _Judged | None) -> _Judged:
        good = last.good if last else None
        spec, found = self._read_spec(obj.get("spec"))
        if spec is not None:
            job = TrainingJob(metadata=metadata, spec=spec, status=status)
            found = problems(job) or self._unrenderable(job) or self._forbidden(job)
            if not found and good is not None and records.is_open(status):
                found = changes(job.model_copy(update={"spec": good}), job)
        if not found:
            assert spec is not None
            return _Judged(metadata.generation, spec, (), good=spec, form=self._form(spec))
        chosen = (good if records.is_open(status) else None) or spec or _stand_in(obj.get("spec"))
        return _Judged(metadata.generation, chosen, tuple(found), good=good, form=self._form(chosen))

    def _form(self, spec: TrainingJobSpec) -> str:
        return form_of(spec, self._defaults.template)

    def _read_spec(self, raw: Any) -> tuple[TrainingJobSpec | None, list[Problem]]:
        raw = bounded(raw)
        if found := left_out(raw):
            return None, found
        try:
            return self._defaults.applied(TrainingJobSpec.model_validate(raw, by_alias=True, by_name=False)), []
        except ValidationError as error:
            details = error.errors(include_url=False)
            return None, [problem_of({**detail, "loc": ("spec", *detail["loc"])}) for detail in details]

    def _unrenderable(self, job: TrainingJob) -> list[Problem]:
        """What is seen only when a pod is made: a template that cannot be laid over it, say."""
        plan = strategy_of(job.spec.strategy).plan(job.spec)
        addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
        defaults, found = self._defaults.template, []
        try:
            for role in dict.fromkeys(replica.role for replica in plan.replicas):
                pod = render_replica(job, role, index=0, attempt=0, addresses=addresses, images=self._images, defaults=defaults)
                found += _unknown_volumes(pod["spec"], f"spec.roles.{role.value}.template.spec")
        except InvalidJobError as error:
            return error.problems
        return found

    def _forbidden(self, job: TrainingJob) -> list[Problem]:
        """What the installation's policy refuses. A version of the spec that was accepted before is not judged again, so that a policy
        which has become stricter stops no job. What the installation's defaults add is allowed."""
        valid = job.status.condition(ConditionType.VALID)
        if valid is not None and valid.status == "True" and valid.observed_generation == job.metadata.generation:
            return []
        return violations(self._policy, self._defaults.removed(job.spec))


def _unknown_volumes(spec: Mapping[str, Any], field: str) -> list[Problem]:
    """For these the API server would refuse each pod, of a job that is admitted by then."""
    volumes = {volume.get("name") for volume in _objects(spec.get("volumes"))}
    mounts = (
        (kind, container.get("name"), mount.get("name"))
        for kind in ("containers", "initContainers")
        for container in _objects(spec.get(kind))
        for mount in _objects(container.get("volumeMounts"))
    )
    return [
        Problem(f"{field}.{kind}", f"{container} mounts {name}, which is no volume of the pod; add it to {field}.volumes")
        for kind, container, name in mounts
        if name not in volumes
    ]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def readable_status(raw: Any) -> TrainingJobStatus:
    """The status, less what cannot be read of it: a newer operator may have written what this one does not know."""
    status = raw if isinstance(raw, dict) else {}
    for _ in range(_MOST_REPAIRS):
        try:
            return TrainingJobStatus.model_validate(status, by_alias=True, by_name=False)
        except ValidationError as error:
            status = copy.deepcopy(status)
            for detail in error.errors(include_url=False, include_input=False):
                location = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                _remove(status, location)
    return TrainingJobStatus()


def _stand_in(raw: Any) -> TrainingJobSpec:
    """A spec for a job whose own was never readable: enough to say so, and to go on watching what runs."""
    spec = raw if isinstance(raw, dict) else {}
    named, manager = spec.get("strategy"), spec.get("managedBy")
    strategy = StrategyName(named) if named in list(StrategyName) else StrategyName.ONE_DEVICE
    managed_by = manager if isinstance(manager, str) else CONTROLLER
    return TrainingJobSpec(strategy=strategy, trainer=Trainer(task="none"), managed_by=managed_by)


def _remove(value: Any, location: tuple[int | str, ...]) -> None:
    """Removes the part of `value` at `location`, if it is there."""
    for step in location[:-1]:
        value = value[step] if _has(value, step) else None
    if location and _has(value, location[-1]):
        del value[location[-1]]


def _has(value: Any, step: int | str) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)
