"""The Python client without asyncio: the one in muster.client.async_client, in a thread. It also works where a loop runs already."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from muster.api.job import TrainingJob
from muster.api.status import Phase, TrainingJobStatus
from muster.client.async_client import AsyncClient, BackendName
from muster.client.async_job import AsyncJob, OnProgress
from muster.client.background import BackgroundLoop
from muster.client.errors import ClientError
from muster.client.job_input import JobInput
from muster.client.notebook import as_html
from muster.client.progress import Progress, progress_of

P = ParamSpec("P")
Result = TypeVar("Result")


def _waiting(method: Callable[Concatenate[AsyncJob, P], Coroutine[Any, Any, Result]]) -> Callable[Concatenate[Job, P], Result]:
    """The method for code without asyncio, with the same arguments and the same description."""

    @wraps(method)
    def waiting(self: Job, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        result: Result = self._loop.run(getattr(self._job, method.__name__)(*args, **kwargs))
        return result

    return waiting


class Job:
    """A job that was submitted. Every call reads or changes the current state of the job."""

    def __init__(self, client: Client, loop: BackgroundLoop, job: AsyncJob) -> None:
        self._client = client  # lives as long as its jobs
        self._loop = loop
        self._job = job

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._job.name

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return self._job.namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.name}>"

    def _repr_html_(self) -> str | None:
        """The progress of the job, as a notebook shows it. None if the job cannot be read: the notebook then shows its name."""
        try:
            return as_html(self.progress)
        except ClientError:
            return None

    get = _waiting(AsyncJob.get)

    @property
    def status(self) -> TrainingJobStatus:
        """The status of the job, read now."""
        return self._loop.run(self._job.status())

    @property
    def progress(self) -> Progress:
        """The progress of the job now."""
        return self._loop.run(self._job.progress())

    def wait(
        self, *, until: Phase | str = Phase.SUCCEEDED, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> TrainingJobStatus:
        """Waits until the job has reached the phase `until`, or has succeeded. Returns its status.

        `on_progress` is called in this thread with the progress, first at once and then after each change. `timeout` is in seconds. Waits
        for at most a minute while the API server does not answer. Ctrl-C ends the wait, not the job.

        Raises JobFailedError if the job fails, WaitTimeoutError after `timeout`, NoJobError if the job is deleted, JobStoppedError if a
        local run is stopped, and NoClusterError if the API server does not answer for a minute.
        """
        for job in self.updates(until=until, timeout=timeout):
            if on_progress is not None:
                on_progress(progress_of(job))
        return job.status

    def updates(self, *, until: Phase | str = Phase.SUCCEEDED, timeout: float | None = None) -> Generator[TrainingJob, None, None]:
        """The job now and after each change, until it has reached the phase `until` or has succeeded. Raises the same errors as wait()."""
        return self._loop.iterate(self._job.updates(until=until, timeout=timeout))

    logs = _waiting(AsyncJob.logs)

    def follow_logs(self, *, rank: int | None = None, replica: str | None = None) -> Generator[str, None, None]:
        """The lines that were printed so far and those that follow, over restarts, until the job has ended. It may have no pods yet."""
        return self._loop.iterate(self._job.follow_logs(rank=rank, replica=replica))

    explain = _waiting(AsyncJob.explain)
    report = _waiting(AsyncJob.report)
    suspend = _waiting(AsyncJob.suspend)
    resume = _waiting(AsyncJob.resume)
    restart = _waiting(AsyncJob.restart)
    scale = _waiting(AsyncJob.scale)
    delete = _waiting(AsyncJob.delete)


class Client:
    """Submits and finds jobs. Use it in a `with` statement, or call `close`. Otherwise it is closed at the end of the program.

    `namespace`, `context` and `kubeconfig` name the cluster, as the options of the commands do. By default they are those of kubectl.
    With `backend="local"`, jobs run on this machine, in run directories below `directory` (default: runs). They save and end when the
    client is closed or its process ends, unless `detach` is true. `presets` is a file with the presets that such jobs name, as `kubectl
    get trainingpresets -o yaml` prints them (default: $MUSTER_PRESETS).

    Raises ClientError if the extra `cluster` is not installed. The connection is made by the first call, which raises NoClusterError if
    there is no cluster.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        backend: BackendName = "cluster",
        directory: str | Path | None = None,
        detach: bool = False,
        presets: str | Path | None = None,
    ) -> None:
        self._client = AsyncClient(
            namespace=namespace,
            context=context,
            kubeconfig=kubeconfig,
            backend=backend,
            directory=directory,
            detach=detach,
            presets=presets,
        )
        self._loop = BackgroundLoop()
        self._end = weakref.finalize(self, self._loop.end, self._client.close)

    def submit(self, job: JobInput, *, code: str | Path | None = None) -> Job:
        """Submits a job, which is built in Python, the data of a job file, or the path of a job file.

        The files of the folder `code` go to the pods, as with `muster submit --code`. Raises InvalidJobError with all problems of the job,
        ConflictError if a job of this name exists, and RefusedError if the cluster does not accept it.
        """
        return self._job(self._loop.run(self._client.submit(job, code=code)))

    def train(
        self, function: Callable[..., object], *, name: str | None = None, arguments: Mapping[str, Any] | None = None, **spec: Any
    ) -> Job:
        """Trains with a function: each process of the job calls it with `arguments`, which are plain values by name.

            job = client.train(fit, strategy="DDP", roles={"worker": muster.Role(replicas=2)}, arguments={"epochs": 3})

        Only the source of the function is sent, so it imports and defines all that it uses. What it returns is lost. `spec` is as in
        `muster.job`. The name is by default that of the function.

        Raises RefusedError if the function cannot run elsewhere or is too large, and the errors of submit().
        """
        return self._job(self._loop.run(self._client.train(function, name=name, arguments=arguments, **spec)))

    def get(self, name: str, *, namespace: str | None = None) -> Job:
        """The job of this name. Raises NoJobError, which names jobs of similar names."""
        return self._job(self._loop.run(self._client.get(name, namespace=namespace)))

    def list(self, *, all_namespaces: bool = False) -> list[Job]:
        """The jobs of the namespace, or of all namespaces."""
        return [self._job(each) for each in self._loop.run(self._client.list(all_namespaces=all_namespaces))]

    def close(self) -> None:
        """Closes the connection. Jobs on a cluster go on. Local runs save and end, unless they are detached."""
        if self._end.alive:
            self._loop.run(self._client.close())
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _job(self, job: AsyncJob) -> Job:
        return Job(self, self._loop, job)
