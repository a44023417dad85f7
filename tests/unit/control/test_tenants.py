"""Two tenants and one operator: a small job does not wait for the large jobs of another tenant."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime

from muster.channel.reports import Reports
from muster.control.cluster import Child
from muster.control.dependencies import Dependencies
from muster.control.job_store import Store
from muster.control.reconciler import Reconciler
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.render.images import Images
from tests.unit.control.control_worlds import MemoryCluster, job_object

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
JOBS, WORKERS, REPLICAS = 6, 4, 100
LIMIT = 120.0


class Busy(MemoryCluster):
    """Needs some time to create a pod, and records the namespaces of the pods."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    async def create_pod(self, manifest: Object) -> Child:
        for _ in range(3):
            await asyncio.sleep(0)
        self.made.append(manifest["metadata"]["namespace"])
        return await super().create_pod(manifest)


class Silent:
    def waited(self, seconds: float) -> None: ...

    def worked(self, seconds: float) -> None: ...

    def failed(self, key: str, error: Exception, delay: float) -> None:
        raise AssertionError(key) from error


def test_a_small_job_starts_while_another_tenant_creates_hundreds_of_pods() -> None:
    async def play() -> list[str]:
        cluster, store = Busy(), Store(time.monotonic)
        reconciler = Reconciler(Dependencies(cluster, store, Reports(), images=IMAGES, now=lambda: datetime.now(UTC)))
        queue = WorkQueue(Silent(), workers=WORKERS)
        queue.open(reconciler.recovers)

        def submit(namespace: str, name: str, replicas: int) -> None:
            job = job_object(name, replicas)
            job["metadata"]["namespace"] = namespace
            store.put_job(cluster.put(job))
            queue.add(f"{namespace}/{name}")

        for number in range(JOBS):
            submit("large", f"job-{number}", REPLICAS)
        queue.start(reconciler.reconcile)
        try:
            async with asyncio.timeout(LIMIT):
                while len(cluster.made) < 50:  # noqa: ASYNC110 - the cluster has no event
                    await asyncio.sleep(0)
                submit("small", "job", 2)
                before = len(cluster.made)
                while Counter(cluster.made)["small"] < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                meanwhile = cluster.made[before:]
                while len(cluster.made) < JOBS * REPLICAS + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        finally:
            await queue.drain(1.0)
        return meanwhile

    meanwhile = asyncio.run(play())
    assert Counter(meanwhile)["large"] < REPLICAS, "less than one of the large jobs; in one line for all it would be all of them"
