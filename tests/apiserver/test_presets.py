"""Presets on a real API server: who may make them, what jobs get, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_policies import JOBS_ONLY, answer, author
from tests.support.api_server.api import JOBS, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Nodes
from tests.support.api_server.operators import operating
from tests.support.presets import preset
from tests.support.texts import absent
from tests.support.waiting import wait_until

PRESETS = "/apis/muster.dev/v1beta1/trainingpresets"
SMALL: dict[str, Any] = {
    "template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}]}},
    "roles": {"worker": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}},
}


@pytest.fixture
def presets(cluster: Cluster) -> Iterator[str]:
    """Where presets are. None is left."""
    yield PRESETS
    for each in cluster.admin.items(PRESETS):
        cluster.admin.delete(f"{PRESETS}/{each['metadata']['name']}")


def named(name: str, preset: str) -> Object:
    return job(name, workers=2, preset=preset)


def valid(jobs: Jobs, name: str) -> str:
    return str(condition(jobs.status(name), "Valid").get("message", ""))


def pools(jobs: Jobs, name: str) -> set[str]:
    return {pod["spec"].get("nodeSelector", {}).get("pool", "") for pod in jobs.pods(name)}


def test_a_job_waits_for_its_preset_and_gets_its_changes_at_the_next_restart(
    cluster: Cluster, jobs: Jobs, nodes: Nodes, presets: str, tmp_path: Path
) -> None:
    cluster.admin.create(presets, preset("a100-8"))
    cluster.admin.create(presets, preset("h100-8"))
    with operating(cluster, tmp_path / "operator"):
        jobs.submit(named("digits", "small"))
        wait_until(lambda: absent(valid(jobs, "digits"), "spec.preset: ", "preset small", "a100-8, h100-8") == [], "it is refused")
        assert jobs.pods("digits") == []
        cluster.admin.create(presets, preset("small", **SMALL))
        jobs.reaches("digits", "Running")
        [pod, _] = jobs.pods("digits")
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in pod["spec"]["containers"][0]["env"]
        assert (pools(jobs, "digits"), "preset small" in valid(jobs, "digits")) == ({"a"}, True)
        cluster.admin.patch(f"{presets}/small", {"spec": {"roles": {"worker": {"template": {"spec": {"nodeSelector": {"pool": "b"}}}}}}})
        cluster.admin.create(presets, preset("later"))
        jobs.submit(named("probe", "none"))
        wait_until(lambda: valid(jobs, "probe").endswith("there are a100-8, h100-8, later, small"), "the operator has seen the change")
        assert (pools(jobs, "digits"), jobs.status("digits")["attempt"]) == ({"a"}, 0), "a running world is left alone"
        jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}")
        wait_until(lambda: jobs.status("digits")["restarts"]["total"] == 1 and len(jobs.pods("digits")) == 2, "the job recovers")
        wait_until(lambda: pools(jobs, "digits") == {"b"}, "all its pods have the new version")
        jobs.reaches("digits", "Running")
        cluster.admin.delete(f"{presets}/small")
        wait_until(lambda: "there is no preset small" in valid(jobs, "digits"), "the deletion is seen")
        assert jobs.status("digits")["phase"] == "Running", "what runs goes on"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"name": "a" * 64}}, "at most 63 characters"),
        ({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}, "name"),
        ({"spec": {"roles": {"Bad Role": 3}}}, "roles"),
    ],
)
def test_the_api_server_refuses_a_malformed_preset(cluster: Cluster, presets: str, change: Object, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        cluster.admin.create(presets, {**preset(), **change})


def test_an_author_of_jobs_reads_presets_but_cannot_make_or_change_them(cluster: Cluster, namespace: str, presets: str) -> None:
    cluster.admin.create(presets, preset("small", **SMALL))
    tenant = author(cluster, namespace, JOBS_ONLY)
    assert [each["metadata"]["name"] for each in tenant.items(presets)] == ["small"]
    assert "forbidden" in answer(tenant, presets, preset("mine"))
    with pytest.raises(ApiError, match="forbidden"):
        tenant.patch(f"{presets}/small", {"spec": {"images": {"PyTorch": "evil"}}})
    with pytest.raises(ApiError, match="forbidden"):
        tenant.delete(f"{presets}/small")


def test_a_preset_gives_the_author_of_a_job_no_further_rights(cluster: Cluster, namespace: str, presets: str) -> None:
    """The values of a preset are the platform's, as those of jobDefaults are. What the author writes is checked as in every job."""
    storage = {"uri": "s3://platform/runs", "secretRef": {"name": "s3-platform"}}
    cluster.admin.create(presets, preset("stored", checkpoint={"storage": storage}))
    tenant, folder = author(cluster, namespace, JOBS_ONLY), JOBS.format(namespace)
    assert answer(tenant, folder, named("plain", "stored")) == ""
    own = {**storage, "uri": "s3://elsewhere/runs"}
    assert "get Secret s3-platform" in answer(tenant, folder, job("own", preset="stored", checkpoint={"storage": own}))
    account = {"worker": {"template": {"spec": {"serviceAccountName": "powerful"}}}}
    assert "may neither create tokens" in answer(tenant, folder, job("account", preset="stored", roles=account))
