"""The strategy Ray: what its nodes are started with, and which jobs it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from muster.admission.validate import problems
from muster_contract.environment import ReplicaEnvironment
from muster_ray.layout import FLAGS, OWN_FLAGS
from muster_ray.nodes import Place, message_of, own_address
from tests.support.golden_jobs import environment_of, job_of, pods_of

SCRIPT = {"script": "train.py"}
FOLDER = Path("/tmp/x")


def flags_of(role: str, **spec: Any) -> dict[str, str]:
    pod = pods_of({"strategy": "Ray", "trainer": SCRIPT, **spec})[f"job-{role}-0"]
    words = shlex.split(environment_of(pod)[FLAGS])
    return dict(word.removeprefix("--").split("=", 1) for word in words)


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({}, {}),
        ({"processesPerReplica": 3}, {"num-cpus": "3"}),
        ({"resources": {"limits": {"cpu": "3500m"}}}, {"num-cpus": "3"}),
        ({"resources": {"limits": {"cpu": "500m"}}}, {"num-cpus": "1"}),
        ({"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 8}}}, {"num-cpus": "8", "num-gpus": "2"}),
    ],
)
def test_a_worker_offers_the_cpus_and_gpus_of_its_limits(worker: dict[str, Any], expected: dict[str, str]) -> None:
    flags = flags_of("worker", roles={"worker": worker})
    assert {name: value for name, value in flags.items() if name.startswith("num-")} == expected


def test_the_head_offers_no_cpus_and_has_no_dashboard_unless_the_job_says_so() -> None:
    assert (flags_of("head")["num-cpus"], flags_of("head")["include-dashboard"]) == ("0", "false")
    config = {"rayStartParams": {"head": {"num-cpus": 2, "include-dashboard": True}}}
    flags = flags_of("head", trainer={**SCRIPT, "config": config})
    assert (flags["num-cpus"], flags["include-dashboard"]) == ("2", "true")


def test_only_the_head_has_the_ports_of_the_control_service_and_all_nodes_their_own() -> None:
    head, worker = flags_of("head"), flags_of("worker")
    assert head["port"] == "6379"
    assert "port" not in worker
    assert {name for name in worker if name.endswith("-port")} == {name for name in OWN_FLAGS if name in worker}
    assert len({value for name, value in head.items() if name.endswith("port")}) == 9


@pytest.mark.parametrize(
    ("trainer", "field", "remedy"),
    [
        ({"task": "digits"}, "spec.trainer.task", "script or command"),
        ({"module": "my.model"}, "spec.trainer.module", "script or command"),
        ({"command": ["ray", "job", "submit", "--", "python", "train.py"]}, "spec.trainer.command", "without `ray start`"),
        ({"command": ["sh", "-c", "ray start --head; python train.py"]}, "spec.trainer.command", "without `ray start`"),
        ({**SCRIPT, "config": {"joinSeconds": "5"}}, "spec.trainer.config.joinSeconds", "1 to 86400"),
        ({**SCRIPT, "config": {"rayStartParams": []}}, "spec.trainer.config.rayStartParams", "below head and worker"),
        ({**SCRIPT, "config": {"rayStartParams": {"group": {}}}}, "spec.trainer.config.rayStartParams", "below head and worker"),
        ({**SCRIPT, "config": {"rayStartParams": {"head": 1}}}, "spec.trainer.config.rayStartParams.head", "by name"),
        (
            {**SCRIPT, "config": {"rayStartParams": {"head": {"--x": 1}}}},
            "spec.trainer.config.rayStartParams.head",
            "without the two hyphens",
        ),
        ({**SCRIPT, "config": {"rayStartParams": {"head": {"port": 1}}}}, "spec.trainer.config.rayStartParams.head.port", "leave it out"),
        (
            {**SCRIPT, "config": {"rayStartParams": {"worker": {"labels": ["a"]}}}},
            "spec.trainer.config.rayStartParams.worker.labels",
            "write a text",
        ),
    ],
)
def test_a_job_that_cannot_work_is_refused_with_a_remedy(trainer: dict[str, Any], field: str, remedy: str) -> None:
    found = {each.field: each.message for each in problems(job_of({"strategy": "Ray", "trainer": trainer}))}
    assert remedy in found[field]


def test_a_job_needs_no_more_than_its_script() -> None:
    assert problems(job_of({"strategy": "Ray", "trainer": SCRIPT})) == []


def test_a_flag_with_quotes_reaches_ray_unchanged() -> None:
    config = {"rayStartParams": {"worker": {"resources": '{"a b": 1}'}}}
    assert flags_of("worker", trainer={**SCRIPT, "config": config})["resources"] == '{"a b": 1}'


def test_nodes_on_one_machine_have_addresses_of_their_own() -> None:
    head, worker = (Place.of(replica("head"), "127.0.0.1:7000"), Place.of(replica("worker", 1), "127.0.0.1:7000"))
    assert (head.gcs, head.own, worker.gcs, worker.own) == ("127.0.0.2:7000", "127.0.0.2", "127.0.0.2:7000", "127.0.0.4")
    assert "--min-worker-port=0" in worker.words("", FOLDER)


def test_nodes_in_a_cluster_find_their_addresses_and_have_a_range_of_ports() -> None:
    worker = Place.of(replica("worker"), "head-0.job.ns.svc:6379")
    words = worker.words("--num-cpus=2", FOLDER)
    assert worker.own is None
    assert {"--address=head-0.job.ns.svc:6379", "--num-cpus=2", "--min-worker-port=10002", "--max-worker-port=19999"} <= set(words)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("a\n2026 ERR scripts.py:87 -- raylet [exit code=-9]\n2026 -- END tail\n", "raylet with exit code -9"),
        ("one\n\ntwo\nthree\nfour\n", "two three four"),
        ("", ""),
    ],
)
def test_the_output_of_ray_start_says_which_server_has_ended(log: str, message: str) -> None:
    assert message_of(log) == message


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import ray\nray.init('ray://other:10001')", (2, "ray://other:10001")),
        ("ray.init(\n    namespace='a',\n    address='10.1.2.3:6379',\n)", (1, "10.1.2.3:6379")),
        ("ray.init('local', num_cpus=1)", (1, "local")),
        ("ray.init()", None),
        ("ray.init(namespace='a')", None),
        ("ray.init(address='auto')", None),
        ("ray.init(address=os.environ['CLUSTER'])", None),
        ("ray.init(**options)", None),
        ("ray.init('head-0.job:6379')", None),
        ("ray.init('ray://head-0.job:10001')", None),
        ("ray.init('localhost:6379')", None),
        ("try:\n    ray.init('auto')\nexcept ConnectionError:\n    ray.init('local')", None),
        ("# ray.init('local')\nhelp = \"ray.init('local')\"", None),
    ],
)
def test_another_address_in_a_program_is_found_unless_a_call_may_use_that_of_the_job(source: str, found: tuple[int, str] | None) -> None:
    assert own_address(source, "head-0.job:6379") == found


def replica(role: str, index: int = 0) -> ReplicaEnvironment:
    pod = pods_of({"strategy": "Ray", "trainer": SCRIPT, "roles": {"worker": {"replicas": 2}}})[f"job-{role}-{index}"]
    return ReplicaEnvironment.from_environment({**environment_of(pod), "MUSTER_POD_NAME": "p", "MUSTER_POD_UID": "u"})
