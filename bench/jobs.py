"""The jobs of the benchmarks."""

from __future__ import annotations

from tests.support.api_server.api import Object
from tests.support.api_server.jobs import job

NODES = 10
PODS_PER_JOB = 8
ENDS = "bench/ends"
"""The label of pods that succeed two seconds after they began to run."""


def bench_job(name: str, number: int, *, ends: bool = False, workers: int = PODS_PER_JOB) -> Object:
    """A job whose pods name their node, because no scheduler runs."""
    labels = {ENDS: "true"} if ends else {}
    template = {"metadata": {"labels": labels}, "spec": {"nodeName": f"fake-{number % NODES}"}}
    return job(name, roles={"worker": {"replicas": workers, "template": template}})
