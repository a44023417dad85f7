"""The init container that fetches the inputs of a job, and the cache that pods of a node share."""

from __future__ import annotations

from typing import Any

from muster.api.constants import TRAINER_CONTAINER
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import JobInput, RoleName
from muster.render.environment import inputs_of
from muster_contract.inputs import (
    FETCHER,
    FOLDER_PATH,
    INPUTS,
    INPUTS_CACHE,
    INPUTS_DIR,
    INPUTS_SECRETS,
    InputRequest,
    requests_to_json,
)

FETCH = ("python", "-P", "-m", "muster_trainer.inputs")
CACHE_PATH = f"{FOLDER_PATH}/.cache"
"""The cache of a pod, in the volume of its inputs."""
NODE_CACHE_PATH = "/run/muster-node-cache"
NODE_CACHE_VOLUME = "muster-node-cache"
SECRETS_PATH = "/run/muster-input-secrets"


def fetcher_of(job: TrainingJob, role: RoleName, *, image: str) -> dict[str, Any] | None:
    """The values of the template of pods. None if the pods of the role need no inputs."""
    inputs = inputs_of(job.spec, role)
    if not inputs:
        return None
    secrets = [
        (f"input-{each.name}", each.secret_ref.name, f"{SECRETS_PATH}/{each.name}") for each in inputs if each.secret_ref is not None
    ]
    return {"name": FETCHER, "image": image, "command": list(FETCH), "path": FOLDER_PATH, "secrets": secrets}


def requests_of(job: TrainingJob, inputs: list[JobInput]) -> list[InputRequest]:
    """The request to the fetcher. Each input has the revision that the job already uses."""
    revisions = {(each.name, each.source): each.revision for each in job.status.inputs}
    return [InputRequest(each.name, each.source, revisions.get((each.name, each.source), "")) for each in inputs]


def with_fetcher(pod: dict[str, Any], job: TrainingJob, role: RoleName, *, node_cache: str | None) -> dict[str, Any]:
    """The pod, whose templates are merged, with the variables of the fetcher and with the cache of the node.

    The fetcher has the trainer's variables, so that users write proxies and endpoints once. The cache is added last, and no template may
    name it. Otherwise a template could mount the folders of other namespaces.
    """
    spec = pod["spec"]
    if node_cache is not None:
        _refuse_node_cache(spec, role)
    fetcher = next((each for each in spec.get("initContainers") or () if each["name"] == FETCHER), None)
    inputs = inputs_of(job.spec, role)
    if fetcher is None or not inputs:
        return pod
    trainer = next(each for each in spec["containers"] if each["name"] == TRAINER_CONTAINER)
    own = {
        INPUTS: requests_to_json(requests_of(job, inputs)),
        INPUTS_DIR: FOLDER_PATH,
        INPUTS_CACHE: CACHE_PATH if node_cache is None else NODE_CACHE_PATH,
        INPUTS_SECRETS: SECRETS_PATH,
    }
    variables = {each["name"]: each for each in (*trainer.get("env", ()), *(fetcher.get("env") or ()))}
    variables |= {name: {"name": name, "value": value.replace("$", "$$")} for name, value in own.items()}
    fetcher["env"] = list(variables.values())
    if "imagePullPolicy" in trainer:
        fetcher.setdefault("imagePullPolicy", trainer["imagePullPolicy"])
    if node_cache is not None:
        mount = {"name": NODE_CACHE_VOLUME, "mountPath": NODE_CACHE_PATH, "subPath": job.metadata.namespace}
        fetcher["volumeMounts"] = [*fetcher.get("volumeMounts", ()), mount]
        trainer["volumeMounts"] = [*trainer.get("volumeMounts", ()), {**mount, "readOnly": True}]
        spec["volumes"] = [*spec.get("volumes", ()), {"name": NODE_CACHE_VOLUME, "hostPath": {"path": node_cache, "type": "Directory"}}]
    return pod


def _refuse_node_cache(spec: dict[str, Any], role: RoleName) -> None:
    parts = [*(spec.get("volumes") or ())]
    for kind in ("containers", "initContainers"):
        parts += [mount for container in spec.get(kind) or () for mount in container.get("volumeMounts") or ()]
    if any(part.get("name") == NODE_CACHE_VOLUME for part in parts):
        message = f"may not have a volume or a mount called {NODE_CACHE_VOLUME}, which is Muster's own; use another name"
        raise InvalidJobError([Problem(f"spec.roles.{role}.template", message)])
