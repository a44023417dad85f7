"""The sources of jobs: a cluster, the run directories of this machine, and the histories beside checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from cachetools import LRUCache, TTLCache

from muster.api.constants import GROUP, PLURAL
from muster.api.status import Phase
from muster.client import errors
from muster.client.async_job import AsyncJob
from muster.client.cluster_backend import ClusterJob
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.client.local_backend import LocalBackend, version_of
from muster.client.views import cluster_log, cluster_view, deleted_job_view, local_log, observed_points, state_of_run
from muster.kubernetes.objects import Object
from muster.local.errors import RunError
from muster.local.rundir import has_run, load_run, pid_of_run
from muster.tools.report.history import ReportError
from muster.tools.report.job import JobView, Point
from muster.tools.report.recorded import read_recorded
from muster.tools.report.storage import MOST_ENTRIES, Storage, is_plain, storage_of
from muster.tools.ui.following import RunFollower
from muster.tools.ui.job_rows import Listed, row_of, row_of_status

MOST_DELETED = 500
"""The largest number of folders of the checkpoint storage that are read."""
RIGHTS_SECONDS = 30.0
"""Seconds for which an answer of the API server about a user's rights is valid for deleted jobs."""
MOST_POINTS = 2000
MOST_JOBS = 200
MOST_RUNS = 200


class Source(Protocol):
    """Jobs of one kind. Its errors are ClientErrors."""

    async def listed(self, namespace: str | None) -> list[Listed]:
        """The jobs of a namespace, or of all."""

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        """All data about a job. With `replica`, the logs are those of this replica."""

    async def log(self, namespace: str, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
        """The last lines of all replicas or of one, each after its replica, and sentences about what is missing."""

    async def job(self, namespace: str, name: str) -> AsyncJob:
        """The job, to change it with the rights of the user."""


class ObservedSteps:
    """The steps that the page has observed while a user had it open, so that a running job has a curve."""

    def __init__(self) -> None:
        self._points: LRUCache[str, list[Point]] = LRUCache(MOST_JOBS)

    def add(self, job: Object) -> list[Point]:
        """Adds the state of a job. Returns its points so far."""
        uid = str(job["metadata"].get("uid"))
        points = self._points.setdefault(uid, [])
        now = observed_points(job, time.time())
        if now and (not points or points[-1].step != now[0].step):
            points += now
        if len(points) > MOST_POINTS:
            del points[: len(points) // 2 : 2]
        return points


class HistoryRights:
    """The rights of a user on the histories beside the checkpoints. The server reads them for every user, so each user sees those of
    namespaces in which the user may read jobs and the logs of pods, whatever their names."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: TTLCache[str, bool] = TTLCache(MOST_DELETED, RIGHTS_SECONDS)

    async def has(self, namespace: str) -> bool:
        answer = self._answers.get(namespace)
        if answer is None:
            jobs, logs = {"group": GROUP, "resource": PLURAL}, {"resource": "pods", "subresource": "log"}
            answer = all([await self._connection.may({**each, "verb": "get", "namespace": namespace}) for each in (jobs, logs)])
            self._answers[namespace] = answer
        return answer


class ClusterJobs:
    """Jobs of a cluster, with the rights of the connection. `history` is the checkpoint storage, if it can be read. `rights` are those of
    the user on it, unless it is the user's own."""

    def __init__(
        self, connection: Connection, observed: ObservedSteps, *, history: Storage | None, rights: HistoryRights | None = None
    ) -> None:
        self._connection = connection
        self._observed = observed
        self._history = history
        self._rights = rights

    async def listed(self, namespace: str | None) -> list[Listed]:
        connection = self._connection if namespace is None else self._connection.within(namespace)
        jobs = await Jobs(connection).summaries(everywhere=namespace is None)
        for job in jobs:
            self._observed.add(job)
        return [row_of(job) for job in jobs]

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        connection = self._connection.within(namespace)
        points = self._observed.add(await Jobs(connection).get(name, bounded=True))
        is_open = self._history is not None and (self._rights is None or await self._rights.has(namespace))
        return await cluster_view(connection, name, history=self._history if is_open else None, points=points, replica=replica)

    async def log(self, namespace: str, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
        return await cluster_log(self._connection.within(namespace), name, replica=replica)

    async def job(self, namespace: str, name: str) -> AsyncJob:
        return ClusterJob(self._connection.within(namespace), name)


class DeletedJobs:
    """Jobs that are gone, from the histories beside their checkpoints. `rights` are those of the user, unless the storage is the user's
    own."""

    def __init__(self, root: Path | Storage, rights: HistoryRights | None) -> None:
        self._root = storage_of(root)
        self._rights = rights

    async def listed(self, namespace: str | None) -> list[Listed]:
        spaces = [namespace] if namespace is not None else await asyncio.to_thread(_folders, self._root)
        allowed = [space for space in spaces if is_plain(space) and await self._may(space)]
        return await asyncio.to_thread(self._rows, allowed)

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        if not (is_plain(namespace) and is_plain(name)) or not await self._may(namespace):
            raise errors.NoJobError(f"there is no history of {name} in namespace {namespace}")
        try:
            view = await asyncio.to_thread(deleted_job_view, self._root, namespace, name)
        except ReportError as error:
            raise errors.NoJobError(str(error)) from error
        return view if replica is None else replace(view, logs=[log for log in view.logs if log.title.startswith(f"{replica},")])

    async def log(self, namespace: str, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
        view = await self.view(namespace, name, replica=replica)
        return [f"[{log.title}] {line}" for log in view.logs for line in log.lines], []

    async def job(self, namespace: str, name: str) -> AsyncJob:
        raise errors.NoJobError(f"{name} is deleted, so it cannot be changed")

    async def _may(self, namespace: str) -> bool:
        return self._rights is None or await self._rights.has(namespace)

    def _rows(self, namespaces: Sequence[str]) -> list[Listed]:
        jobs = ((space, name) for space in namespaces for name in _folders(self._root, space))
        return [row for space, name in islice(jobs, MOST_DELETED) if (row := self._row(space, name)) is not None]

    def _row(self, namespace: str, name: str) -> Listed | None:
        try:
            recorded = read_recorded(self._root, namespace, name, brief=True)
        except ReportError:
            return None
        record = recorded.replicas[0].record
        created = recorded.created.timestamp()
        row = row_of_status("gone", namespace, name, status=recorded.status(), strategy=record.strategy, created=created)
        return replace(row, state=recorded.state, restarts=None)


class LocalRuns:
    """The runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._backend = LocalBackend(self._folder, detach=True)
        self._followers: LRUCache[str, RunFollower] = LRUCache(MOST_RUNS)
        self._listed: LRUCache[str, tuple[object, Listed | None]] = LRUCache(MOST_ENTRIES)

    async def listed(self, namespace: str | None) -> list[Listed]:
        return await asyncio.to_thread(self._rows)

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        self._check(name)
        follower = self._followers.setdefault(name, RunFollower(self._folder / name))
        view = await self._backend.view(name, history=await asyncio.to_thread(follower.history))
        return view if replica is None else replace(view, logs=[log for log in view.logs if log.title == replica])

    async def log(self, namespace: str, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
        self._check(name)
        return await asyncio.to_thread(local_log, self._folder / name, replica=replica)

    async def job(self, namespace: str, name: str) -> AsyncJob:
        self._check(name)
        return await self._backend.get(name, namespace=None)

    def _check(self, name: str) -> None:
        if not is_plain(name) or not has_run(self._folder / name):
            raise errors.NoJobError(f"there is no run {name} in {self._folder}")

    def _rows(self) -> list[Listed]:
        return [row for name in self._backend.names() if (row := self._row(name)) is not None]

    def _row(self, name: str) -> Listed | None:
        """The row of a run. Its files are read again when they have changed, because to read thousands takes long."""
        run = self._folder / name
        version = version_of(run / "job.yaml"), version_of(run / "status.json")
        before, row = self._listed.get(name, (None, None))
        if before != version:
            row = _row_of_run(run)
            self._listed[name] = version, row
        if row is None or row.ended is not None or pid_of_run(run) is not None:
            return row
        last = version[1][1] / 1e9 if version[1] else None
        return replace(row, state=state_of_run(Phase(row.state), is_running=False), ended=last)


def _row_of_run(run: Path) -> Listed | None:
    try:
        job = load_run(run)
    except RunError:
        return None
    if job is None:
        return None
    created = job.metadata.creation_timestamp
    at = None if created is None else created.timestamp()
    labels = job.metadata.labels
    return row_of_status("local", "-", run.name, status=job.status, strategy=str(job.spec.strategy), created=at, labels=labels)


def _folders(storage: Storage, *path: str) -> list[str]:
    """The names of the folders in a folder, without links. Empty if there is none."""
    try:
        return [name for name in storage.names(*path) if is_plain(name)]
    except OSError:
        return []


Sources = dict[str, Source]
"""The sources by kind."""
