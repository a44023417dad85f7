"""The coordination channel with many supervisors: `python -m bench.channel`. Prints JSON.

The bench runs a real API server, the operator as a process, and a TLS client for each pod. Each client has a token of its own and posts as
a supervisor does. It posts again after the interval of the reply. All clients start within ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.control_plane import cpu_seconds, memory, submit, wait_for_pods
from bench.jobs import PODS_PER_JOB, bench_job
from bench.supervisors import Line, TooManyRequestsError
from muster_contract.events import Activity
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import PODS
from tests.support.api_server.operators import operating
from tests.support.api_server.reports import progress, report, token

START_SECONDS = 10.0


@dataclass
class Tally:
    """The results of the clients."""

    seconds: list[float] = field(default_factory=list)
    """Seconds from the connection's first packet to the whole answer."""
    failures: int = 0
    shed: int = 0
    """Reports that were answered with 429."""


async def supervisor(
    number: int, pod: Object, bearer: str, *, port: int, trusted: ssl.SSLContext, tally: Tally, until: float, many: int
) -> None:
    """Posts reports until the end of the bench."""
    await asyncio.sleep(START_SECONDS * number / many)
    sequence, line = 0, Line(port, trusted)
    while time.monotonic() < until:
        sequence += 1
        body = json.dumps(report(pod, sequence=sequence, progress=progress(sequence), phase=Activity.TRAINING)).encode()
        begun = time.monotonic()
        try:
            reply = await line.post(body, bearer)
        except TooManyRequestsError as error:
            tally.shed += 1
            await asyncio.sleep(error.seconds)
            continue
        except (OSError, ValueError):
            tally.failures += 1
            await asyncio.sleep(1.0)
            continue
        tally.seconds.append(time.monotonic() - begun)
        await asyncio.sleep(float(reply["intervalSeconds"]))
    line.close()


async def all_of(pods: list[tuple[Object, str]], *, port: int, trusted: ssl.SSLContext, seconds: float) -> Tally:
    tally, until = Tally(), time.monotonic() + seconds
    await asyncio.gather(
        *(
            supervisor(number, pod, bearer, port=port, trusted=trusted, tally=tally, until=until, many=len(pods))
            for number, (pod, bearer) in enumerate(pods)
        )
    )
    return tally


def measure(folder: Path, *, pods: int, seconds: float) -> dict[str, Any]:
    with running(folder) as cluster, operating(cluster, folder / "operator") as operator:
        posting = supervised(cluster, pods)
        assert operator.process
        process = psutil.Process(operator.process.pid)
        before, idle, begun = cpu_seconds(process), memory(operator), time.monotonic()
        tally = asyncio.run(all_of(posting, port=operator.coordination, trusted=operator.trusted(), seconds=seconds))
        elapsed = time.monotonic() - begun
        quantiles = statistics.quantiles(tally.seconds, n=100)
        return {
            "supervisors": len(posting),
            "reports": len(tally.seconds),
            "failures": tally.failures,
            "shed": tally.shed,
            "answeredWithinSeconds": {
                "median": round(quantiles[49], 3),
                "99%": round(quantiles[98], 3),
                "worst": round(max(tally.seconds), 3),
            },
            "operator": {
                "cores": round((cpu_seconds(process) - before) / elapsed, 2),
                "memoryMiB": {"before": idle, "after": memory(operator)},
            },
        }


def supervised(cluster: Cluster, count: int) -> list[tuple[Object, str]]:
    """The pods with their tokens, after the operator has created them."""
    namespace = cluster.namespace("many")
    jobs = Jobs(cluster.admin, namespace)
    submit(cluster.admin, namespace, [bench_job(f"job-{number}", number) for number in range(count // PODS_PER_JOB)])
    wait_for_pods(cluster.admin, namespace, count // PODS_PER_JOB * PODS_PER_JOB)
    pods = cluster.admin.items(PODS.format(namespace))
    with ThreadPoolExecutor(8) as pool:
        return list(zip(pods, pool.map(lambda pod: token(jobs, pod), pods), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000, help="so many supervisors")
    parser.add_argument("--seconds", type=float, default=120.0, help="for so long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-channel-") as name:
        figures = measure(Path(name), pods=options.pods, seconds=options.seconds)
        print(json.dumps({"cpus": os.cpu_count(), **figures}, indent=2))


if __name__ == "__main__":
    main()
