"""The network policy of a job: its open ports, and the pods that may reach them."""

from __future__ import annotations

from typing import Any

from muster.api.job import TrainingJob
from muster.control.network_policy import network_policy


def rules(template: dict[str, Any] | None = None) -> list[Any]:
    spec = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2, "template": template or {}}}}
    job = TrainingJob.model_validate({"metadata": {"name": "digits", "namespace": "default", "uid": "u"}, "spec": spec})
    policy = network_policy(job)
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    own, *others = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    return list(others)


def test_only_pods_of_a_job_reach_its_ports() -> None:
    assert rules() == []


def test_ports_that_a_template_declares_are_open_and_training_ports_closed() -> None:
    board = {"name": "board", "ports": [{"containerPort": 6006}, {"containerPort": 6006}, {"containerPort": 53, "protocol": "UDP"}]}
    trainer = {"name": "trainer", "ports": [{"containerPort": 29500}, {"containerPort": "http"}]}
    assert rules({"spec": {"containers": [board, trainer]}}) == [
        {"ports": [{"port": 6006, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}
    ]
