"""Admission of jobs in the operator: from any object of the API server to a job that the lifecycle core can decide on.

An object that cannot be read or accepted also gives a job. That job has the last valid spec or a placeholder, and the problems.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache
from pydantic import ValidationError

from muster.acceptance.pod_checks import pod_problems
from muster.acceptance.presets import Presets, problems_with_defaults
from muster.admission.bounds import bound_problems, bounded
from muster.admission.changes import changes
from muster.admission.job_policy import UNLIMITED, JobPolicy, violations
from muster.admission.sentences import problem_of
from muster.admission.validate import strategy_problems
from muster.api.constants import CONTROLLER
from muster.api.job import Metadata, TrainingJob
from muster.api.problems import Problem
from muster.api.spec import Trainer, TrainingJobSpec
from muster.api.status import ConditionType, TrainingJobStatus
from muster.api.unchecked import mapping
from muster.kubernetes.objects import Object
from muster.lifecycle.job_state import is_open, without_contradictions
from muster.render.defaults import JobDefaults, images_with
from muster.render.images import Images
from muster.render.template_hash import template_hash_of
from muster.strategies.registry import STRATEGIES

_MOST_REPAIRS = 100
_MOST_STATUSES = 32

log = logging.getLogger("muster.admission")


@dataclass(frozen=True)
class Admitted:
    """A job to decide on, and the problems of its current spec."""

    job: TrainingJob
    problems: tuple[Problem, ...]
    defaults: tuple[JobDefaults, ...]
    """The defaults that its pods use besides its spec: those of the installation, then those of its preset."""
    images: Images

    template_hash: str
    """The digest of everything that its pods are rendered from (`render.template_hash`)."""


@dataclass(frozen=True)
class _Version:
    """A spec, as it was written and with its defaults."""

    written: TrainingJobSpec
    spec: TrainingJobSpec
    defaults: tuple[JobDefaults, ...]


@dataclass(frozen=True)
class _Result:
    generation: int
    chosen: _Version
    """The version to decide on."""
    problems: tuple[Problem, ...]
    valid: _Version | None
    """The last valid version."""
    preset: str | None
    """The preset that the current spec names."""
    preset_version: object
    """`Presets.version_of` when the spec was checked."""
    template_hash: str


class Admission:
    """Checks each version of a spec once, and again when its preset has changed. Caches the last valid version of each job."""

    def __init__(self, images: Images, defaults: JobDefaults, policy: JobPolicy = UNLIMITED, *, presets: Presets | None = None) -> None:
        self._images = images
        self._defaults = defaults
        self._policy = policy
        self._presets = presets or Presets()
        self._results: dict[str, _Result] = {}
        self._statuses: LRUCache[str, tuple[object, TrainingJobStatus]] = LRUCache(_MOST_STATUSES)

    def admit(self, obj: Object) -> Admitted:
        """The job to decide on."""
        metadata = Metadata.model_validate(obj["metadata"])
        status = self._status(metadata.uid, obj.get("status"))
        result = self._results.get(metadata.uid)
        if result is None or result.generation != metadata.generation or self._is_outdated(result, status):
            result = self._results[metadata.uid] = self._result(obj, metadata, status, last=result)
        chosen = result.chosen
        job = TrainingJob(metadata=metadata, spec=chosen.spec, status=status)
        return Admitted(job, result.problems, chosen.defaults, images_with(self._images, chosen.defaults), result.template_hash)

    def forget(self, uid: str) -> None:
        """Drops the state of a job that is gone."""
        self._results.pop(uid, None)
        self._statuses.pop(uid, None)

    def _status(self, uid: str, raw: object) -> TrainingJobStatus:
        """The status. Recent statuses are cached, because each replica of a new world reports while the status stays the same, and the cost
        of parsing a status grows with the number of replicas. Objects of the store never change, so the same object has the same status."""
        cached = self._statuses.get(uid)
        if cached is None or cached[0] is not raw:
            cached = self._statuses[uid] = raw, readable_status(raw)
        return cached[1]

    def _is_outdated(self, result: _Result, status: TrainingJobStatus) -> bool:
        """Whether the job's preset has changed. A world that is being started keeps the preset as it was, so that all pods are alike."""
        is_starting = is_open(status) and status.world is not None and status.world.ready_time is None
        return self._presets.version_of(result.preset) is not result.preset_version and not (is_starting and result.valid)

    def _result(self, obj: Object, metadata: Metadata, status: TrainingJobStatus, *, last: _Result | None) -> _Result:
        """The result for this version. If a check itself fails, the job is invalid, and the message shows the cause to the user."""
        valid = last.valid if last else None
        written: TrainingJobSpec | None = None
        version: _Version | None = None
        try:
            written, errors = self._read_spec(obj.get("spec"))
            if written is not None:
                version, errors = self._with_defaults(written)
            if version is not None and not errors:
                errors = self._problems(version, metadata, status, valid=valid)
        except Exception as error:
            log.exception("%s/%s cannot be read", metadata.namespace, metadata.name)
            message = f"cannot be read ({type(error).__name__}): simplify it; the operator's log has the details"
            version, errors = None, [Problem("spec", message)]
        if version is not None and not errors:
            valid = chosen = version
        else:
            chosen = (valid if is_open(status) else None) or version or self._plain(written or _placeholder(obj.get("spec")))
        preset = written.preset if written else None
        template_hash = template_hash_of(chosen.spec, chosen.defaults)
        return _Result(
            metadata.generation,
            chosen,
            tuple(errors),
            valid=valid,
            preset=preset,
            preset_version=self._presets.version_of(preset),
            template_hash=template_hash,
        )

    def _plain(self, spec: TrainingJobSpec) -> _Version:
        return _Version(spec, spec, (self._defaults,))

    def _with_defaults(self, written: TrainingJobSpec) -> tuple[_Version | None, list[Problem]]:
        """The spec with the defaults of its preset, and then with those of the installation. Problems if it cannot have its preset."""
        layers: tuple[JobDefaults, ...] = (self._defaults,)
        if written.preset is not None:
            preset, errors = self._presets.of(written.preset)
            if preset is None:
                return None, errors
            layers = (self._defaults, preset)
        spec = written
        for defaults in reversed(layers):
            spec = defaults.applied(spec)
        return _Version(written, spec, layers), []

    def _problems(self, version: _Version, metadata: Metadata, status: TrainingJobStatus, *, valid: _Version | None) -> list[Problem]:
        job = TrainingJob(metadata=metadata, spec=version.spec, status=status)
        written = job.model_copy(update={"spec": version.written})
        if errors := problems_with_defaults(job, written):
            return errors
        errors = pod_problems(job, version.written, defaults=version.defaults, images=self._images) or self._forbidden(written)
        if not errors and valid is not None and is_open(status):
            errors = changes(job.model_copy(update={"spec": valid.written}), written)
        return errors

    def _read_spec(self, raw: Any) -> tuple[TrainingJobSpec | None, list[Problem]]:
        raw = bounded(raw)
        if errors := bound_problems(raw):
            return None, errors
        try:
            spec = TrainingJobSpec.model_validate(raw, by_alias=True, by_name=False)
        except ValidationError as error:
            details = error.errors(include_url=False)
            return None, [problem_of({**detail, "loc": ("spec", *detail["loc"])}) for detail in details]
        errors = strategy_problems(spec.strategy)
        return (None if errors else spec), errors

    def _forbidden(self, job: TrainingJob) -> list[Problem]:
        """Violations of the installation's policy by a job as it was written. A spec that was accepted before is not checked again, so a
        stricter policy does not stop running jobs. The defaults of the installation and of presets are always allowed."""
        condition = job.status.condition(ConditionType.VALID)
        if condition is not None and condition.status == "True" and condition.observed_generation == job.metadata.generation:
            return []
        return violations(self._policy, self._defaults.removed(job.spec))


def readable_status(raw: Any) -> TrainingJobStatus:
    """The status without the parts that cannot be read, or that contradict each other. A newer operator may have written them, or a user
    with the right to write statuses. Numbers and times that are out of bounds cannot be read."""
    status = raw if isinstance(raw, dict) else {}
    for _ in range(_MOST_REPAIRS):
        try:
            return without_contradictions(TrainingJobStatus.from_wire(status))
        except ValidationError as error:
            status = copy.deepcopy(status)
            for detail in reversed(error.errors(include_url=False, include_input=False)):  # the last item of a list first
                location = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                _remove(status, location)
    return TrainingJobStatus()


def _placeholder(raw: Any) -> TrainingJobSpec:
    """A spec for a job without a readable one. It is enough to report the problem and to manage running pods."""
    spec = mapping(raw)
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
