"""The names, addresses and node rules of pods in the place of others that do not answer and may still exist."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.admission.rules import MAX_NAME_LENGTH
from muster.api.job import TrainingJob
from muster.api.status import Meaning, Member, NodeNotice, OrphanedPod, TrainingJobStatus, World
from muster.render.addresses import addresses_of
from muster.render.manifests import render_replica, render_world
from tests.support.golden_jobs import IMAGES, JOBS, environment_of, job_of

T0 = datetime(2026, 11, 21, 10, tzinfo=UTC)
ATTEMPT = 3
WISHES = "preferredDuringSchedulingIgnoredDuringExecution"
RULES = "requiredDuringSchedulingIgnoredDuringExecution"
EXCLUDED = "muster.dev/excluded-nodes"


def left(replica: str = "worker-1", *, node: str = "node-1", uid: str = "old") -> OrphanedPod:
    role, _, index = replica.rpartition("-")
    return OrphanedPod(name=f"job-{replica}", uid=uid, role=role, index=int(index), attempt=2, node=node, since=T0)


def job(spec: dict[str, Any] | str, suffixes: dict[str, int], *lost: OrphanedPod, replicas: int = 2) -> TrainingJob:
    """A job in attempt 3, with the suffixes of these replicas."""
    rendered = job_of(JOBS[spec] if isinstance(spec, str) else spec)
    labels = [f"{role}-{index}" for role, each in rendered.spec.roles.items() for index in range(each.replicas)]
    parts = [(label, *label.rsplit("-", 1)) for label in labels or [f"worker-{index}" for index in range(replicas)]]
    members = tuple(Member(role=role, index=int(index), suffix=suffixes.get(label)) for label, role, index in parts)
    world = World(attempt=ATTEMPT, size=len(members), members=members, created_time=T0)
    return rendered.with_status(TrainingJobStatus(attempt=ATTEMPT, world=world, orphaned=lost))


def pod(job: TrainingJob, role: str = "worker", index: int = 1, **standing_by: Any) -> dict[str, Any]:
    return render_replica(job, role, index=index, attempt=ATTEMPT, addresses=addresses_of(job, ATTEMPT), images=IMAGES, **standing_by)


def ddp(template: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2, "template": template or {}}}}


def terms(pod: dict[str, Any]) -> Any:
    return pod["spec"]["affinity"]["nodeAffinity"][RULES]["nodeSelectorTerms"]


def other_than(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


def test_the_suffix_is_in_the_name_of_the_pod_and_of_its_host() -> None:
    renamed = job("ddp", {"worker-1": ATTEMPT}, left())
    assert [(each["metadata"]["name"], each["spec"]["hostname"]) for each in (pod(renamed, index=0), pod(renamed))] == [
        ("job-worker-0", "worker-0"),
        ("job-worker-1-3", "worker-1-3"),
    ]
    labels = pod(renamed)["metadata"]["labels"]
    assert (labels["muster.dev/role"], labels["muster.dev/index"]) == ("worker", "1")
    assert pod(renamed)["spec"]["subdomain"] == "job"


def test_a_replica_that_stands_by_has_no_suffix() -> None:
    assert pod(job("ddp", {"worker-1": ATTEMPT}), standby=True)["metadata"]["name"] == "job-worker-1"


def test_the_longest_name_with_a_suffix_fits_into_a_host_name() -> None:
    assert len(f"{'d' * MAX_NAME_LENGTH}-evaluator-4095-999") <= 63


@pytest.mark.parametrize("spec", ["ddp", "fsdp", "tensor-parallel", "pipeline", "jax", "multi-worker-mirrored"])
def test_all_replicas_get_the_address_with_the_suffix_of_rank_0(spec: str) -> None:
    renamed = job(spec, {"worker-0": ATTEMPT}, left("worker-0"))
    host = "worker-0-3.job.ns.svc"
    for index in (0, 1):
        world = render_world(renamed, "worker", index=index, attempt=ATTEMPT, addresses=addresses_of(renamed, ATTEMPT))
        created = environment_of(pod(renamed, index=index))
        shared = [name for name, value in world.items() if host in value]
        assert shared
        assert all(created[name] == world[name] for name in shared)
        assert not any("worker-0.job" in value for value in (*world.values(), *created.values()))


def test_the_cluster_of_tensorflow_has_the_suffix() -> None:
    renamed = job("multi-worker-mirrored", {"worker-1": ATTEMPT}, left())
    world = render_world(renamed, "worker", index=0, attempt=ATTEMPT, addresses=addresses_of(renamed, ATTEMPT))
    hosts = [address.partition(":")[0] for address in json.loads(world["TF_CONFIG"])["cluster"]["worker"]]
    assert hosts == ["worker-0.job.ns.svc", "worker-1-3.job.ns.svc"]


def test_each_world_has_its_own_addresses() -> None:
    """The suffixes are cached by world."""
    first, second = job("ddp", {"worker-0": 1}), job("ddp", {"worker-0": 2})
    assert [addresses_of(each, ATTEMPT).host("worker", 0) for each in (first, second, job_of(JOBS["ddp"]))] == [
        "worker-0-1.job.ns.svc",
        "worker-0-2.job.ns.svc",
        "worker-0.job.ns.svc",
    ]


def test_a_new_pod_does_not_go_to_a_node_that_does_not_answer() -> None:
    lost = (left(), left("worker-0", node="node-0", uid="u0"), left("worker-2", uid="u2"), left("worker-3", node="", uid="u3"))
    made = pod(job(ddp(), {"worker-1": ATTEMPT}, *lost))
    assert terms(made) == [{"matchFields": [other_than("node-0"), other_than("node-1")]}]
    assert made["metadata"]["annotations"][EXCLUDED] == "node-0,node-1"


def test_the_rule_against_a_node_holds_in_each_alternative_of_the_template() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]} for name in "ab"]
    fixed = {"matchFields": [other_than("node-7")]}
    template = {"spec": {"affinity": {"nodeAffinity": {RULES: {"nodeSelectorTerms": [*zones, fixed]}}, "podAffinity": {}}}}
    made = pod(job(ddp(template), {}, left()))
    rule = {"matchFields": [other_than("node-1")]}
    assert terms(made) == [{**zones[0], **rule}, {**zones[1], **rule}, {"matchFields": [other_than("node-7"), other_than("node-1")]}]
    assert made["spec"]["affinity"]["podAffinity"] == {}


def test_a_pod_without_silent_nodes_is_as_its_template_says() -> None:
    made = pod(job(ddp({"metadata": {"annotations": {"a": "b"}}}), {}))
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert "affinity" not in made["spec"]


@pytest.mark.parametrize("own", [None, {"podAntiAffinity": {RULES: ["mine"]}}])
def test_a_replacement_on_karpenter_has_no_rule_against_the_name_of_a_node(own: dict[str, Any] | None) -> None:
    """Karpenter adds no node for a pod with such a rule."""
    leaving = job(ddp({"spec": {"affinity": own}}), {})
    signals = {"node-1": "taint karpenter.sh/disrupted", "node-2": "cordoned", "node-3": "condition KernelDeadlock"}
    meanings = {"cordoned": Meaning.TAKES_NO_PODS}
    notices = [NodeNotice(node=node, signal=each, meaning=meanings.get(each, Meaning.GOES), since=T0) for node, each in signals.items()]
    leaving = leaving.with_status(replace(leaving.status, node_notices=tuple(notices)))
    both = pod(leaving, standby=True, apart_from=[("worker", 0, 2)])
    labels = {"muster.dev/job-uid": leaving.metadata.uid, "muster.dev/role": "worker", "muster.dev/index": "0", "muster.dev/attempt": "2"}
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    assert both["spec"]["affinity"]["podAntiAffinity"][RULES] == [*(["mine"] if own else []), rule]
    assert terms(both) == [{"matchFields": [other_than("node-3")]}]
    [wish] = both["spec"]["affinity"]["nodeAffinity"][WISHES]
    assert wish["preference"] == {"matchFields": [other_than("node-1")]}
    only_karpenter = leaving.with_status(replace(leaving.status, node_notices=tuple(notices[:2])))
    assert RULES not in pod(only_karpenter, standby=True)["spec"]["affinity"]["nodeAffinity"]


def test_a_template_cannot_claim_that_a_pod_excludes_nodes() -> None:
    template = {"metadata": {"annotations": {EXCLUDED: "node-9", "a": "b"}}}
    assert pod(job(ddp(template), {}))["metadata"]["annotations"] == {"a": "b"}
    assert pod(job(ddp(template), {}, left()))["metadata"]["annotations"] == {EXCLUDED: "node-1", "a": "b"}


def test_a_pod_excludes_a_bounded_number_of_nodes() -> None:
    lost = [left(f"worker-{number}", node=f"node-{number:03}", uid=f"u{number}") for number in range(200)]
    assert len(terms(pod(job(ddp(), {}, *lost)))[0]["matchFields"]) == 50
