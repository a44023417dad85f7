"""The fake nodes of kwok. Their pods run without a container, and end by a change of their status."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import local_cluster
from tests.support.api_server.api import Api, ApiError
from tests.support.api_server.cluster import Cluster, running
from tests.support.waiting import wait_until

_NODES = "/api/v1/nodes"
_ADMISSION = "admissionregistration.k8s.io/v1"
_CONFIGURATION = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    # kwok deletes pods by name. With four at a time it is late on a busy machine, and deletes a later pod of that name.
    "options": {"podPlayStageParallelism": 64, "nodePlayStageParallelism": 16},
}


@contextmanager
def scheduling(
    folder: Path, *, has_gangs: bool = True, options: Sequence[str] = (), arguments: Sequence[str] = (), start_milliseconds: int = 0
) -> Iterator[Cluster]:
    """A cluster with the chart, the scheduler of Kubernetes, with its gang scheduling or without, and kwok. It has no nodes yet.
    Its priority classes are `low` and `high`. Pods run so many milliseconds after they were created."""
    served = ["--runtime-config=scheduling.k8s.io/v1beta1=true"] if has_gangs else []
    gates = ["GenericWorkload"] if has_gangs else []
    with (
        running(folder, arguments=[*served, *arguments], feature_gates=gates, controllers=True, options=options) as cluster,
        kwok(folder, cluster.kubeconfig, start_milliseconds=start_milliseconds),
    ):
        for name, value in (("low", 10), ("high", 1000)):
            cluster.admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
        yield cluster


def _patch_by_uid(change: dict[str, Any]) -> None:
    """Lets a change of a pod's status fail if the pod was replaced by another one of the same name."""
    status = textwrap.indent(change.pop("statusTemplate"), "  ")
    template = f"metadata:\n  uid: {{{{ .metadata.uid | Quote }}}}\nstatus:\n{status}"
    change["patches"] = [{"subresource": "status", "type": "strategic", "template": template}]


@contextmanager
def kwok(folder: Path, kubeconfig: Path, *, start_milliseconds: int = 0, ends: str = "") -> Iterator[None]:
    """Runs every pod with a node so many milliseconds after its creation, and removes deleted ones. Ends those with the label `ends`
    with success, two seconds after they started to run."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["kwok"])
    folder_of_stages = programs.module_folder("kwok", "sigs.k8s.io/kwok") / "kustomize" / "stage"
    initialize, ready, delete, complete = (
        yaml.safe_load((folder_of_stages / name).read_text())
        for name in ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml", "pod/fast/pod-complete.yaml")
    )
    for stage in (ready, complete):
        _patch_by_uid(stage["spec"]["next"])
    documents: list[Any] = [_CONFIGURATION, initialize, ready, delete]
    if start_milliseconds:
        ready["spec"]["delay"] = {"durationMilliseconds": start_milliseconds}
    if ends:
        selector = complete["spec"]["selector"]
        selector["matchExpressions"] = [each for each in selector["matchExpressions"] if "ownerReferences" not in each["key"]]
        selector["matchLabels"] = {ends: "true"}
        complete["spec"]["delay"] = {"durationMilliseconds": 2000}
        documents.append(complete)
    (folder / "stages.yaml").write_text(yaml.safe_dump_all(documents))
    command = [str(programs.path("kwok")), f"--kubeconfig={kubeconfig}", "--manage-all-nodes=true", f"--config={folder / 'stages.yaml'}"]
    with local_cluster.running(command, folder / "kwok.log"):
        yield


def add_node(api: Api, name: str, *, cpu: int, labels: Mapping[str, str] | None = None) -> None:
    """A node with so many CPUs, on which the scheduler may place pods."""
    room = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}}
    api.create(_NODES, {**node, "status": {"capacity": room, "allocatable": room}})
    api.patch(f"{_NODES}/{name}", {"spec": {"taints": None}})  # not-ready, of admission: no controller watches over nodes


def remove_node(api: Api, name: str) -> None:
    """The node and its pods disappear at once, as when a cloud removes a machine."""
    api.delete(f"{_NODES}/{name}")
    for pod in api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name}"):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        api.delete(path, {"gracePeriodSeconds": 0})


@contextmanager
def bindings_refused(api: Api, node: str) -> Iterator[None]:
    """While the scheduler has chosen this node for a pod, the API server does not bind it: as when the node is lost at that moment."""
    name = f"no-bindings-to-{node}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}]
    validations = [{"expression": f"object.target.name != '{node}'", "message": f"{node} is lost"}]
    policy = {"matchConstraints": {"resourceRules": rules}, "validations": validations}
    specs = {
        "ValidatingAdmissionPolicy": ("validatingadmissionpolicies", policy),
        "ValidatingAdmissionPolicyBinding": (
            "validatingadmissionpolicybindings",
            {"policyName": name, "validationActions": ["Deny"]},
        ),
    }
    for kind, (plural, spec) in specs.items():
        api.create(f"/apis/{_ADMISSION}/{plural}", {"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec})
    try:
        wait_until(lambda: _refuses(api, node), f"no pod is bound to {node}")
        yield
    finally:
        for plural, _ in specs.values():
            api.delete(f"/apis/{_ADMISSION}/{plural}/{name}")


def _refuses(api: Api, node: str) -> bool:
    """Whether the API server would not bind a pod to this node. It says so before it looks for the pod."""
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "nobody"}, "target": {"kind": "Node", "name": node}}
    try:
        api.create("/api/v1/namespaces/default/pods/nobody/binding?dryRun=All", binding)
    except ApiError as error:
        return "is lost" in str(error)
    return False
