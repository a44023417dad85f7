"""Measures how much of its time a job in a cluster spends on new steps, while a random fault of the matrix strikes it every minute:
`python -m bench.cluster_goodput`. Prints JSON.

It runs on the cluster of `make cluster`. The job is DDP with two workers, and one spare by default. Its losses must equal those of a job
that nothing disturbs. Faults of snapshots in memory are left out, because the job keeps none.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import local_cluster
from bench.cluster_recovery import TIMEOUT_SECONDS, UNLIMITED, ground
from local_cluster import installation
from local_cluster.errors import ClusterError
from tests.cluster.faults import FAULTS
from tests.support.clouds import GKE, announcing
from tests.support.cluster_jobs import ClusterJob, Ground, apart, digits, trains
from tests.support.outages import NODE_FAULTS, kill_operator, lone_replica, node_of, wait_for_operator, without_api_server

STEP_SECONDS = 0.1
EVERY = 100
HANG_SECONDS = 2
AWAY_SECONDS = 30.0
"""Seconds in which a node or the API server is away."""
APPLICATION = "out-of-memory"
"""The fault of a program, which is none of the matrix."""


@dataclass(frozen=True)
class Struck:
    """A job with the faults that struck it: when, and which."""

    job: ClusterJob
    faults: list[tuple[float, str]]


def strikes(muster: installation.Installation, job: ClusterJob, draw: random.Random) -> dict[str, Callable[[], None]]:
    """Each fault of the matrix that can strike a DDP job in a cluster."""

    def node() -> None:
        try:
            replica = lone_replica(job)
        except AssertionError:  # no node has just one member of the world; Kubernetes decides about the loss of the others
            raise LookupError("no worker is alone on a node without the operator") from None
        with node_of(job, replica, NODE_FAULTS["killed"]) as lose:
            lose()
            time.sleep(AWAY_SECONDS)

    def operator() -> None:
        kill_operator(muster)
        wait_for_operator(muster)

    def api_server() -> None:
        with without_api_server(job.ground.cluster):
            time.sleep(AWAY_SECONDS)

    pods = {
        name: lambda fault=fault: fault.strike(job, draw.choice(fault.of(job.members)))
        for name, fault in FAULTS.items()
        if name != APPLICATION
    }

    def announced() -> None:
        leaving = job.pod(draw.choice(job.members))["spec"]["nodeName"]
        with announcing(GKE, job.ground.cluster, leaving):
            GKE.announce(job.ground.cluster, leaving)
            time.sleep(AWAY_SECONDS)

    return {**pods, "node-killed": node, "node-announced": announced, "operator-killed": operator, "api-server-away": api_server}


def disturbed(place: Ground, muster: installation.Installation, *, minutes: float, seed: int, faults: Sequence[str], spares: int) -> Struck:
    """Trains for `minutes`. Each of the faults, by default all, strikes at the start of a minute, or when the one before has ended."""
    recovery = {**UNLIMITED, "spares": spares, "attemptsWithoutProgress": 100, "hang": {"stepSeconds": HANG_SECONDS}}
    job = place.apply(apart(_digits("disturbed", delay=STEP_SECONDS, recovery=recovery)))
    job.wait_until("two workers train", lambda status: trains(status, 2), timeout=TIMEOUT_SECONDS)
    job.wait_until("the spares are ready", lambda status: status.get("readySpares", 0) == spares, timeout=TIMEOUT_SECONDS)
    draw, begun, struck = random.Random(seed), time.time(), []
    every = strikes(muster, job, draw)
    names: list[str] = []
    while time.time() < begun + 60 * minutes - 30:
        names = names or draw.sample(sorted(faults or every), len(faults or every))
        name = names.pop()
        struck.append((time.time(), name))
        print(f"{struck[-1][0] - begun:6.0f} s, step {job.step}: {name}", file=sys.stderr, flush=True)
        try:
            every[name]()
        except (ClusterError, LookupError) as error:
            print(f"{'':9} it did not strike: {error}", file=sys.stderr, flush=True)
        time.sleep(max(0.0, begun + 60 * len(struck) - time.time()))
    job.wait_until("two workers train", lambda status: trains(status, 2), timeout=TIMEOUT_SECONDS)
    return Struck(job, struck)


def undisturbed(place: Ground, steps: int) -> dict[int, str]:
    """The losses of so many steps."""
    job = place.apply(_digits("undisturbed", delay=0))
    job.wait_until(f"{steps} steps", lambda status: status.get("progress", {}).get("step", 0) >= steps, timeout=3600)
    losses = job.losses()
    place.kubectl("delete", "trainingjob", "undisturbed")
    return losses


def _digits(name: str, *, delay: float, **spec: Any) -> dict[str, Any]:
    config = {"epochs": 1_000_000, "seed": 0, "deterministic": True, "stepDelaySeconds": delay}
    manifest = digits(name, trainer={"task": "digits", "config": config}, **spec)
    manifest["spec"]["checkpoint"]["everySteps"] = EVERY
    return manifest


def figures(struck: Struck) -> dict[str, Any]:
    """Goodput, and the seconds without a new step after each fault. The time of a step is the median of all."""
    done: dict[int, float] = {}
    for event in sorted(struck.job.events("step"), key=lambda event: event["time"]):
        done.setdefault(event["step"], event["time"])
    moments = sorted(when for when in done.values() if when >= struck.faults[0][0])
    gaps = [(when, later - when) for when, later in pairwise(moments)]
    usual = statistics.median(gap for _, gap in gaps)
    lost: dict[str, list[float]] = {}
    for (begun, name), (end, _) in pairwise([*struck.faults, (moments[-1], "")]):
        lost.setdefault(name, []).append(round(max((gap for when, gap in gaps if begun - 1 <= when < end - 1), default=0.0) - usual, 2))
    return {
        "seconds": round(moments[-1] - moments[0]),
        "steps": len(moments),
        "stepSeconds": round(usual, 4),
        "goodput": round(usual * len(gaps) / (moments[-1] - moments[0]), 4),
        "goodputOfStatus": struck.job.status["goodput"]["ratio"],
        "restartsCharged": struck.job.status["restarts"]["total"],
        "attempts": dict(Counter(each.get("reason", "") for each in struck.job.attempts[:-1])),
        "stepsLost": sum(record.get("stepsLost", 0) for record in struck.job.attempts),
        "secondsWithoutNewStep": dict(sorted(lost.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="+", default=[], help="the faults that strike, such as node-announced; by default all")
    parser.add_argument("--spares", type=int, default=1)
    options = parser.parse_args()
    places = local_cluster.Places.default()
    cluster = local_cluster.up(places)
    with places.in_use():
        muster = installation.ensure(cluster)
        with ground(cluster, "bench-goodput") as place:
            load = round(os.getloadavg()[0], 1)
            struck = disturbed(place, muster, minutes=options.minutes, seed=options.seed, faults=options.faults, spares=options.spares)
            result = {"cpus": os.cpu_count(), "load": load, "seed": options.seed, **figures(struck)}
            place.kubectl("delete", "trainingjob", "disturbed")
            print(json.dumps(result), file=sys.stderr, flush=True)
            done = struck.job.events("step")
            losses = undisturbed(place, max(event["step"] for event in done))
            # also those of steps that were done again
            result["differingLosses"] = sum(event["lossHex"] != losses[event["step"]] for event in done)
            print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
