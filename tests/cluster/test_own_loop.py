"""A program with a loop of its own in a cluster: what fences it, and what becomes of its pod's other containers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from local_cluster.installation import Installation
from tests.support.cluster_jobs import CLAIM, EVENTS, ClusterJob, Ground, Manifest, apart, job
from tests.support.outages import NODE_FAULTS, lone_replica, node_of, outage, with_spare_beside_operator

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "own-loop" / "train.py"
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
SIDE_CAR = {
    "name": "metrics",
    "command": ["python", "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"],
}
WITHOUT_A_FENCE = 60.0
"""Seconds. A program that nothing fences is replaced after minutes only, when its node is removed by force."""


def own_loop(ground: Ground, *, pause: float, grace: int = 10, containers: tuple[Manifest, ...] = (), **spec: object) -> ClusterJob:
    """The program of examples/own-loop on two workers. `pause` is the time in seconds after each of its 200 steps."""
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own-loop"}, "data": {"train.py": PROGRAM.read_text()}}
    ground.kubectl("apply", "-f", "-", stdin=json.dumps(code))
    trainer = {"script": "train.py", "args": [str(pause)], "code": {"configMap": {"name": "own-loop"}}}
    checkpoint = {"gracePeriodSeconds": grace, "storage": {"persistentVolumeClaim": {"claimName": CLAIM}}}
    template = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [EVENTS]}, *containers]}}
    roles = {"worker": {"replicas": 2, "template": template}}
    return ground.apply(apart(job("own-loop", strategy="DDP", trainer=trainer, roles=roles, checkpoint=checkpoint, **spec)))


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_spare_takes_the_place_of_a_worker_of_an_own_loop_whose_node_is_killed(ground: Ground, muster: Installation) -> None:
    training = own_loop(ground, pause=0.5, recovery={"spares": 1})
    training.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1)
    with_spare_beside_operator(training, "worker-2")
    training.wait_for_step(45)
    lost = lone_replica(training)
    with node_of(training, lost, NODE_FAULTS["killed"]) as lose:
        still = outage(training, lose)
        print(f"node of {lost} of an own loop killed: {still}")
        assert still.seconds < WITHOUT_A_FENCE, training.story()
        assert training.wait_for_end() == "Succeeded", training.story()
    assert training.attempts[1]["stepResumed"] >= 40, training.attempts
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_side_car_that_ignores_sigterm_holds_its_pod_for_a_short_grace_only(ground: Ground, muster: Installation) -> None:
    grace = 300
    side_car = {**SIDE_CAR, "image": muster.images["trainer-pytorch"], "imagePullPolicy": "IfNotPresent", "securityContext": RESTRICTED}
    training = own_loop(ground, pause=0.02, grace=grace, containers=(side_car,))
    assert training.wait_for_end() == "Succeeded", training.story()
    ended = time.monotonic()
    training.wait_for(lambda: all_ended(training) or None, "no container runs any more", grace / 2)
    print(f"the side-cars ended {time.monotonic() - ended:.1f} s after the success")


def all_ended(training: ClusterJob) -> bool:
    return all(container["state"].get("terminated") for pod in training.pods() for container in pod["status"].get("containerStatuses", ()))
