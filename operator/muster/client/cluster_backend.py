"""The Python client's jobs on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import datetime
from pathlib import Path

from muster.api.constants import ATTEMPT_LABEL
from muster.api.job import TrainingJob
from muster.client.async_job import AsyncJob, Note, RankProcess
from muster.client.code import Code
from muster.client.connection import Connection, Target, connected
from muster.client.fresh_progress import FreshProgress
from muster.client.jobs import Jobs, typed
from muster.client.log_lines import Selection, number_of, ranks_of
from muster.client.logs import Follower, logs_of, shown
from muster.client.snapshot import snapshot_of
from muster.client.submit import submit
from muster.explain.evidence import label_of
from muster.explain.explain import Explanation, explain
from muster.kubernetes.objects import Object
from muster.tools.report.job import JobView
from muster.tools.report.storage import Storage


class ClusterBackend:
    """A connection to a cluster, made when it is first needed."""

    def __init__(self, *, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
        self._target = Target(namespace, context, kubeconfig)
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None

    async def submit(self, job: TrainingJob, *, file: Path | None, code: Code | None, dry_run: bool = False) -> AsyncJob:
        own = job.metadata.namespace if "namespace" in job.metadata.model_fields_set else None
        connection = await self._connected(self._target.namespace or own)
        await submit(connection, job, code=code, dry_run=dry_run)
        return ClusterJob(connection, job.metadata.name)

    async def get(self, name: str, *, namespace: str | None) -> AsyncJob:
        connection = await self._connected(namespace)
        await Jobs(connection).get(name)
        return ClusterJob(connection, name)

    async def jobs(self, *, all_namespaces: bool) -> list[AsyncJob]:
        connection = await self._connected(None)
        metadata = [job["metadata"] for job in await Jobs(connection).summaries(everywhere=all_namespaces)]
        return [ClusterJob(connection.within(each["namespace"]), each["name"]) for each in metadata]

    async def documents(self, *, all_namespaces: bool, whole: bool) -> list[Object]:
        jobs = Jobs(await self._connected(None))
        return await (jobs.all if whole else jobs.summaries)(everywhere=all_namespaces)

    async def neglects(self, documents: Sequence[Object], *, now: datetime) -> list[str]:
        return await Jobs(await self._connected(None)).neglects(documents, now=now)

    async def close(self) -> None:
        self._connection = None
        await self._stack.aclose()

    async def _connected(self, namespace: str | None) -> Connection:
        """A connection for work in this namespace, or else in that of the client."""
        async with self._opening:
            if self._connection is None:
                self._connection = await self._stack.enter_async_context(connected(self._target))
        return self._connection if namespace is None else self._connection.within(namespace)


class ClusterJob(AsyncJob):
    """A TrainingJob of a cluster."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(name, connection.namespace)
        self._connection = connection
        self._jobs = Jobs(connection)

    async def document(self) -> Object:
        return await self._jobs.get(self.name)

    async def get(self) -> TrainingJob:
        return typed(await self.document())

    def fresh_progress(self, show: Callable[[TrainingJob], None]) -> FreshProgress:
        return FreshProgress(self._connection, show)

    async def changes(self) -> AsyncGenerator[TrainingJob | None, None]:
        async with aclosing(self._jobs.changes(self.name)) as changes:
            async for document in changes:
                yield None if document is None else typed(document)

    async def processes(self) -> list[RankProcess]:
        pods = await self._jobs.pods(await self.document())
        return [_process_of(pod, rank) for pod in pods for rank in ranks_of(pod) or (None,)]

    async def _printed(self, selection: Selection, *, tail: int | None) -> list[str]:
        job = await self._jobs.get(self.name)
        return [shown(line) for line in await logs_of(self._connection, job, selection, tail=tail)]

    async def follow(self, selection: Selection, *, note: Note) -> AsyncGenerator[str, None]:
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        follower = Follower(self._connection, self.name, selection, show=lines.put_nowait, note=note)
        following = asyncio.create_task(follower.run())
        following.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (line := await lines.get()) is not None:
                yield line
            await following
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([following])

    async def explain(self) -> Explanation:
        return explain(await snapshot_of(self._connection, self.name))

    async def _view(self, history: Storage | None) -> JobView:
        from muster.client.views import cluster_view

        return await cluster_view(self._connection, self.name, history=history)

    async def suspend(self) -> None:
        await self._jobs.suspend(self.name, suspend=True)

    async def resume(self) -> None:
        await self._jobs.suspend(self.name, suspend=False)

    async def restart(self) -> None:
        await self._jobs.restart(self.name)

    async def scale(self, replicas: int, *, role: str = "worker") -> None:
        await self._jobs.scale(self.name, role=role, replicas=replicas)

    async def delete(self) -> None:
        await self._jobs.delete(self.name)


def _process_of(pod: Object, rank: int | None) -> RankProcess:
    attempt = number_of((pod["metadata"].get("labels") or {}).get(ATTEMPT_LABEL)) or 0
    state, node = str((pod.get("status") or {}).get("phase") or "Unknown"), str(pod["spec"].get("nodeName") or "")
    return RankProcess(label_of(pod), rank, None, state, attempt, str(pod["metadata"]["name"]), node)
