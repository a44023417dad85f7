"""What the NetworkPolicies in the cluster mean, by an evaluator that is not ours: the test cluster's plain bridge does not enforce them.

cyclonus is the evaluator that the Kubernetes network policy conformance tests grew out of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local_cluster import Places, Programs
from local_cluster.installation import NAMESPACE, Installation
from local_cluster.process import run
from tests.support.cluster_jobs import Ground, Manifest, job

OUTSIDE = {"IP": "198.51.100.7"}
Evaluator = Callable[..., list[bool]]


@pytest.fixture(scope="module")
def cyclonus() -> str:
    programs = Programs(Places.default())
    programs.ensure(["cyclonus"])
    return str(programs.path("cyclonus"))


@pytest.fixture
def allowed(cyclonus: str, ground: Ground, tmp_path: Path) -> Evaluator:
    """Whether each of (from, to, port, name of the port) may pass, by the policies that are in the cluster now."""

    def evaluate(*traffic: tuple[Any, Any, int, str]) -> list[bool]:
        policies = ground.cluster.get("networkpolicies", "--all-namespaces")["items"]
        (tmp_path / "policies").mkdir(exist_ok=True)
        for number, policy in enumerate(policies):
            (tmp_path / "policies" / f"{number}.yaml").write_text(json.dumps(policy))
        queries = [
            {"Source": source, "Destination": target, "Protocol": "TCP", "ResolvedPort": port, "ResolvedPortName": name}
            for source, target, port, name in traffic
        ]
        (tmp_path / "traffic.json").write_text(json.dumps(queries))
        files = ("--policy-path", tmp_path / "policies", "--traffic-path", tmp_path / "traffic.json")
        output = run([cyclonus, "analyze", "--mode", "query-traffic", *files], 60)
        answers = re.findall(r"IS ALLOWED\? *\| *(TRUE|FALSE)", output)
        assert len(answers) == len(traffic), output
        return [answer == "TRUE" for answer in answers]

    return evaluate


@pytest.mark.timeout(600)
def test_only_pods_of_the_same_job_reach_each_others_ports_and_only_supervisors_the_operator(
    allowed: Evaluator, ground: Ground, muster: Installation
) -> None:
    for name in ("one", "other"):
        ground.apply(job(name, strategy="DDP", trainer={"command": ["sleep", "600"]})).wait_for_phase("Running")
    one, two = (peer(ground.items("pods", f"muster.dev/job-name=one,muster.dev/index={index}")[0]) for index in range(2))
    other = peer(ground.items("pods", "muster.dev/job-name=other")[0])
    muster.wait_until_ready()
    operator = peer(muster.operator_pod())
    stranger = {"Internal": {"PodLabels": {"app": "web"}, "NamespaceLabels": {}, "Namespace": "web"}, "IP": "10.244.9.9"}
    assert allowed((one, two, 29500, ""), (two, one, 29500, ""), (one, two, 34567, "")) == [True, True, True]
    assert allowed(*((source, one, 29500, "") for source in (other, operator, stranger, OUTSIDE))) == [False] * 4
    reports = (one, operator, 8443, "coordination"), (stranger, operator, 8443, "coordination"), (OUTSIDE, operator, 8443, "coordination")
    assert allowed(*reports) == [True, False, False]
    assert allowed((stranger, operator, 9090, "metrics"), (stranger, operator, 8080, "health")) == [True, False]
    assert allowed((operator, OUTSIDE, 6443, ""), (operator, OUTSIDE, 80, ""), (operator, one, 29500, "")) == [True, False, False]
    assert operator["Internal"]["Namespace"] == NAMESPACE


def peer(pod: Manifest) -> dict[str, Any]:
    labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
    named = {"kubernetes.io/metadata.name": namespace}
    return {"Internal": {"PodLabels": labels, "NamespaceLabels": named, "Namespace": namespace}, "IP": pod["status"]["podIP"]}
