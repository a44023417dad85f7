"""Task files of SkyPilot, and batch scripts of Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from muster.tools.convert.job import Conversion, ConvertError, count, mapping, named
from muster.tools.convert.pods import add_variables
from muster.tools.convert.programs import Program, names_in, split, without_launcher, write

_SKY_VARIABLES = {
    "SKYPILOT_NODE_RANK": "GROUP_RANK",
    "SKYPILOT_NODE_IPS": "MASTER_ADDR",
    "SKYPILOT_NUM_NODES": "PET_NNODES",
    "SKYPILOT_NUM_GPUS_PER_NODE": "PET_NPROC_PER_NODE",
}
_SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_SBATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:[=\s]\s*(\S+))?", re.MULTILINE)
_SHORT = {
    "-J": "--job-name",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-t": "--time",
    "-G": "--gpus",
    "-p": "--partition",
}


def sky_task(job: Conversion, document: Mapping[str, Any], _: Sequence[Mapping[str, Any]]) -> None:
    """A task of SkyPilot."""
    if not isinstance(document.get("run"), str):
        raise ConvertError("run: is required: the commands of the task")
    run = str(document["run"])
    resources = mapping(document.get("resources"), "resources")
    job.set("strategy", "DDP")
    if image := resources.get("image_id"):
        job.set("trainer.image", str(image).removeprefix("docker:"))
    lines = [line for line in _lines(run) if line]
    program = without_launcher(split(lines[0], "run")) if len(lines) == 1 else Program([])
    if program.launcher == "torchrun":
        write(job, program)
    else:
        job.set("trainer.command", ["bash", "-c", run])
    role: dict[str, Any] = {"replicas": count(document.get("num_nodes"), "num_nodes")}
    limits = _sky_limits(job, resources)
    if limits:
        role["resources"] = {"limits": limits}
    job.spec["roles"] = {"worker": role}
    if isinstance(program.processes, int) and program.processes > 1:
        role["processesPerReplica"] = program.processes
    add_variables(role, {str(name): str(value or "") for name, value in mapping(document.get("envs"), "envs").items()})
    for name in names_in([run], tuple(_SKY_VARIABLES)):
        job.note("spec.trainer", f"uses {name}, which Muster does not set; write {_SKY_VARIABLES[name]}")
    if document.get("setup"):
        job.note("setup", "run it when you build the image: pods start from spec.trainer.image")
    if document.get("workdir"):
        job.note("workdir", "put the files into the image, or into a ConfigMap for spec.trainer.code")
    if document.get("file_mounts"):
        job.note("file_mounts", "write spec.inputs for data in a bucket, or spec.roles.worker.template.spec.volumes")
    job.unmapped(document, ("name", "run", "resources", "num_nodes", "envs", "setup", "workdir", "file_mounts"), "")


def _sky_limits(job: Conversion, resources: Mapping[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    accelerators = resources.get("accelerators")
    if isinstance(accelerators, dict):
        accelerators = next((f"{name}:{number}" for name, number in accelerators.items()), None)
    if accelerators:
        kind, _, number = str(accelerators).partition(":")
        limits["nvidia.com/gpu"] = int(number) if number.isdecimal() else 1
        job.note("spec.roles.worker", f"asked for the accelerator {kind}; select such nodes with template.spec.nodeSelector")
    for name, unit in (("cpus", ""), ("memory", "Gi")):
        if value := str(resources.get(name) or "").rstrip("+"):
            limits["cpu" if name == "cpus" else name] = f"{value}{unit}" if unit else value
    if resources.get("use_spot"):
        job.note("resources.use_spot", "select the spot nodes of your cluster with template.spec.nodeSelector and tolerations")
    job.unmapped(
        resources, ("accelerators", "cpus", "memory", "image_id", "use_spot"), "resources", "is the cluster's matter, and is left out"
    )
    return limits


def sbatch(job: Conversion, text: str) -> None:
    """A batch script of Slurm whose srun starts torchrun or a Python program."""
    flags = {_SHORT.get(name, name): value for name, value in _SBATCH.findall(text)}
    lines = [line for line in _lines(text) if line and not line.startswith("#")]
    launches = [line for line in lines if re.match(r"(?:\S*/)?srun\b", line)] or [line for line in lines if "torchrun" in line]
    if len(launches) != 1:
        raise ConvertError(f"the script has {len(launches)} lines that start with srun or torchrun; leave the one that starts the training")
    named(job, flags.get("--job-name") or "from-slurm")
    job.set("strategy", "DDP")
    program = without_launcher(split(launches[0], "srun"))
    write(job, program)
    nodes = _number(flags, "--nodes", 1)
    role: dict[str, Any] = {"replicas": nodes}
    tasks = _number(flags, "--ntasks-per-node", max(1, _number(flags, "--ntasks", nodes) // nodes))
    processes = program.processes if isinstance(program.processes, int) else 0 if program.launcher == "torchrun" else tasks
    if processes > 1:
        role["processesPerReplica"] = processes
    if limits := _slurm_limits(flags, tasks):
        role["resources"] = {"limits": limits}
    job.spec["roles"] = {"worker": role}
    if seconds := _seconds(flags.get("--time", "")):
        job.set("activeDeadlineSeconds", seconds)
    if program.restarts is not None:
        job.set("recovery.application.limit", program.restarts)
    for name in names_in(lines, _SLURM_VARIABLES):
        job.note("spec.trainer", f"the script uses {name}; Muster sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR in place of Slurm's")
    if others := [line for line in lines if line not in launches]:
        job.note("spec.trainer", f"these lines of the script do not run, put what they do into the image: {'; '.join(others)[:300]}")
    job.note("spec.trainer.image", "Slurm ran on the nodes' own software; name an image that has it")
    read = (
        "--job-name",
        "--nodes",
        "--ntasks-per-node",
        "--ntasks",
        "--cpus-per-task",
        "--mem",
        "--time",
        "--gres",
        "--gpus-per-node",
        "--gpus",
    )
    job.unmapped({name.lstrip("-"): value for name, value in flags.items() if name not in read}, (), "#SBATCH")


def _slurm_limits(flags: Mapping[str, str], tasks: int) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    gpus = flags.get("--gpus-per-node") or (flags.get("--gres") or "").partition("gpu:")[2]
    if (number := gpus.rpartition(":")[2]).isdecimal():
        limits["nvidia.com/gpu"] = int(number)
    if cores := _number(flags, "--cpus-per-task", 0):
        limits["cpu"] = cores * tasks
    if match := re.fullmatch(r"(\d+)([KMGT])?B?", flags.get("--mem") or ""):
        limits["memory"] = f"{match[1]}{match[2] or 'M'}i"
    return limits


def _lines(text: str) -> list[str]:
    return [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines()]


def _number(flags: Mapping[str, str], name: str, default: int) -> int:
    value = flags.get(name) or ""
    return int(value) if value.isdecimal() else default


def _seconds(text: str) -> int:
    """The seconds of a time limit of Slurm: minutes, M:S, H:M:S or D-H[:M[:S]]. 0 if it is none."""
    days, dash, rest = text.rpartition("-")
    parts = [int(each) for each in rest.split(":") if each.isdecimal()]
    if not parts or len(parts) != len(rest.split(":")) or len(parts) > 3:
        return 0
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [[0, *parts, 0], [0, *parts], parts][len(parts) - 1]
    return (int(days) if days.isdecimal() else 0) * 86400 + hours * 3600 + minutes * 60 + seconds
