"""Logs of all replicas of a job, merged by time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

from muster.api.constants import TRAINER_CONTAINER
from muster.api.status import FINAL_PHASES
from muster.client import errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.client.log_lines import FIRST, Line, Selection, line_of, merged, span_of
from muster.explain.evidence import is_pending, is_running, label_of
from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.objects import Object
from muster_contract.text import printable

AT_ONCE = 16
"""How many logs are read at the same time."""
BUFFER_SECONDS = 0.3
"""How long a line waits for earlier lines of other replicas, in seconds."""
POLL_SECONDS = 1.0
MOST_CHARACTERS = 256 << 20
"""Of the logs of all replicas together. They are kept in memory, to sort their lines by time."""
Print = Callable[[str], None]


async def logs_of(
    connection: Connection, job: Object, selection: Selection, *, tail: int | None = None, most_bytes: int | None = None
) -> list[Line]:
    """What the pods have printed so far, by time: at most the last `tail` lines of each, and `most_bytes` of all.

    Raises RefusedError if there are none, and TooLargeError if they are too large together.
    """
    jobs = Jobs(connection)
    begin, end = span_of(job, selection.attempt) if selection.attempt is not None else ("", "~")
    existing = await jobs.pods(job)
    pods = [pod for pod in selection.pods(existing) if container_of(pod)]
    if not pods:
        raise errors.RefusedError(_no_logs(job, selection, existing))
    turns, size = asyncio.Semaphore(AT_ONCE), 0
    share = None if most_bytes is None else max(1, most_bytes // len(pods))

    async def log(pod: Object) -> list[Line]:
        nonlocal size
        lines = await _log(connection, pod, turns, tail=tail if selection.attempt is None else None, most_bytes=share)
        size += sum(len(line.text) for line in lines)
        if size > MOST_CHARACTERS:
            message = (
                f"the logs have more than {MOST_CHARACTERS >> 20} MiB together: choose a replica (--replica), or the last lines (--tail)"
            )
            raise errors.TooLargeError(message)
        return lines

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(log(pod)) for pod in pods]
    except ExceptionGroup as group_error:
        raise _first(group_error) from group_error
    selected = [[line for line in task.result() if begin <= line.time < end] for task in tasks]
    return list(merged(lines[-tail:] if tail is not None else lines for lines in selected))


def _no_logs(job: Object, selection: Selection, existing: Sequence[Object]) -> str:
    """Why there is no log to read."""
    name = job["metadata"]["name"]
    if selection.pods(existing):
        return f"no container of {name} has started yet: muster explain {name} says why"
    if selection.attempt is not None and replace(selection, attempt=None).pods(existing):
        return f"the pods of attempt {selection.attempt} of {name} are gone, and their logs with them: muster logs {name} shows later ones"
    return (
        f"{name} has no such pods: muster explain {name} says what it does"
        if existing
        else f"{name} has no pods: see muster explain {name}"
    )


def container_of(pod: Object) -> str | None:
    """The container whose log shows what the pod does: the trainer, or before its start the init container that failed or started last."""
    if not is_pending(pod):
        return TRAINER_CONTAINER
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    started = [each for each in statuses if {"running", "terminated"} & {*(each.get("state") or {}), *(each.get("lastState") or {})}]
    failed = [each for each in started if ((each.get("state") or {}).get("terminated") or {}).get("exitCode")]
    return str((failed or started)[-1].get("name")) if started else None


async def _log(
    connection: Connection, pod: Object, turns: asyncio.Semaphore, *, tail: int | None, most_bytes: int | None = None
) -> list[Line]:
    """The lines of one pod. If the node does not answer, or the container never started, a line reports that."""
    container = container_of(pod) or TRAINER_CONTAINER
    query = {"container": container, "timestamps": "true", **({} if tail is None else {"tailLines": str(tail)})}
    if most_bytes is not None:
        query["limitBytes"] = str(most_bytes)
    label = label_of(pod) if container == TRAINER_CONTAINER else f"{label_of(pod)}/{container}"
    try:
        async with turns:
            text = await connection.text(_path(connection, pod), **query)
    except errors.NotFoundError:
        return []  # the pod was deleted meanwhile
    except errors.NoRightsError:
        raise
    except errors.ClientError as error:
        return [Line(FIRST, label, f"(the log cannot be read: {error})")]
    return [line_of(line, replica=label) for line in text.removesuffix("\n").split("\n") if line]


async def tails_of(connection: Connection, pods: Sequence[Object], *, lines: int, most_bytes: int) -> list[tuple[str, list[Line]]]:
    """The replica and the last lines of each pod that has started. If a log cannot be read, a line reports that."""
    turns = asyncio.Semaphore(AT_ONCE)
    started = [pod for pod in pods if container_of(pod)]

    async def tail(pod: Object) -> list[Line]:
        try:
            return await _log(connection, pod, turns, tail=lines, most_bytes=most_bytes)
        except errors.NoRightsError as error:
            return [Line(FIRST, label_of(pod), f"(the log cannot be read: {error})")]

    each = await asyncio.gather(*(tail(pod) for pod in started))
    return [(label_of(pod), log_lines[-lines:]) for pod, log_lines in zip(started, each, strict=True)]


class Follower:
    """Follows the logs of a job: waits for pods, adds the pods of later attempts, and ends when the job has ended.

    `show` gets the lines, and `note` gets messages about the job.
    """

    def __init__(self, connection: Connection, name: str, selection: Selection, *, show: Print, note: Print) -> None:
        self._connection = connection
        self._jobs = Jobs(connection)
        self._name = name
        self._selection = selection
        self._show, self._note = show, note
        self._buffer: list[tuple[Line, int, float]] = []
        self._count = 0
        self._shown = ""

    async def run(self) -> None:
        """Follows until the job has ended or is deleted, and all its lines are shown. Raises NoJobError if there is no such job."""
        await self._jobs.get(self._name)
        try:
            async with asyncio.TaskGroup() as group:
                printing = group.create_task(self._print())
                await self._follow_pods(group)
                await asyncio.sleep(BUFFER_SECONDS)
                printing.cancel()
        except ExceptionGroup as group_error:
            raise _first(group_error) from group_error
        finally:
            self._flush(float("inf"))

    async def _follow_pods(self, group: asyncio.TaskGroup) -> None:
        following: dict[str, asyncio.Task[None]] = {}
        while True:
            try:
                job = await self._jobs.get(self._name)
                pods = self._selection.pods(await self._jobs.pods(job))
            except errors.NoClusterError as error:
                self._notify(str(error))
                await asyncio.sleep(POLL_SECONDS)
                continue
            except errors.NoJobError:
                self._notify(f"{self._name} was deleted")
                job, pods = {}, []
            for pod in pods:
                uid = pod["metadata"]["uid"]
                if uid not in following and not is_pending(pod):
                    following[uid] = group.create_task(self._follow(pod))
            status = job.get("status") or {}
            if not job or status.get("phase") in FINAL_PHASES:
                await asyncio.gather(*following.values())
                return
            if not any(is_running(pod) for pod in pods):
                self._notify(f"{self._name} is {status.get('phase') or 'Pending'}: {status.get('message') or 'no pods yet'}")
            await asyncio.sleep(POLL_SECONDS)

    async def _follow(self, pod: Object) -> None:
        """The lines of one pod, over broken connections, until its container has ended."""
        label, newest = label_of(pod), ""
        while True:
            query = {"container": TRAINER_CONTAINER, "timestamps": "true", "follow": "true"}
            if newest:
                query["sinceTime"] = f"{newest[:19]}Z"
            try:
                since = newest
                async for raw in self._connection.stream(_path(self._connection, pod), **query):
                    line = line_of(raw.decode(errors="replace"), replica=label)
                    if line.time > since or not line.time:
                        newest = max(newest, line.time)
                        self._add(line)
            except errors.NotFoundError:
                return
            except errors.NoRightsError:
                raise
            except errors.ClientError as error:
                self._notify(str(error))
            await asyncio.sleep(POLL_SECONDS)
            if not await self._is_alive(pod):  # false too if another pod has its name by now
                return

    async def _is_alive(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        try:
            now = await self._connection.get(self._connection.path("v1", "pods", metadata["name"]))
        except errors.NotFoundError:
            return False
        except errors.NoClusterError:
            return True
        return bool(now["metadata"]["uid"] == metadata["uid"] and (is_running(now) or is_pending(now)))

    def _add(self, line: Line) -> None:
        self._count += 1
        heapq.heappush(self._buffer, (line, self._count, asyncio.get_running_loop().time()))

    async def _print(self) -> None:
        while True:
            await asyncio.sleep(BUFFER_SECONDS / 3)
            self._flush(asyncio.get_running_loop().time() - BUFFER_SECONDS)

    def _flush(self, until: float) -> None:
        """Shows the lines that have waited long enough, and all earlier ones."""
        last = max((entry[0] for entry in self._buffer if entry[2] <= until), default=None)
        while self._buffer and last is not None and self._buffer[0][0] <= last:
            self._show(shown(heapq.heappop(self._buffer)[0]))

    def _notify(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._note(printable(text))


def _first(error: Exception) -> Exception:
    """The first error in a group of errors."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def shown(line: Line) -> str:
    return printable(str(line), keep="\t")


def _path(connection: Connection, pod: Object) -> ApiPath:
    return connection.path("v1", "pods", pod["metadata"]["name"], subresource="log")
