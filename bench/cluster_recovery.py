"""How long a job in a real cluster stands still after the loss of pods or nodes: `python -m bench.cluster_recovery`. Prints JSON.

It runs on the cluster of `make cluster`. Its nodes are containers of this machine, so their processes can be killed from here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import local_cluster
from local_cluster import installation
from tests.support.cluster_jobs import CLAIM, ClusterJob, Ground, apart, digits, job, make_ground, trains
from tests.support.outages import NODE_FAULTS, Outage, delete_pod, lone_replica, node_of, outage, with_spare_beside_operator

TIMEOUT_SECONDS = 300.0
REPLICAS, KILLED = 32, 30
UNLIMITED = {each: {"limit": -1} for each in ("infrastructure", "preemption")}
ELASTIC = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 5}
PARTS = ("replicaLost", "outages", "largeWorld")
LOAD_SECONDS = 20.0
"""Seconds that a job trains before a loss, because the load of its start must not count."""
IMPORTING = "import time, torch, torch._dynamo, torch.distributed; print(time.time())"


@contextmanager
def ground(cluster: local_cluster.Cluster, name: str) -> Iterator[Ground]:
    """A namespace with a claim. Both are removed at the end, with all files."""
    made = make_ground(cluster, name)
    try:
        yield made
    finally:
        made.remove()


def bare_pod(place: Ground, image: str, number: int) -> float:
    """Seconds from the creation of a pod of the trainer image until it has imported the framework."""
    nobody = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "bare", "image": image, "command": ["python", "-c", IMPORTING], "securityContext": locked}
    name = f"bare-{number}"
    spec = {"restartPolicy": "Never", "securityContext": nobody, "containers": [container]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    begun = time.time()
    place.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    place.cluster.wait_until(f"{name} ends", lambda: _phase(place, name) == "Succeeded", timeout=TIMEOUT_SECONDS)
    return float(place.kubectl("logs", name)) - begun


def _phase(place: Ground, name: str) -> str:
    return str(place.cluster.get("pod", name, "--namespace", place.namespace)["status"].get("phase"))


def stands_still(training: ClusterJob, index: int) -> float:
    """Seconds from the sudden end of a worker's pod to the first new step."""
    done = last_step(training)
    training.wait_for_step(done + 45)
    (supervisor,) = _processes(training, "muster_trainer.supervisor", {index})
    begun, done = time.time(), last_step(training)
    os.kill(supervisor, signal.SIGKILL)
    done = max([done, *(event["step"] for event in training.events("step") if event["time"] <= begun)]) + 2  # those under way
    training.wait_for_step(done + 1, timeout=TIMEOUT_SECONDS)
    return min(event["time"] for event in training.events("step") if event["step"] == done + 1) - begun


def last_step(training: ClusterJob) -> int:
    return max((event["step"] for event in training.events("step")), default=0)


def replica_lost(place: Ground, name: str, times: int, **spec: Any) -> list[float]:
    """The seconds that two DDP workers stand still, each time that the pod of one is lost and replaced. `spec` has further
    fields of the job, such as `elastic`."""
    config = {"epochs": 100_000, "stepDelaySeconds": 0.02}
    training = place.apply(digits(name, trainer={"task": "digits", "config": config}, recovery=UNLIMITED, **spec))
    taken = []
    for _ in range(times):
        training.wait_until("two workers train", lambda status: trains(status, 2), timeout=TIMEOUT_SECONDS)
        taken.append(stands_still(training, 1))
    place.kubectl("delete", "trainingjob", name)
    return taken


def outages(place: Ground, times: int) -> dict[str, list[Outage]]:
    """The effect of a deleted pod, a killed node and a frozen node on two DDP workers, with a spare and without one."""
    taken: dict[str, list[Outage]] = {}
    for number in range(times):
        for spares in (1, 0):
            for kind in ("podDeleted", "nodeKilled", "nodeFrozen"):
                name = f"{kind.lower()}-{spares}-{number}"
                taken.setdefault(kind + ("WithSpare" if spares else ""), []).append(one_outage(place, name, kind, spares=spares))
                print(f"{name}: {taken[kind + ('WithSpare' if spares else '')][-1]}", file=sys.stderr, flush=True)
    return taken


def one_outage(place: Ground, name: str, kind: str, *, spares: int) -> Outage:
    """One outage of a new job, because after the loss of a node all pods of an earlier job are on the other node."""
    config = {"epochs": 100_000, "stepDelaySeconds": 0.05}
    training = place.apply(apart(digits(name, trainer={"task": "digits", "config": config}, recovery={**UNLIMITED, "spares": spares})))
    training.wait_until("two workers train", lambda status: trains(status, 2), timeout=TIMEOUT_SECONDS)
    if spares:
        training.wait_until("the spare is ready", lambda status: status.get("readySpares") == 1, timeout=TIMEOUT_SECONDS)
        with_spare_beside_operator(training, "worker-2")
    training.wait_for_step(last_step(training) + int(LOAD_SECONDS / 0.2), timeout=TIMEOUT_SECONDS)
    lost = lone_replica(training)
    try:
        if kind == "podDeleted":
            return outage(training, lambda: delete_pod(training, lost))
        with node_of(training, lost, NODE_FAULTS["killed" if kind == "nodeKilled" else "frozen"]) as lose:
            return outage(training, lose)
    finally:
        place.kubectl("delete", "trainingjob", name)
        place.cluster.wait_until(f"the pods of {name} are gone", lambda: not training.pods(), timeout=TIMEOUT_SECONDS)


def large_world(place: Ground) -> dict[str, float]:
    """The seconds until 32 replicas are in one world: after their first start, after 30 of their processes died at once, and after 30 pods
    died."""
    program = Path(__file__).with_name("join_a_world.py")
    place.kubectl("create", "configmap", "code", f"--from-file={program}")
    manifest = job(
        "large",
        strategy="DDP",
        trainer={"script": program.name, "code": {"configMap": {"name": "code"}}},
        batch={"globalSize": REPLICAS},
        checkpoint={"storage": {"persistentVolumeClaim": {"claimName": CLAIM}}},
        recovery=UNLIMITED,
        roles={"worker": {"replicas": REPLICAS}},
    )
    begun = time.time()
    training = place.apply(manifest)
    figures = {"firstStart": until_step(training, 1, attempt=0) - begun}
    for attempt, (label, program_of) in enumerate((("processesKilled", program.name), ("podsKilled", "muster_trainer.supervisor")), 1):
        victims = _processes(training, program_of, set(range(REPLICAS - KILLED, REPLICAS)))
        begun = time.time()
        for victim in victims:
            with suppress(ProcessLookupError):  # a process may have ended already, because it lost the first ones
                os.kill(victim, signal.SIGKILL)
        figures[label] = until_step(training, 1, attempt=attempt) - begun
    return {label: round(seconds, 1) for label, seconds in figures.items()}


def until_step(training: ClusterJob, step: int, *, attempt: int) -> float:
    """When a world of that attempt, or of a later one, did that step, in Unix seconds."""
    training.wait_for_step(step, attempt=attempt, timeout=TIMEOUT_SECONDS)
    return min(float(event["time"]) for event in training.events("step") if event["attempt"] >= attempt)


def _processes(training: ClusterJob, program: str, indices: set[int]) -> list[int]:
    """The pids of the processes that run these workers."""
    uid = training.read()["metadata"]["uid"]
    pids = []
    for process in psutil.process_iter():
        try:
            if any(program in word for word in process.cmdline()):
                environment = process.environ()
                ours = environment.get("MUSTER_JOB_UID") == uid and int(environment.get("MUSTER_INDEX", "-1")) in indices
                pids += [process.pid] if ours else []
        except psutil.Error:
            continue
    if len(pids) != len(indices):
        raise SystemExit(
            f"{len(pids)} processes run {program}, not {len(indices)}: this needs the cluster of `make cluster`, on this machine"
        )
    return pids


def replicas_lost(place: Ground, image: str, times: int) -> dict[str, Any]:
    """The seconds until a lost pod is replaced, also as multiples of the seconds that a bare pod takes to import the framework."""
    bare = [bare_pod(place, image, number) for number in range(times)]
    lost = {
        "replicaLost": replica_lost(place, "lost", times),
        "replicaLostElastic": replica_lost(place, "elastic", times, elastic=ELASTIC),
    }
    seconds = {label: [round(each, 2) for each in taken] for label, taken in {"barePod": bare, **lost}.items()}
    return {"seconds": seconds} | {
        f"{label}/barePod": round(statistics.median(taken) / statistics.median(bare), 2) for label, taken in lost.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often a pod is lost")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    options = parser.parse_args()
    places = local_cluster.Places.default()
    cluster = local_cluster.up(places)
    with places.in_use():
        muster = installation.ensure(cluster)
        figures: dict[str, Any] = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        if "replicaLost" in options.parts:
            with ground(cluster, "bench-recovery") as place:
                figures |= replicas_lost(place, muster.images["trainer-pytorch"], options.times)
        if "outages" in options.parts:
            with ground(cluster, "bench-outages") as place:
                taken = outages(place, options.times)
            figures["outages"] = {label: [round(each.seconds, 2) for each in some] for label, some in taken.items()}
            figures["outagesWithoutStep"] = {label: [round(each.idle_seconds, 2) for each in some] for label, some in taken.items()}
        print(json.dumps(figures), file=sys.stderr, flush=True)
        if "largeWorld" in options.parts:
            with ground(cluster, "bench-large") as place:
                figures[f"worldOf{REPLICAS}Seconds"] = large_world(place)
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
