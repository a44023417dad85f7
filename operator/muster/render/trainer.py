"""The contents of the trainer container: its command, its image, and MUSTER_TRAINER."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import DISABLED_NEEDS_COMMAND, Checkpoint, Input, PeersMemory, Trainer, TrainingJobSpec
from muster.strategies.base import Strategy
from muster.strategies.registry import strategy_of
from muster_contract.batch import largest_portion
from muster_contract.trainer_spec import DEFAULT_GLOBAL_SIZE, BatchSpec, CheckpointSpec, InputSpec, MemorySpec, TrainerSpec

SUPERVISOR = ("python", "-P", "-m", "muster_trainer.supervisor")
"""With -P, Python imports nothing from the working directory, because other users may be able to write to it."""
SUPERVISOR_PATH = "/muster"
"""The path of the supervisor in a user's image, to which an init container has copied it."""
COPY_SUPERVISOR = ("python", "-P", "-m", "muster_trainer.supervisor.copying", SUPERVISOR_PATH)
COPIED_SUPERVISOR = (
    f"{SUPERVISOR_PATH}/lib/ld.so",
    "--inhibit-cache",
    "--library-path",
    f"{SUPERVISOR_PATH}/lib",
    f"{SUPERVISOR_PATH}/bin/python",
    "-I",
    "-S",
    "-m",
    "muster_trainer.supervisor",
)
"""A program that brings its own loader, libraries and Python, and reads no variable of the image (`muster_trainer.supervisor.copying`)."""
DEFAULT_STEPS_BETWEEN_COMMITS = 100


def image_of(job: TrainingJob, default: str) -> str:
    """The image in the job's spec, or else the one pinned at its admission, or else the installation's default. So a forged status does not
    change the image of a job that names its own."""
    return job.spec.trainer.image or job.status.image or default


def fetcher_image(job: TrainingJob, default: str) -> str:
    """The image of the init container that fetches inputs: the trainer's, or the installation's if the trainer has an image of the user."""
    return default if job.spec.trainer.image is not None else image_of(job, default)


def command_of(trainer: Trainer) -> list[str]:
    """The container's command. Raises InvalidJobError if the job has no supervisor and no command."""
    if trainer.supervised:
        return list(SUPERVISOR if trainer.image is None else COPIED_SUPERVISOR)
    if trainer.command is None:
        raise InvalidJobError([Problem("spec.trainer.supervisor", DISABLED_NEEDS_COMMAND)])
    return [*trainer.command, *(trainer.args or ())]


def checkpoint_directory(job: TrainingJob, claim_path: str) -> str | None:
    """The job's own folder in its storage, which is mounted at `claim_path` if it is a claim. None if the job has no storage.

    It is in a folder of the namespace, so jobs of two namespaces that share a storage never share a folder, and credentials can be
    limited to one.
    """
    storage = job.spec.checkpoint.storage
    if storage is None:
        return None
    name = f"{job.metadata.namespace}/{job.spec.checkpoint.name or job.metadata.name}"
    if storage.uri is None:
        return f"{claim_path}/{name}"
    if storage.uri.startswith("file://"):
        return f"{unquote(urlsplit(storage.uri).path).rstrip('/')}/{name}"
    return f"{storage.uri.rstrip('/')}/{name}"


def trainer_spec(spec: TrainingJobSpec, directory: str | None, *, processes: int, grace_seconds: int) -> TrainerSpec:
    """What each replica trains, for a job whose whole world has so many processes. The trainer fills in the defaults of `config`."""
    trainer, strategy = spec.trainer, strategy_of(spec.strategy)
    memory = memory_of(spec, strategy)
    return TrainerSpec(
        task=trainer.task,
        module=trainer.module,
        script=None if trainer.script is None else " ".join([trainer.script, *map(shlex.quote, trainer.args or ())]),
        command=None if trainer.command is None else (*trainer.command, *(trainer.args or ())),
        preload=tuple(trainer.preload or ()),
        config=trainer.all_settings,
        batch=_batch(spec, processes=processes),
        input=_input(trainer.input),
        options=spec.options.for_trainer,
        communication=spec.communication.value,
        checkpoint=None if directory is None else _checkpoint(spec.checkpoint, directory),
        memory=memory if memory and memory.size_mib else None,
        unsized_memory=memory if memory and not memory.size_mib else None,
        grace_seconds=grace_seconds,
        strategy=strategy.runtime,
    )


def _batch(spec: TrainingJobSpec, *, processes: int) -> BatchSpec:
    size, portions = spec.batch.global_size, spec.batch.accumulation_steps
    largest = largest_portion(size, processes=processes, accumulation_steps=portions) if spec.elastic and size else None
    return BatchSpec(size or DEFAULT_GLOBAL_SIZE, portions, spec.batch.learning_rate_scaling, largest)


def _input(given: Input) -> InputSpec:
    return InputSpec(given.workers, given.prefetch, given.shard, None if given.cache is None else Path(given.cache))


def memory_of(spec: TrainingJobSpec, strategy: Strategy) -> MemorySpec | None:
    """The snapshots that the replicas of a job keep in memory. None if they keep none.

    A job that does not mention them keeps them if a lost process takes a part of the state with it. A snapshot of an asynchronous pipeline
    changes its losses, so such a job must ask for it.
    """
    given = spec.checkpoint.memory
    is_auto = given is None
    if given is None:
        is_program = spec.trainer.script is not None or spec.trainer.command is not None
        if is_program or not strategy.shards_state or not strategy.is_synchronous(spec):
            return None
        given = PeersMemory()
    if given.size_mib == 0:
        return None
    return MemorySpec(given.size_mib, given.every_steps, given.copies, spares=spec.recovery.spares > 0, auto=is_auto)


def _checkpoint(checkpoint: Checkpoint, directory: str) -> CheckpointSpec:
    every_steps = checkpoint.every_steps
    if every_steps is None and checkpoint.every_seconds is None:
        every_steps = DEFAULT_STEPS_BETWEEN_COMMITS
    return CheckpointSpec(
        directory=directory,
        resume=checkpoint.resume,
        every_steps=every_steps,
        every_seconds=None if isinstance(checkpoint.every_seconds, str) else checkpoint.every_seconds,
        interval=checkpoint.every_seconds if isinstance(checkpoint.every_seconds, str) else None,
        keep=checkpoint.keep,
        asynchronous=checkpoint.asynchronous,
    )
