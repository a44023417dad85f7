"""Jobs that measure in the place of a job that trains: the same world, another task. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.admission.validate import MAX_NAME_LENGTH
from muster.api.job import Metadata, TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import (
    ApplicationBudget,
    Batch,
    Checkpoint,
    Communication,
    InfrastructureBudget,
    Input,
    Options,
    Recovery,
    Role,
    Roles,
    StrategyName,
    TrainingJobSpec,
)
from muster.strategies.base import Framework
from muster.strategies.registry import strategy_of

MOST_PER_PROCESSOR = 4
"""Processes that share a processor. What more of them say of each other is how a kernel schedules."""
LONGEST_SECONDS = 900

REHEARSED: Mapping[Framework, StrategyName] = {
    Framework.PYTORCH: StrategyName.DDP,
    Framework.TENSORFLOW: StrategyName.MULTI_WORKER_MIRRORED,
}
"""The strategies that share out the samples and nothing else."""


def fits(processes: int, *, processors: int, field: str = "spec.roles") -> None:
    """Raises InvalidJobError where a world is so large that its processes would measure how they wait for each other."""
    most = MOST_PER_PROCESSOR * processors
    if processes > most:
        one = "one processor" if processors == 1 else f"{processors} processors"
        message = f"make a world of {processes} processes, and this machine has {one}; make it at most {most}, or measure on a cluster"
        raise InvalidJobError([Problem(field, message)])


def collectives_job(job: TrainingJob, config: Mapping[str, Any]) -> TrainingJob:
    """The job that measures the collectives of this job's world. Raises InvalidJobError where it has none."""
    if job.spec.strategy not in _MEASURED:
        known = ", ".join(name.value for name in _MEASURED)
        message = f"{job.spec.strategy.value} adds up no gradients of its own, so there is nothing to measure; write one of {known}"
        raise InvalidJobError([Problem("spec.strategy", message)])
    if job.spec.strategy is not StrategyName.MIRRORED and strategy_of(job.spec.strategy).plan(job.spec).size < 2:
        raise InvalidJobError([Problem("spec.roles.worker.replicas", "a world of one process has nobody to talk to; write at least 2")])
    return _measuring(job, "collectives", config, roles=Roles(worker=job.spec.roles.worker))


def link_job(job: TrainingJob, sizes: Sequence[int]) -> TrainingJob:
    """The job that measures the all-reduce of two processes of this job at these numbers of bytes."""
    config = {"sizes": list(sizes), "all": False}
    return _measuring(job, "collectives", config, roles=Roles(worker=Role(replicas=2)), strategy=_rehearsed(job))


def rehearsal_job(job: TrainingJob, samples: Sequence[int], *, processes: int) -> TrainingJob:
    """The job in which so many processes train side by side, each with these numbers of samples in a step. Raises InvalidJobError."""
    trainer = job.spec.trainer
    if trainer.task is None and trainer.module is None:
        field = "script" if trainer.script is not None else "command"
        message = "is started as it is, and its steps cannot be measured; name a task or a module"
        raise InvalidJobError([Problem(f"spec.trainer.{field}", message)])
    config = {"task": trainer.task, "module": trainer.module, "config": trainer.config, "samples": sorted(set(samples))}
    worker = Role(replicas=processes)
    batch = Batch(accumulation_steps=job.spec.batch.accumulation_steps)
    return _measuring(job, "rehearsal", config, roles=Roles(worker=worker), strategy=_rehearsed(job), batch=batch)


_MEASURED = (
    StrategyName.DDP,
    StrategyName.FSDP,
    StrategyName.TENSOR_PARALLEL,
    StrategyName.PIPELINE,
    StrategyName.MULTI_WORKER_MIRRORED,
    StrategyName.MIRRORED,
)
"""What exchanges gradients by collectives: between processes or, Mirrored, between the devices of one."""


def _rehearsed(job: TrainingJob) -> StrategyName:
    return REHEARSED[strategy_of(job.spec.strategy).framework]


def _measuring(
    job: TrainingJob,
    task: str,
    config: Mapping[str, Any],
    *,
    roles: Roles,
    strategy: StrategyName | None = None,
    batch: Batch | None = None,
) -> TrainingJob:
    """A job of that task which saves nothing and is not tried again, in a plain world of `strategy`, or else in one like the job's own."""
    old: TrainingJobSpec = job.spec
    kept = {"task": task, "module": None, "script": None, "command": None, "config": dict(config), "input": Input()}
    changes = {
        "trainer": old.trainer.model_copy(update=kept),
        "strategy": strategy or old.strategy,
        "options": Options() if strategy else old.options,
        "communication": Communication.AUTO if strategy else old.communication,
        "roles": roles,
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
