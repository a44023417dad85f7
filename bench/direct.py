"""`python bench/direct.py NAMESPACE JOBS`: services and pods of so many jobs, by the operator's own client and nothing else.

Prints CPU milliseconds per pod, without those of rendering.

A process of its own, as the operator is. KUBECONFIG says with whose rights.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the stage of the tests is not installed

from bench.jobs import PODS_PER_JOB, bench_job
from tests.apiserver.stage.api import Object

from muster.api.job import Metadata, TrainingJob
from muster.api.spec import RoleName, TrainingJobSpec
from muster.kubernetes.gateway import connected
from muster.render.addresses import ClusterAddresses
from muster.render.images import default_images
from muster.render.manifests import render_replica, render_service

AT_ONCE = 64


def rendered(namespace: str, number: int) -> tuple[Object, list[Object]]:
    """The service and the pods of one job."""
    name = f"job-{number}"
    metadata = {"name": name, "namespace": namespace, "uid": f"00000000-0000-0000-0000-{number:012d}", "generation": 1}
    spec = TrainingJobSpec.model_validate(bench_job(name, number)["spec"])
    job = TrainingJob(metadata=Metadata.model_validate(metadata), spec=spec)
    addresses, images = ClusterAddresses(name, namespace), default_images()
    replicas = range(PODS_PER_JOB)
    pods = [render_replica(job, RoleName.WORKER, index=index, attempt=0, addresses=addresses, images=images) for index in replicas]
    return render_service(job, addresses), pods


async def create(namespace: str, jobs: int) -> float:
    """CPU milliseconds per pod."""
    manifests = [rendered(namespace, number) for number in range(jobs)]
    async with connected((), policies=False) as gateway:
        spent = time.process_time()
        slots = asyncio.Semaphore(AT_ONCE)

        async def make(manifest: Object) -> None:
            async with slots:
                await gateway.create(manifest)

        await asyncio.gather(*(make(service) for service, _ in manifests))
        await asyncio.gather(*(make(pod) for _, pods in manifests for pod in pods))
        return 1000 * (time.process_time() - spent) / (jobs * PODS_PER_JOB)


if __name__ == "__main__":
    print(asyncio.run(create(sys.argv[1], int(sys.argv[2]))))
