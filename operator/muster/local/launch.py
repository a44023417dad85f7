"""From the pod that would run in a cluster to the command and environment of a process group here. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.api.constants import TRAINER_CONTAINER, is_reserved_env
from muster.local.errors import ConfigurationError

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")

CONTAINER_ONLY = ("HOME", "USER", "MUSTER_CODE")
"""Variables that only a container needs, which has no user account and no files of the user's."""


@dataclass(frozen=True)
class Host:
    """What this machine lends to every replica: its environment, its Python, its processors, and the folder of the user's code.

    `defaults` are variables that both the environment and the pod may set otherwise; `site` is a folder that comes first on PYTHONPATH.
    """

    environ: Mapping[str, str]
    python: str
    cpus: int
    code_folder: Path
    defaults: Mapping[str, str] = field(default_factory=dict)
    site: Path | None = None


@dataclass(frozen=True)
class Launch:
    """A command with its complete environment, and a sentence for each thing of the pod that has no counterpart here."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ignored: tuple[str, ...]


def launch_of(pod: Mapping[str, Any], host: Host, *, local: Mapping[str, str], processes: int) -> Launch:
    """The trainer container of the pod as a command on this machine.

    The environment is the host's own less the names that Muster reserves, then what the pod sets, then `local`, of which a
    variable that the pod has in another form (a folder inside a container) counts only where the pod has it. Threads are shared
    out over the `processes` of the world unless somebody has set their number.
    """
    container = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    environment = {name: value for name, value in _environment(container, _fields(pod, local)).items() if name not in CONTAINER_ONLY}
    env = {
        "OMP_NUM_THREADS": str(max(1, host.cpus // max(1, processes))),
        **host.defaults,
        **{name: value for name, value in host.environ.items() if not is_reserved_env(name)},
        **environment,
        **{name: value for name, value in local.items() if name in environment or name not in _ONLY_IF_RENDERED},
    }
    env["PYTHONPATH"] = _prepended(host.code_folder, env.get("PYTHONPATH"))
    if host.site is not None:
        env["PYTHONPATH"] = _prepended(host.site, env["PYTHONPATH"])
    env["PATH"] = _prepended(Path(host.python).parent, env.get("PATH", os.defpath))
    argv = [expanded(str(word), env) for word in (*container.get("command", ()), *container.get("args", ()))]
    if not argv:
        raise ConfigurationError(
            "the trainer container has no command, and there is no image here to take one from; set spec.trainer.command"
        )
    if argv[0] in ("python", "python3"):
        argv[0] = host.python
    return Launch(tuple(argv), env, (*_other_containers(pod, container), *_cluster_values(container, environment)))


_ONLY_IF_RENDERED = ("MUSTER_TENSORBOARD_DIR",)


def _environment(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, as a kubelet makes them. Values from secrets, config maps and other fields are left out."""
    environment: dict[str, str] = {}
    for variable in container.get("env", ()):
        path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if isinstance(path, str) and path in fields:
            environment[variable["name"]] = fields[path]
        elif "valueFrom" not in variable:
            environment[variable["name"]] = expanded(str(variable.get("value", "")), environment)
    return environment


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable's value and `$$` by `$`; references to unknown names stay as they are.

    Source: `third_party/forked/golang/expansion/expand.go` of Kubernetes.
    """
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]), text)


def _fields(pod: Mapping[str, Any], local: Mapping[str, str]) -> dict[str, str]:
    """What `valueFrom.fieldRef` can name of a pod."""
    metadata = pod["metadata"]
    return {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": local["MUSTER_POD_UID"],
        "spec.nodeName": "localhost",
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }


def _other_containers(pod: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[str]:
    spec = pod["spec"]
    others = [each["name"] for each in (*(spec.get("initContainers") or ()), *spec["containers"]) if each["name"] != trainer["name"]]
    return [f"the container {name} does not run here; only the trainer does" for name in others]


def _cluster_values(container: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    names = [each["name"] for each in container.get("env", ()) if "valueFrom" in each and each["name"] not in environment]
    return [f"the variable {name} is filled by the cluster; here it is what your own environment has" for name in names]


def _prepended(folder: Path, path: str | None) -> str:
    return f"{folder}{os.pathsep}{path}" if path else str(folder)
