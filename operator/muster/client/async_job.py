"""A job of the Python client, wherever it runs. The backends implement it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from muster.api.job import TrainingJob
from muster.api.status import Phase, TrainingJobStatus
from muster.client import errors
from muster.client.code import Code
from muster.client.log_lines import Selection
from muster.client.notebook import Report
from muster.client.progress import Progress, is_over, progress_of
from muster.explain.explain import Explanation
from muster.kubernetes.objects import Object
from muster.tools.report.job import JobView, job_page
from muster.tools.report.page import as_html as page_as_html
from muster.tools.report.storage import Storage, StorageError, storage_of

if TYPE_CHECKING:
    from muster.client.fresh_progress import FreshProgress

OnProgress = Callable[[Progress], object]
Note = Callable[[str], None]


@dataclass(frozen=True)
class RankProcess:
    """A training process of a job, or a replica that has none yet."""

    replica: str
    rank: int | None
    pid: int | None
    """None on a cluster, where a pod has process ids of its own."""
    state: str
    attempt: int
    supervisor: str
    """What runs the process: the pod, or the process id of a local supervisor. To end it is to lose the whole replica."""
    node: str


class ShownJob(ABC):
    """What the commands need of a job, beyond the Python client."""

    @abstractmethod
    async def document(self) -> Object:
        """The whole job as the API server has it, or would have it. Raises NoJobError if it is gone."""

    @abstractmethod
    def changes(self) -> AsyncGenerator[TrainingJob | None, None]:
        """The job now and after each change, and None once it is deleted."""

    def fresh_progress(self, show: Callable[[TrainingJob], None]) -> FreshProgress | None:
        """What shows steps that the status does not have yet. None if it has all."""
        return None

    @abstractmethod
    async def processes(self) -> list[RankProcess]:
        """The training processes that there are now, by replica and rank."""

    @abstractmethod
    def follow(self, selection: Selection, *, note: Note) -> AsyncGenerator[str, None]:
        """What `follow_logs` yields. `note` gets sentences about the job while it prints nothing."""


class AsyncJob(ShownJob):
    """A job that was submitted. Every call reads or changes the current state of the job."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        """Name of the job."""
        self.namespace = namespace
        """Namespace of the job."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.name}>"

    @abstractmethod
    async def get(self) -> TrainingJob:
        """The whole job: metadata, spec and status. Raises NoJobError if it is gone."""

    async def status(self) -> TrainingJobStatus:
        """The status of the job now."""
        return (await self.get()).status

    async def progress(self) -> Progress:
        """The progress of the job now."""
        return progress_of(await self.get())

    async def wait(
        self,
        *,
        until: Phase | str = Phase.SUCCEEDED,
        timeout: float | None = None,  # noqa: ASYNC109 (the error says more than that of asyncio.timeout)
        on_progress: OnProgress | None = None,
    ) -> TrainingJobStatus:
        """Waits until the job has reached the phase `until`, or has succeeded. Returns its status.

        `on_progress` is called with the progress, first at once and then after each change. `timeout` is in seconds. Waits for
        at most a minute while the API server does not answer.

        Raises JobFailedError if the job fails, WaitTimeoutError after `timeout`, NoJobError if the job is deleted, JobStoppedError if a
        local run is stopped, and NoClusterError if the API server does not answer for a minute.
        """
        async with aclosing(self.updates(until=until, timeout=timeout)) as updates:
            async for job in updates:
                if on_progress is not None:
                    on_progress(progress_of(job))
        return job.status

    async def updates(
        self,
        *,
        until: Phase | str = Phase.SUCCEEDED,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[TrainingJob, None]:
        """The job now and after each change, until it has reached the phase `until` or has succeeded. Raises the same errors as wait()."""
        target, clock = _phase(until), asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        job: TrainingJob | None = None
        async with aclosing(self.changes()) as changes:
            while True:
                remaining = None if deadline is None else max(0.0, deadline - clock())
                try:
                    job, before = await asyncio.wait_for(anext(changes), remaining), job
                except TimeoutError as error:
                    raise self._late(timeout, job) from error
                if job is None:
                    if before is None:
                        await self.get()  # its error is clearer: it names jobs of similar names
                    raise errors.NoJobError(f"{self.name} was deleted")
                yield job
                if is_over(job, target):
                    return

    def _late(self, timeout: float | None, job: TrainingJob | None) -> errors.WaitTimeoutError:
        state = f"is {job.status.phase}: {job.status.message}" if job else "was not seen"
        return errors.WaitTimeoutError(f"{self.name} {state}, after {timeout:g} s; the job goes on; see explain()")

    async def logs(
        self,
        *,
        rank: int | None = None,
        replica: str | None = None,
        attempt: int | None = None,
        previous: bool = False,
        tail: int | None = None,
    ) -> list[str]:
        """What the replicas have printed, each line after its replica, such as `[worker-0] step 1`.

        `rank`, `replica` (`worker-1`) and `attempt` select lines, `previous` selects the attempt before the current one, and `tail` is the
        largest number of lines of each replica. Raises RefusedError if there are no such logs.
        """
        if previous and attempt is not None:
            raise errors.RefusedError("previous and attempt: give one of them")
        if previous:
            attempt = (await self.status()).attempt - 1
            if attempt < 0:
                raise errors.RefusedError(f"{self.name} is in its first attempt, so there is no previous one")
        return await self._printed(Selection(rank=rank, replica=replica, attempt=attempt), tail=tail)

    @abstractmethod
    async def _printed(self, selection: Selection, *, tail: int | None) -> list[str]:
        """The lines that logs() returns."""

    def follow_logs(self, *, rank: int | None = None, replica: str | None = None) -> AsyncGenerator[str, None]:
        """The lines that were printed so far and those that follow, over restarts, until the job has ended. It may have no pods yet."""
        return self.follow(Selection(rank=rank, replica=replica), note=lambda _: None)

    @abstractmethod
    async def explain(self) -> Explanation:
        """Why the job does not run, is slow or has failed, and what to do, as `muster explain` shows it."""

    async def report(self, *, history: str | Path | None = None) -> Report:
        """What happened in the job, as `muster report` shows it: attempts, loss, throughput, goodput, explanation and last log lines.

        `history` is the checkpoint storage, for the full curves of a job on a cluster: a folder of this machine, or s3://bucket/prefix.
        Raises RefusedError if the storage is of another kind.
        """
        try:
            storage = storage_of(history) if history is not None else None
        except StorageError as error:
            raise errors.RefusedError(str(error)) from error
        view = await self._view(storage)
        return Report(self.name, await asyncio.to_thread(lambda: page_as_html(job_page(view))))

    @abstractmethod
    async def _view(self, history: Storage | None) -> JobView: ...

    @abstractmethod
    async def suspend(self) -> None:
        """Asks the job to save and stop. `wait(until="Suspended")` waits until it has."""

    @abstractmethod
    async def resume(self) -> None:
        """Lets a suspended job go on from its last commit."""

    @abstractmethod
    async def restart(self) -> None:
        """Stops the job so that it saves, and starts it again. A failed job goes on from its last commit."""

    @abstractmethod
    async def scale(self, replicas: int, *, role: str = "worker") -> None:
        """Changes the number of replicas of a role. The job saves, and goes on in a new world."""

    @abstractmethod
    async def delete(self) -> Path | None:
        """Deletes the job. Its checkpoints stay. Returns the folder to which the files of a local run were moved."""


class Backend(Protocol):
    """Where jobs run."""

    async def submit(self, job: TrainingJob, *, file: Path | None, code: Code | None) -> AsyncJob: ...

    async def get(self, name: str, *, namespace: str | None) -> AsyncJob: ...

    async def jobs(self, *, all_namespaces: bool) -> list[AsyncJob]: ...

    async def documents(self, *, all_namespaces: bool, whole: bool) -> list[Object]:
        """The jobs as the API server has them: `whole`, or with the fields only that have a column in `kubectl get`."""

    async def neglects(self, documents: Sequence[Object], *, now: datetime) -> list[str]:
        """A sentence about each of these jobs that nothing works on."""

    async def close(self) -> None: ...


def _phase(until: Phase | str) -> Phase:
    try:
        return Phase(until)
    except ValueError:
        raise errors.RefusedError(f"until: must be one of {', '.join(Phase)}, not {until!r}") from None
