"""Turns the pod that would run in a cluster into a command and its environment on this machine. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.api.constants import TRAINER_CONTAINER
from muster.local.errors import ConfigurationError
from muster.strategies.registry import is_reserved_env
from muster_contract.environment import DEBUG, NAMES, expanded
from muster_contract.inputs import FETCHER
from muster_contract.process_title import titled

CONTAINER_ONLY = ("HOME", "USER", NAMES["code"])
"""Variables that only a container needs, because it has neither the user's account nor the user's files."""


@dataclass(frozen=True)
class Host:
    """What every replica gets from this machine: environment, Python, number of processors, and the folder of the user's code.

    The environment and the pod may override the variables in `defaults`.
    """

    environ: Mapping[str, str]
    python: str
    cpus: int
    code_folder: Path
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A command with its complete environment. `ignored` has a sentence for each part of the pod that has no counterpart here."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ignored: tuple[str, ...]


def launch_of(
    pod: Mapping[str, Any], host: Host, *, local: Mapping[str, str], processes: int, gpus: Mapping[str, str] | None = None
) -> Launch:
    """The trainer container of the pod as a command on this machine.

    The environment has the host's variables, then those of the pod, then those in `local`. Of the names that Muster reserves, the host's
    are left out, except MUSTER_DEBUG. The pod may have a variable in another form, such as a folder inside a container; `local` overrides
    it only if the pod sets it. If OMP_NUM_THREADS is not set, the `processes` of the world share the processors. `gpus` are the variables
    that give the replica its GPUs; the pod may override them.
    """
    container = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    environment = {name: value for name, value in _environment(container, _fields(pod, local)).items() if name not in CONTAINER_ONLY}
    env = {
        "OMP_NUM_THREADS": str(max(1, host.cpus // max(1, processes))),
        **host.defaults,
        **{name: value for name, value in host.environ.items() if not is_reserved_env(name) or name == DEBUG},
        **(gpus or {}),
        **environment,
        **{name: value for name, value in local.items() if name in environment or name not in _ONLY_IF_RENDERED},
    }
    env["PYTHONPATH"] = _prepended(host.code_folder, env.get("PYTHONPATH"))
    env["PATH"] = _prepended(Path(host.python).parent, env.get("PATH", os.defpath))
    argv = [expanded(str(word), env) for word in (*container.get("command", ()), *container.get("args", ()))]
    if not argv:
        raise ConfigurationError(
            "the trainer container has no command, and a local run cannot take one from an image; set spec.trainer.command"
        )
    if argv[0] in ("python", "python3"):
        argv[:] = titled([host.python, *argv[1:]], env, "supervisor")
    return Launch(tuple(argv), env, (*_other_containers(pod, container), *_cluster_values(container, environment)))


_ONLY_IF_RENDERED = (NAMES["tensorboard_dir"],)


def _environment(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, as a kubelet makes them, without values from secrets, config maps and other fields."""
    environment: dict[str, str] = {}
    for variable in container.get("env", ()):
        path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if isinstance(path, str) and path in fields:
            environment[variable["name"]] = fields[path]
        elif "valueFrom" not in variable:
            environment[variable["name"]] = expanded(str(variable.get("value", "")), environment)
    return environment


def _fields(pod: Mapping[str, Any], local: Mapping[str, str]) -> dict[str, str]:
    """The fields of a pod that `valueFrom.fieldRef` can name."""
    metadata = pod["metadata"]
    return {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": local[NAMES["pod_uid"]],
        "spec.nodeName": "localhost",
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }


def _other_containers(pod: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[str]:
    spec = pod["spec"]
    others = [each["name"] for each in (*(spec.get("initContainers") or ()), *spec["containers"]) if each["name"] != trainer["name"]]
    others = [name for name in others if name != FETCHER]  # `muster run` fetches the inputs itself
    return [f"the container {name} does not run here; only the trainer does" for name in others]


def _cluster_values(container: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    names = [each["name"] for each in container.get("env", ()) if "valueFrom" in each and each["name"] not in environment]
    return [f"the variable {name} is set by the cluster; a local run takes it from your environment" for name in names]


def _prepended(folder: Path, path: str | None) -> str:
    return f"{folder}{os.pathsep}{path}" if path else str(folder)
