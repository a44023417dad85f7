"""What runs in the trainer container: its command, its image, and MUSTER_TRAINER."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from math import ceil
from typing import Any
from urllib.parse import unquote, urlsplit

from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import DISABLED_NEEDS_COMMAND, Checkpoint, Options, Trainer, TrainingJobSpec

SUPERVISOR = ("python", "-P", "-m", "muster_trainer.supervisor")
"""-P: nothing is imported from the working directory, where others may be able to write."""
SUPERVISOR_PATH = "/muster"
"""Where an image of the user's finds the supervisor that an init container has copied there."""
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
"""Brings its own loader, libraries and Python, and reads no variable of the image (`muster_trainer.supervisor.copying`)."""
DEFAULT_STEPS_BETWEEN_COMMITS = 100


def image_of(job: TrainingJob, default: str) -> str:
    """The image pinned when the job was admitted, else the one it names, else the installation's."""
    return job.status.image or job.spec.trainer.image or default


def command_of(trainer: Trainer) -> list[str]:
    """The container's command. Raises InvalidJobError if there is none to run without a supervisor."""
    if trainer.supervised:
        return list(SUPERVISOR if trainer.image is None else COPIED_SUPERVISOR)
    if trainer.command is None:
        raise InvalidJobError([Problem("spec.trainer.supervisor", DISABLED_NEEDS_COMMAND)])
    return [*trainer.command, *(trainer.args or ())]


def checkpoint_directory(job: TrainingJob, claim_path: str) -> str | None:
    """The job's own folder in its storage, which is mounted at `claim_path` where it is a claim; None where it has no storage.

    It lies in a folder of the namespace, so jobs of two namespaces that share a storage never share a folder, and credentials can be
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


def muster_trainer(spec: TrainingJobSpec, directory: str | None, *, processes: int, grace_seconds: int) -> str:
    """The JSON of MUSTER_TRAINER (docs/architecture.md), of a job whose whole world has so many processes. Defaults of the configuration
    are left to the trainer."""
    content = {
        **_program(spec.trainer),
        "config": spec.trainer.config,
        "batch": {**spec.batch.model_dump(mode="json", by_alias=True), **_most_at_once(spec, processes)},
        "input": spec.trainer.input.model_dump(mode="json", by_alias=True),
        "options": _options(spec.options),
        "communication": spec.communication.value,
        "checkpoint": None if directory is None else _checkpoint(spec.checkpoint, directory),
        "graceSeconds": grace_seconds,
    }
    return json.dumps(content, allow_nan=False)


def _program(trainer: Trainer) -> dict[str, Any]:
    """The entry point, with its arguments."""
    if trainer.command is not None:
        return {"command": [*trainer.command, *(trainer.args or ())]}
    if trainer.script is not None:
        return {"script": " ".join([trainer.script, *map(shlex.quote, trainer.args or ())])}
    return trainer.model_dump(mode="json", by_alias=True, include={"task", "module"}, exclude_none=True)


def _most_at_once(spec: TrainingJobSpec, processes: int) -> dict[str, int]:
    """What a process of an elastic job takes at a time in the whole world. In a smaller one it has more to take, and as much memory."""
    if spec.elastic is None or spec.batch.global_size is None:
        return {}
    return {"mostAtOnce": ceil(spec.batch.global_size / (processes * spec.batch.accumulation_steps))}


def _options(options: Options) -> Mapping[str, Any]:
    """The options that the user set, each whole."""
    wire = options.wire()
    fields = {info.alias or name: (getattr(options, name), info.get_default()) for name, info in Options.model_fields.items()}
    return {alias: wire[alias] for alias, (value, default) in fields.items() if value != default}


def _checkpoint(checkpoint: Checkpoint, directory: str) -> dict[str, Any]:
    every_steps = checkpoint.every_steps
    if every_steps is None and checkpoint.every_seconds is None:
        every_steps = DEFAULT_STEPS_BETWEEN_COMMITS
    return {
        "directory": directory,
        "resume": checkpoint.resume,
        "everySteps": every_steps,
        "everySeconds": checkpoint.every_seconds,
        "keep": checkpoint.keep,
        "async": checkpoint.asynchronous,
    }
