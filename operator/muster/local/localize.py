"""Adapts a job to this machine: folders in place of storage, and paths of programs. It changes no file."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from muster.admission.validate import remarks as doubts
from muster.api.constants import CONTROLLER
from muster.api.job import TrainingJob
from muster.api.spec import Storage, SupervisorMode, Trainer
from muster.local.errors import FieldError
from muster.local.rundir import RunDirectory, RunFolder
from muster.strategies.registry import strategy_of
from muster_contract.config import COMMON_KEYS
from muster_contract.tasks import TASKS

_EXPECTED = ("epochs", "learningRate", "optimizer")
"""Settings whose defaults surprise those who do not set them."""
GPU_RESOURCES = ("gpu", "tpu", "npu", "hpu")


def localized(job: TrainingJob, directory: RunDirectory, *, cwd: Path, job_file: Path) -> TrainingJob:
    """The job with folders in place of claims and with paths relative to `cwd`. It has no image, and is neither suspended nor delegated."""
    spec = job.spec
    folder = checkpoint_folder(job, directory)
    storage = Storage(uri=folder.as_uri()) if folder else spec.checkpoint.storage
    changes = {
        "checkpoint": spec.checkpoint.model_copy(update={"storage": storage}),
        "trainer": with_paths(spec.trainer, cwd=cwd, job_file=job_file),
        "suspend": False,
        "managed_by": CONTROLLER,
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changes)})


def checkpoint_folder(job: TrainingJob, directory: RunFolder) -> Path | None:
    """The folder of the job's checkpoints on this machine; None for an object store. Raises FieldError for a folder of another machine."""
    storage = job.spec.checkpoint.storage
    if storage is None:
        return directory.checkpoints.absolute()
    if storage.persistent_volume_claim is not None:
        return directory.volume(storage.persistent_volume_claim.claim_name).absolute()
    uri = urlsplit(storage.uri or "")
    if uri.scheme == "s3":
        return None
    if uri.scheme != "file" or uri.netloc not in ("", "localhost") or not uri.path.startswith("/"):
        raise FieldError(
            f"spec.checkpoint.storage.uri: a local run cannot reach {storage.uri}; write file:///path, or omit storage "
            "to keep checkpoints in the run directory"
        )
    return Path(unquote(uri.path))


def code_folder(trainer: Trainer, job_file: Path) -> Path:
    """The folder of the program: that of the job file, or in it the folder with the name of the ConfigMap in `trainer.code`."""
    folder = job_file.absolute().parent
    code = folder / trainer.code.config_map.name if trainer.code else folder
    return code if code.is_dir() else folder


def working_directory(trainer: Trainer, *, cwd: Path, job_file: Path) -> Path:
    """The working directory of the processes: the folder of `trainer.code`, as on a cluster, or else `cwd`."""
    return code_folder(trainer, job_file) if trainer.code else cwd


def with_paths(trainer: Trainer, *, cwd: Path, job_file: Path) -> Trainer:
    """The trainer with the paths of its files: below `cwd`, where the processes run, or else in `code_folder`. The image is removed.

    Raises FieldError if `script` is in neither folder. Words of `command` and `args` that name no file stay as they are. So does a script
    whose path has a `$(NAME)`, because the supervisor replaces that.
    """
    folder = code_folder(trainer, job_file)
    arguments = [_path_of(word, cwd, folder) or word for word in trainer.args or ()]
    trainer = trainer.model_copy(update={"image": None, "args": arguments or None})
    if trainer.script is not None:
        try:
            words = shlex.split(trainer.script)
        except ValueError as error:
            raise FieldError(f"spec.trainer.script: {trainer.script!r} cannot be split into words: {error}") from None
        if words and "$(" in words[0]:
            return trainer
        path = _path_of(words[0], cwd, folder) if words else None
        if path is None:
            folders = f"{cwd}" if cwd == folder else f"{cwd} nor in {folder}"
            raise FieldError(
                f"spec.trainer.script: there is no file {words[0] if words else ''!r} in {folders}; write the path of a Python program"
            )
        return trainer.model_copy(update={"script": shlex.join([path, *words[1:]])})
    if trainer.command is not None:
        words = [trainer.command[0], *(_path_of(word, cwd, folder) or word for word in trainer.command[1:])]
        return trainer.model_copy(update={"command": words})
    return trainer


def _path_of(word: str, cwd: Path, folder: Path) -> str | None:
    """The word if it is a file relative to `cwd`, its absolute path if it is a file in `folder`, else None."""
    if os.path.isfile(cwd / word):  # False for a word too long for a path, such as a program after -c; Path.is_file raises OSError
        return word
    return str(folder / word) if os.path.isfile(folder / word) else None


def _defaults(job: TrainingJob) -> list[str]:
    """The settings that the job leaves to Muster, if a user may expect others."""
    trainer, application = job.spec.trainer, job.spec.recovery.application
    lines = []
    if trainer.module is not None or trainer.task in TASKS:
        keys = TASKS[trainer.task].keys if trainer.task else COMMON_KEYS
        unset = {key.name: key.default for key in keys if key.name in _EXPECTED and key.name not in trainer.all_settings}
        if unset:
            values = ", ".join(f"{name}: {value}" for name, value in unset.items())
            own = "; an optimizer of the module takes precedence" if trainer.module else ""
            lines.append(f"defaults of trainer.settings: {values}{own}")
    if "limit" not in application.model_fields_set and application.limit:
        lines.append(f"if your code fails, the job restarts, at most {application.limit} times (recovery.application.limit)")
    return lines


def remarks(job: TrainingJob, *, gpus: int, job_file: Path) -> list[str]:
    """Sentences on how the local run differs from a run on a cluster."""
    lines = []
    for name, role in job.spec.roles.items():
        requested = [resource for resource in role.resources.limits if resource.rpartition("/")[2].rpartition("-")[2] in GPU_RESOURCES]
        if requested and gpus == 0:
            lines.append(f"role {name} asks for {', '.join(requested)}; this machine has none, so the job runs on CPU")
        if role.resource_claims:
            names = ", ".join(claim.name for claim in role.resource_claims)
            lines.append(
                f"roles.{name}.resourceClaims: {names} {'are' if len(role.resource_claims) > 1 else 'is'} for a cluster and ignored"
            )
    strategy = strategy_of(job.spec.strategy)
    if strategy.local_remark and any(replica.ports for replica in strategy.plan(job.spec).replicas):
        lines.append(strategy.local_remark)
    if job.spec.trainer.code is not None:
        folder = code_folder(job.spec.trainer, job_file)
        lines.append(f"trainer.code: a ConfigMap needs a cluster; its files are taken from {folder}, and the processes run there")
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.secret_ref is not None:
        lines.append(
            f"checkpoint.storage.secretRef: {storage.secret_ref.name} is on a cluster; set its variables (AWS_ACCESS_KEY_ID, ...) here"
        )
    if job.spec.scheduling.capacity is not None:
        lines.append("scheduling.capacity is about the nodes of a cluster, so it has no effect here")
    for each in job.spec.inputs:
        if each.secret_ref is not None:
            lines.append(f"input {each.name}: secretRef: {each.secret_ref.name} is on a cluster; set its variables (HF_TOKEN, ...) here")
    if job.spec.trainer.supervisor is SupervisorMode.DISABLED:
        lines.append("trainer.supervisor is Disabled, so steps and checkpoints of the job are not shown")
    lines += [f"warning: {each}" for each in doubts(job)]
    lines += _defaults(job)
    if job.spec.suspend:
        lines.append("spec.suspend is true in the file; `muster run` ignores it and runs the job")
    return lines
