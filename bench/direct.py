"""`python -m bench.direct NAMESPACE JOBS`: creates services and pods of so many jobs with only the operator's own client.

Prints the CPU milliseconds per pod, without the cost of rendering. It is a process of its own, as the operator is. KUBECONFIG names the
account.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from bench.jobs import PODS_PER_JOB, bench_job
from muster.api.job import Metadata, TrainingJob
from muster.api.spec import WORKER, TrainingJobSpec
from muster.channel.certificate import new_certificate
from muster.operator.gateway import connected
from muster.render.addresses import ClusterAddresses
from muster.render.environment import Coordinator
from muster.render.images import default_images
from muster.render.manifests import render_replica, render_service
from tests.support.api_server.api import Object

AT_ONCE = 64
HOST = "muster.muster-system.svc"


def rendered(namespace: str, number: int, coordinator: Coordinator) -> tuple[Object, list[Object]]:
    """The service and the pods of one job."""
    name = f"job-{number}"
    metadata = {"name": name, "namespace": namespace, "uid": f"00000000-0000-0000-0000-{number:012d}", "generation": 1}
    spec = TrainingJobSpec.model_validate(bench_job(name, number)["spec"])
    job = TrainingJob(metadata=Metadata.model_validate(metadata), spec=spec)
    addresses, images = ClusterAddresses(name, namespace), default_images()
    pods = [
        render_replica(job, WORKER, index=index, attempt=0, addresses=addresses, images=images, coordinator=coordinator)
        for index in range(PODS_PER_JOB)
    ]
    return render_service(job, addresses), pods


async def create(namespace: str, jobs: int) -> float:
    """CPU milliseconds per pod."""
    coordinator = Coordinator(f"https://{HOST}:8443", authority=new_certificate(HOST, datetime.now(UTC)).certificate)
    manifests = [rendered(namespace, number, coordinator) for number in range(jobs)]
    async with connected() as gateway:
        began = time.process_time()
        slots = asyncio.Semaphore(AT_ONCE)

        async def make(creation: Callable[[Object], Awaitable[object]], manifest: Object) -> None:
            async with slots:
                await creation(manifest)

        await asyncio.gather(*(make(gateway.create, service) for service, _ in manifests))
        await asyncio.gather(*(make(gateway.create_pod, pod) for _, pods in manifests for pod in pods))
        return 1000 * (time.process_time() - began) / (jobs * PODS_PER_JOB)


if __name__ == "__main__":
    print(asyncio.run(create(sys.argv[1], int(sys.argv[2]))))
