"""Properties of every valid job, with any strategy and counts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from muster.admission.validate import problems
from muster.api.job import TrainingJob
from muster.api.spec import EVALUATOR
from muster.strategies.registry import STRATEGIES, strategy_of
from muster_contract.batch import split
from tests.support.golden_jobs import environment_of, job_of, manifests_of


@st.composite
def valid_jobs(draw: st.DrawFn) -> TrainingJob:
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    roles: dict[str, Any] = {}
    for name, rule in strategy_of(strategy).roles.items():
        if draw(st.booleans()):
            role: dict[str, Any] = {"replicas": draw(st.integers(1, rule.maximum or 6))}
            role["resources"] = {"limits": draw(st.sampled_from([{}, {"nvidia.com/gpu": 3}, {"cpu": "1500m"}]))}
            if draw(st.booleans()):
                role["processesPerReplica"] = draw(st.integers(1, 4))
            roles[name] = role
    spec: dict[str, Any] = {"strategy": strategy, "trainer": {"task": "digits"}, "roles": roles}
    if draw(st.booleans()):
        spec["batch"] = {"globalSize": draw(st.integers(1, 500))}
    if strategy == "TPU":
        spec["options"] = {"tpu": {"accelerator": "tpu-v5-lite-podslice", "topology": draw(st.sampled_from(["2x2", "2x4", "4x4"]))}}
    job = job_of(spec)
    assume(not problems(job))
    return job


@given(job=valid_jobs())
@settings(max_examples=60)
def test_names_are_unique_and_every_address_belongs_to_a_pod(job: TrainingJob) -> None:
    [service, *pods] = manifests_of(job)
    names = [pod["metadata"]["name"] for pod in pods]
    assert len(set(names)) == len(names)
    hosts = {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.ns.svc" for pod in pods}
    open_ports = {port["port"] for port in service["spec"].get("ports", ())}
    for pod in pods:
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        environment = environment_of(pod)
        addresses = [
            address for members in json.loads(environment.get("TF_CONFIG", '{"cluster": {}}'))["cluster"].values() for address in members
        ]
        addresses += [f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"] if "MASTER_ADDR" in environment else []
        for host, port in (address.split(":") for address in addresses):
            assert host in hosts
            assert int(port) in open_ports


@given(job=valid_jobs())
def test_ranks_start_at_0_without_gaps(job: TrainingJob) -> None:
    plan = strategy_of(job.spec.strategy).plan(job.spec)
    ranks = [
        replica.first_rank + local for replica in plan.replicas if replica.first_rank is not None for local in range(replica.processes)
    ]
    assert ranks == list(range(plan.size))
    assert all(replica.role == EVALUATOR for replica in plan.replicas if replica.first_rank is None)


@given(job=valid_jobs())
def test_every_device_of_a_valid_job_has_a_share_of_the_batch(job: TrainingJob) -> None:
    size = job.spec.batch.global_size
    assume(size is not None)
    shares = split(size or 0, strategy_of(job.spec.strategy).data_parallel(job.spec))
    assert sum(shares) == size
    assert min(shares) >= 1
    assert max(shares) - min(shares) <= 1
