"""Admission of jobs in the operator: from any object of the API server to a job that the lifecycle core can decide on.

An object that cannot be read or accepted gives a job, too: with the last valid spec or a placeholder, and with the problems.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from muster.admission.bounds import bounded, left_out
from muster.admission.changes import changes
from muster.admission.job_policy import UNLIMITED, JobPolicy, violations
from muster.admission.sentences import problem_of
from muster.admission.validate import problems, strategy_problems
from muster.api.constants import CONTROLLER
from muster.api.job import Metadata, TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import Storage, Trainer, TrainingJobSpec
from muster.api.status import ConditionType, TrainingJobStatus
from muster.control.cluster import Object
from muster.lifecycle.state import is_open
from muster.render.addresses import ClusterAddresses
from muster.render.form import form_of
from muster.render.images import Images
from muster.render.manifests import render_replica
from muster.render.objects import render_objects
from muster.strategies.registry import STRATEGIES, strategy_of

_MOST_REPAIRS = 100

log = logging.getLogger("muster.admission")


@dataclass(frozen=True)
class Admitted:
    """A job to decide on, and the problems of its current spec."""

    job: TrainingJob
    problems: tuple[Problem, ...]
    form: str
    """The digest of what its pods are made of (`render.form`)."""


@dataclass(frozen=True)
class _Result:
    generation: int
    spec: TrainingJobSpec
    """The spec to decide on."""
    problems: tuple[Problem, ...]
    valid: TrainingJobSpec | None
    """The last valid spec."""
    form: str


class Admission:
    """Checks each version of a spec once, and remembers the last valid one of each job."""

    def __init__(self, images: Images, defaults: JobDefaults, policy: JobPolicy = UNLIMITED) -> None:
        self._images = images
        self._defaults = defaults
        self._policy = policy
        self._results: dict[str, _Result] = {}

    def admit(self, obj: Object) -> Admitted:
        """The job to decide on."""
        metadata = Metadata.model_validate(obj["metadata"])
        status = readable_status(obj.get("status"))
        result = self._results.get(metadata.uid)
        if result is None or result.generation != metadata.generation:
            result = self._results[metadata.uid] = self._result(obj, metadata, status, last=result)
        return Admitted(TrainingJob(metadata=metadata, spec=result.spec, status=status), result.problems, result.form)

    def forget(self, uid: str) -> None:
        """Drops the state of a job that is gone."""
        self._results.pop(uid, None)

    def _result(self, obj: Object, metadata: Metadata, status: TrainingJobStatus, *, last: _Result | None) -> _Result:
        """The result for this version. A job on which a check itself fails is invalid, and its user sees why."""
        try:
            return self._check(obj, metadata, status, last=last)
        except Exception as error:
            log.exception("%s/%s cannot be read", metadata.namespace, metadata.name)
            valid = last.valid if last else None
            chosen = (valid if is_open(status) else None) or _placeholder(obj.get("spec"))
            message = f"cannot be read ({type(error).__name__}): simplify it; the operator's log has the details"
            return _Result(metadata.generation, chosen, (Problem("spec", message),), valid=valid, form=self._form(chosen))

    def _check(self, obj: Object, metadata: Metadata, status: TrainingJobStatus, *, last: _Result | None) -> _Result:
        valid = last.valid if last else None
        spec, errors = self._read_spec(obj.get("spec"))
        if spec is not None:
            job = TrainingJob(metadata=metadata, spec=spec, status=status)
            errors = problems(job) or self._unrenderable(job) or self._forbidden(job)
            if not errors and valid is not None and is_open(status):
                errors = changes(job.model_copy(update={"spec": valid}), job)
        if not errors:
            assert spec is not None
            return _Result(metadata.generation, spec, (), valid=spec, form=self._form(spec))
        chosen = (valid if is_open(status) else None) or spec or _placeholder(obj.get("spec"))
        return _Result(metadata.generation, chosen, tuple(errors), valid=valid, form=self._form(chosen))

    def _form(self, spec: TrainingJobSpec) -> str:
        return form_of(spec, self._defaults.template)

    def _read_spec(self, raw: Any) -> tuple[TrainingJobSpec | None, list[Problem]]:
        raw = bounded(raw)
        if errors := left_out(raw):
            return None, errors
        try:
            spec = self._defaults.applied(TrainingJobSpec.model_validate(raw, by_alias=True, by_name=False))
        except ValidationError as error:
            details = error.errors(include_url=False)
            return None, [problem_of({**detail, "loc": ("spec", *detail["loc"])}) for detail in details]
        errors = strategy_problems(spec.strategy)
        return (None if errors else spec), errors

    def _unrenderable(self, job: TrainingJob) -> list[Problem]:
        """Problems that only rendering shows, such as a template that cannot be merged, or a function of the strategy that fails."""
        strategy = strategy_of(job.spec.strategy)
        plan = strategy.plan(job.spec)
        addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
        defaults, errors = self._defaults.template, []
        try:
            for role in dict.fromkeys(replica.role for replica in plan.replicas):
                pod = render_replica(job, role, index=0, attempt=0, addresses=addresses, images=self._images, defaults=defaults)
                errors += _unknown_volumes(pod["spec"], f"spec.roles.{role}.template.spec")
            render_objects(job, plan, addresses)
            strategy.is_synchronous(job.spec)
        except InvalidJobError as error:
            return error.problems
        return errors

    def _forbidden(self, job: TrainingJob) -> list[Problem]:
        """Violations of the installation's policy. A spec that was accepted before is not checked again, so a stricter policy does not stop
        running jobs. The installation's defaults are always allowed."""
        condition = job.status.condition(ConditionType.VALID)
        if condition is not None and condition.status == "True" and condition.observed_generation == job.metadata.generation:
            return []
        return violations(self._policy, self._defaults.removed(job.spec))


def _unknown_volumes(spec: Mapping[str, Any], field: str) -> list[Problem]:
    """Mounts without a volume. Without this check the job would be admitted, and the API server would refuse each pod."""
    volumes = {volume.get("name") for volume in _objects(spec.get("volumes"))}
    mounts = (
        (kind, container.get("name"), mount.get("name"))
        for kind in ("containers", "initContainers")
        for container in _objects(spec.get(kind))
        for mount in _objects(container.get("volumeMounts"))
    )
    return [
        Problem(f"{field}.{kind}", f"{container} mounts {name}, which is not a volume of the pod; add it to {field}.volumes")
        for kind, container, name in mounts
        if name not in volumes
    ]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def readable_status(raw: Any) -> TrainingJobStatus:
    """The status without the parts that cannot be read. A newer operator may have written them."""
    status = raw if isinstance(raw, dict) else {}
    for _ in range(_MOST_REPAIRS):
        try:
            return TrainingJobStatus.from_wire(status)
        except ValidationError as error:
            status = copy.deepcopy(status)
            for detail in error.errors(include_url=False, include_input=False):
                location = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                _remove(status, location)
    return TrainingJobStatus()


def _placeholder(raw: Any) -> TrainingJobSpec:
    """A spec for a job without a readable one. It is enough to report the problem and to manage running pods."""
    spec = raw if isinstance(raw, dict) else {}
    named, manager = spec.get("strategy"), spec.get("managedBy")
    strategy = named if isinstance(named, str) and named in STRATEGIES else "OneDevice"
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


@dataclass(frozen=True)
class JobDefaults:
    """`template` is a pod template for every replica, which the job's template overrides. `storage` is for checkpoints."""

    template: Mapping[str, Any] = field(default_factory=dict)
    storage: Storage | None = None

    def applied(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec with the default storage, if it has none. The template is merged when pods are rendered."""
        if self.storage is None or spec.checkpoint.storage is not None:
            return spec
        return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": self.storage})})

    def removed(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec without the storage, if it equals the default."""
        if self.storage is None or spec.checkpoint.storage != self.storage:
            return spec
        return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": None})})
