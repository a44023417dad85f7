"""Jobs that measure. Each has the world of a job that trains, and another task. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.admission.rules import MAX_NAME_LENGTH
from muster.api.job import Metadata, TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import (
    WORKER,
    ApplicationBudget,
    Batch,
    Checkpoint,
    Communication,
    InfrastructureBudget,
    Input,
    Options,
    Recovery,
    Role,
    RoleName,
    Settings,
    StrategyName,
    TrainingJobSpec,
)
from muster.strategies.base import Measured, worker_of
from muster.strategies.registry import STRATEGIES, strategy_of
from muster_contract.tasks import COLLECTIVES, REHEARSAL

MOST_PER_PROCESSOR = 4
"""The largest number of processes for each processor. With more, the times would only show how the kernel schedules."""
LONGEST_SECONDS = 900


def fits(processes: int, *, processors: int, field: str = "spec.roles") -> None:
    """Raises InvalidJobError if the world has too many processes for this machine."""
    most = MOST_PER_PROCESSOR * processors
    if processes > most:
        one = "one processor" if processors == 1 else f"{processors} processors"
        message = f"the world has {processes} processes, but this machine has {one}; use at most {most} processes, or measure on a cluster"
        raise InvalidJobError([Problem(field, message)])


def collectives_job(job: TrainingJob, config: Mapping[str, Any]) -> TrainingJob:
    """The job that measures the collectives of this job's world. Raises InvalidJobError if it has none."""
    strategy = strategy_of(job.spec.strategy)
    if strategy.runtime.collectives is None:
        names = ", ".join(each.name for each in STRATEGIES.values() if each.runtime.collectives)
        message = f"{job.spec.strategy} has no collectives to measure; write one of {names}"
        raise InvalidJobError([Problem("spec.strategy", message)])
    if strategy.ports and strategy.plan(job.spec).size < 2:
        raise InvalidJobError([Problem("spec.roles.worker.replicas", "a world of one process has no collectives; write at least 2")])
    return _measuring(job, COLLECTIVES, config, roles={WORKER: worker_of(job.spec)})


def link_job(job: TrainingJob, sizes: Sequence[int]) -> TrainingJob:
    """The job that measures the all-reduce of two processes of this job at these numbers of bytes."""
    config = {"sizes": list(sizes), "all": False}
    return _measuring(job, COLLECTIVES, config, roles={WORKER: Role(replicas=2)}, strategy=measured_of(job).plain)


def rehearsal_job(job: TrainingJob, samples: Sequence[int], *, processes: int) -> TrainingJob:
    """The job in which this number of processes train side by side, with each of these numbers of samples. Raises InvalidJobError if the
    job has neither a task nor a module."""
    trainer = job.spec.trainer
    if trainer.task is None and trainer.module is None:
        field = "script" if trainer.script is not None else "command"
        message = "the steps of a program of your own cannot be measured; name a task or a module"
        raise InvalidJobError([Problem(f"spec.trainer.{field}", message)])
    config = {"task": trainer.task, "module": trainer.module, "config": trainer.all_settings, "samples": sorted(set(samples))}
    worker = Role(replicas=processes)
    batch = Batch(accumulation_steps=job.spec.batch.accumulation_steps)
    return _measuring(job, REHEARSAL, config, roles={WORKER: worker}, strategy=measured_of(job).plain, batch=batch)


def measured_of(job: TrainingJob) -> Measured:
    """The strategies in which the job is measured. Raises InvalidJobError if there are none."""
    measured = strategy_of(job.spec.strategy).measured
    if measured is None:
        raise InvalidJobError([Problem("spec.strategy", f"jobs of {job.spec.strategy} cannot be measured")])
    return measured


def _measuring(
    job: TrainingJob,
    task: str,
    config: Mapping[str, Any],
    *,
    roles: Mapping[RoleName, Role],
    strategy: StrategyName | None = None,
    batch: Batch | None = None,
) -> TrainingJob:
    """A job with this task that does not save or restart, in a plain world of `strategy`, or else in the world of the job."""
    old: TrainingJobSpec = job.spec
    trainer = {
        "task": task,
        "module": None,
        "script": None,
        "command": None,
        "config": dict(config),
        "settings": Settings(),
        "input": Input(),
    }
    changes = {
        "trainer": old.trainer.model_copy(update=trainer),
        "strategy": strategy or old.strategy,
        "options": Options() if strategy else old.options,
        "communication": Communication.AUTO if strategy else old.communication,
        "roles": dict(roles),
        "batch": batch or Batch(),
        "checkpoint": Checkpoint(),
        "elastic": None,
        "recovery": Recovery(application=ApplicationBudget(limit=0), infrastructure=InfrastructureBudget(limit=1)),
        "suspend": False,
        "active_deadline_seconds": LONGEST_SECONDS,
    }
    name = f"{job.metadata.name[: MAX_NAME_LENGTH - len(task) - 1].rstrip('-')}-{task}"
    metadata = Metadata(name=name, namespace=job.metadata.namespace)
    return TrainingJob(metadata=metadata, spec=old.model_copy(update=changes))
