"""The strategy Horovod: the variables of its ranks, the jobs it refuses, and which of its errors are about a lost peer."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.validate import problems
from muster_contract.codes import ExitCode
from muster_contract.environment import ReplicaEnvironment
from muster_trainer.supervisor.environment import plan
from muster_trainer.supervisor.outcome import End, meaning
from muster_trainer.supervisor.output_tail import peer_lost_pattern
from tests.support.descriptors import runtime
from tests.support.golden_jobs import environment_of, job_of, pods_of

SCRIPT = {"script": "train.py"}


def processes_of(**worker: Any) -> list[dict[str, str]]:
    """The variables of Horovod of all processes, in the order of the ranks."""
    found = []
    for pod in pods_of({"strategy": "Horovod", "trainer": SCRIPT, "roles": {"worker": worker}}).values():
        environ = {**environment_of(pod), "MUSTER_POD_NAME": "p", "MUSTER_POD_UID": "u"}
        replica = ReplicaEnvironment.from_environment(environ)
        for launch in plan(environ, replica, replica.trainer_spec):
            found.append({name.removeprefix("HOROVOD_"): value for name, value in launch.env.items() if name.startswith("HOROVOD_")})
    return found


def test_a_replica_is_a_host_and_each_of_its_processes_a_slot() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    assert [tuple(each[name] for name in names) for each in processes_of(replicas=3, processesPerReplica=2)] == [
        (str(rank), "6", str(rank % 2), "2", str(rank // 2), "3", f"worker-{rank // 2}") for rank in range(6)
    ]


def test_all_ranks_meet_at_the_server_of_rank_0() -> None:
    [first, second] = processes_of(replicas=2)
    assert (first["GLOO_RENDEZVOUS_ADDR"], first["GLOO_RENDEZVOUS_PORT"]) == ("worker-0.job.ns.svc", "29450")
    assert second["GLOO_RENDEZVOUS_PORT"] == "29450"
    assert (second["CONTROLLER"], second["CPU_OPERATIONS"]) == ("gloo", "gloo")


@pytest.mark.parametrize(
    ("spec", "field", "remedy"),
    [
        ({"trainer": {"task": "digits"}}, "spec.trainer.task", "write script or command"),
        ({"trainer": {"module": "my_pkg.model"}}, "spec.trainer.module", "write script or command"),
        ({"trainer": {"command": ["horovodrun", "-np", "2", "python", "a.py"]}}, "spec.trainer.command", "without horovodrun"),
        ({"trainer": {"command": ["sh", "-c", "cd x && mpirun ./a"]}}, "spec.trainer.command", "without mpirun"),
        ({"trainer": {"command": ["/opt/bin/torchrun", "a.py"]}}, "spec.trainer.command", "without torchrun"),
        ({"trainer": {"script": "horovodrun python a.py"}}, "spec.trainer.script", "roles.worker.replicas"),
        ({"roles": {"launcher": {}}}, "spec.roles", "only worker"),
        ({"roles": {"worker": {"replicas": 2}}, "elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.elastic", "remove it"),
    ],
)
def test_a_job_that_cannot_work_is_refused_with_a_remedy(spec: dict[str, Any], field: str, remedy: str) -> None:
    found = {each.field: each.message for each in problems(job_of({"strategy": "Horovod", "trainer": SCRIPT, **spec}))}
    assert remedy in found[field]


def test_a_job_needs_no_more_than_its_script() -> None:
    assert problems(job_of({"strategy": "Horovod", "trainer": SCRIPT})) == []


RAISED = "horovod.common.exceptions.HorovodInternalError: "
GLOO = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:6053"
SHUT_DOWN = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (RAISED + GLOO, ExitCode.PEER_LOST),
        (RAISED + SHUT_DOWN, ExitCode.PEER_LOST),
        (RAISED + "Timed out waiting 300000ms for send operation to complete", ExitCode.PEER_LOST),
        (RAISED + "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2]", ExitCode.USER_ERROR),
        (RAISED + "Allgather is not supported with Join at this time.", ExitCode.USER_ERROR),
        ("ValueError: no such planet", ExitCode.USER_ERROR),
    ],
)
def test_an_error_of_a_collective_is_a_lost_peer_unless_the_program_is_its_cause(line: str, expected: int) -> None:
    pattern = peer_lost_pattern(runtime("Horovod").framework.peer_lost)
    tail = ["Traceback (most recent call last):", '  File "train.py", line 1, in <module>', line]
    assert meaning(End(0, 1, None, False, tail, peer_lost=pattern)) == expected
