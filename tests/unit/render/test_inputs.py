"""The init container that fetches inputs, the variables of the trainer, and the cache of the node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.api.problems import InvalidJobError
from muster.api.status import InputStatus, TrainingJobStatus
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.environment import Coordinator
from muster.render.manifests import render_replica
from tests.support.golden_jobs import IMAGES, job_of

INPUTS = [
    {"name": "base-model", "source": "hf://org/tiny", "secretRef": {"name": "hub"}},
    {"name": "rows", "source": "s3://bucket/rows", "roles": ["worker"]},
]
SPEC = {"strategy": "DDP", "trainer": {"task": "digits"}, "inputs": INPUTS}


def pod_of(
    spec: dict[str, Any], *, role: str = "worker", node_cache: str | None = None, status: TrainingJobStatus | None = None
) -> dict[str, Any]:
    job = job_of(spec)
    job = job.with_status(status) if status else job
    coordinator = Coordinator("https://operator:8443", "PEM")
    addresses = ClusterAddresses("job", "ns", 2)
    defaults = [JobDefaults(node_cache=node_cache)]
    return render_replica(job, role, index=0, attempt=2, addresses=addresses, images=IMAGES, coordinator=coordinator, defaults=defaults)


def fetcher_in(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in pod["spec"]["initContainers"] if each["name"] == "muster-inputs")
    return found


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def mounts(container: dict[str, Any]) -> dict[str, Any]:
    return {each["mountPath"]: each for each in container["volumeMounts"]}


def test_the_fetcher_is_restricted_and_has_variables_and_resources_of_the_trainer() -> None:
    template = {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "imagePullPolicy": "Never",
                    "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}, {"name": "HTTPS_PROXY", "value": "http://p"}],
                }
            ]
        }
    }
    resources = {"limits": {"memory": "1Gi", "nvidia.com/gpu": 1}}
    pod = pod_of({**SPEC, "roles": {"worker": {"template": template, "resources": resources}}})
    fetcher, [trainer] = fetcher_in(pod), pod["spec"]["containers"]
    assert (fetcher["image"], fetcher["imagePullPolicy"]) == (trainer["image"], "Never")
    assert fetcher["command"] == ["python", "-P", "-m", "muster_trainer.inputs"]
    assert fetcher["securityContext"] == trainer["securityContext"]
    assert fetcher["resources"] == {"limits": {"memory": "1Gi"}}
    found = variables(fetcher)
    assert (found["HF_ENDPOINT"], found["HTTPS_PROXY"], found["MUSTER_COORDINATOR"]) == ("http://hub", "http://p", "https://operator:8443")
    assert found["MUSTER_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert json.loads(found["MUSTER_INPUTS"]) == [{key: each[key] for key in ("name", "source")} for each in INPUTS]
    assert (found["MUSTER_INPUTS_DIR"], found["MUSTER_INPUTS_CACHE"]) == ("/inputs", "/inputs/.cache")
    assert "/var/run/secrets/muster" in mounts(fetcher)


def test_the_trainer_reads_the_folder_and_never_sees_the_secret() -> None:
    pod = pod_of(SPEC)
    [trainer] = pod["spec"]["containers"]
    found = variables(trainer)
    assert (found["MUSTER_INPUT_BASE_MODEL"], found["MUSTER_INPUT_ROWS"]) == ("/inputs/base-model", "/inputs/rows")
    assert mounts(trainer)["/inputs"] == {"name": "inputs", "mountPath": "/inputs", "readOnly": True}
    assert mounts(fetcher_in(pod))["/run/muster-input-secrets/base-model"]["readOnly"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["input-base-model"]["secret"] == {"secretName": "hub", "defaultMode": 288}
    assert "input-base-model" not in {each["name"] for each in trainer["volumeMounts"]}


def test_pods_of_other_roles_get_only_what_is_for_them() -> None:
    spec = {**SPEC, "strategy": "ParameterServer", "roles": {"worker": {}, "ps": {}}}
    fetcher = fetcher_in(pod_of(spec, role="ps"))
    assert [each["name"] for each in json.loads(variables(fetcher)["MUSTER_INPUTS"])] == ["base-model"]
    alone = {**spec, "inputs": INPUTS[1:]}
    pod = pod_of(alone, role="ps")
    assert "initContainers" not in pod["spec"]
    assert "inputs" not in {each["name"] for each in pod["spec"]["volumes"]}


def test_an_image_of_the_user_is_not_used_to_fetch() -> None:
    pod = pod_of({**SPEC, "trainer": {"command": ["x"], "image": "own:1"}})
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["muster-supervisor", "muster-inputs"]
    assert fetcher_in(pod)["image"] == IMAGES.trainers["PyTorch"]


def test_later_pods_fetch_the_revision_that_the_job_uses() -> None:
    status = TrainingJobStatus(
        inputs=(
            InputStatus(name="base-model", source="hf://org/tiny", revision="c0ffee"),
            InputStatus(name="rows", source="s3://other", revision="1"),
        )
    )
    first, second = json.loads(variables(fetcher_in(pod_of(SPEC, status=status)))["MUSTER_INPUTS"])
    assert first["revision"] == "c0ffee"
    assert "revision" not in second


def test_the_node_cache_is_of_the_namespace_and_no_template_may_mount_it() -> None:
    pod = pod_of(SPEC, node_cache="/var/lib/muster/inputs")
    fetcher, [trainer] = fetcher_in(pod), pod["spec"]["containers"]
    mount = {"name": "muster-node-cache", "mountPath": "/run/muster-node-cache", "subPath": "ns"}
    assert mounts(fetcher)["/run/muster-node-cache"] == mount
    assert mounts(trainer)["/run/muster-node-cache"] == {**mount, "readOnly": True}
    assert pod["spec"]["volumes"][-1] == {"name": "muster-node-cache", "hostPath": {"path": "/var/lib/muster/inputs", "type": "Directory"}}
    assert variables(fetcher)["MUSTER_INPUTS_CACHE"] == "/run/muster-node-cache"
    stolen = {"name": "muster-node-cache", "mountPath": "/all"}
    for part in (
        {"containers": [{"name": "trainer", "volumeMounts": [stolen]}]},
        {"containers": [{"name": "other", "image": "x", "volumeMounts": [stolen]}]},
        {"initContainers": [{"name": "muster-inputs", "volumeMounts": [stolen]}]},
        {"volumes": [{"name": "muster-node-cache", "emptyDir": {}}]},
    ):
        with pytest.raises(InvalidJobError, match="muster-node-cache"):
            pod_of({**SPEC, "roles": {"worker": {"template": {"spec": part}}}}, node_cache="/var/lib/muster/inputs")
    assert "muster-node-cache" not in str(pod_of({**SPEC, "inputs": []}, node_cache="/var/lib/muster/inputs"))
