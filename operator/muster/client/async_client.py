"""The Python client for asyncio. The client in muster.client.sync_client runs it in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from muster.client import errors
from muster.client.async_job import AsyncJob, Backend
from muster.client.function import job_of
from muster.client.job_input import JobInput, checked

BackendName = Literal["cluster", "local"]


class AsyncClient:
    """Submits and finds jobs. Use it as `async with muster.AsyncClient() as client`, or close it.

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
        self._backend = _backend(backend, (namespace, context, kubeconfig), directory=directory, detach=detach, presets=presets)

    async def submit(self, job: JobInput, *, code: str | Path | None = None) -> AsyncJob:
        """Submits a job, which is built in Python, the data of a job file, or the path of a job file.

        The files of the folder `code` go to the pods, as with `muster submit --code`. Raises InvalidJobError with all problems of the job,
        ConflictError if a job of this name exists, and RefusedError if the cluster does not accept it.
        """
        written, file = checked(job)
        return await self._backend.submit(written, file=file, code=None if code is None else Path(code))

    async def train(
        self, function: Callable[..., object], *, name: str | None = None, arguments: Mapping[str, Any] | None = None, **spec: Any
    ) -> AsyncJob:
        """Trains with a function: each process of the job calls it with `arguments`, which are plain values by name.

            job = client.train(fit, strategy="DDP", roles={"worker": muster.Role(replicas=2)}, arguments={"epochs": 3})

        Only the source of the function is sent, so it imports and defines all that it uses. What it returns is lost. `spec` is as in
        `muster.job`. The name is by default that of the function.

        Raises RefusedError if the function cannot run elsewhere or is too large, and the errors of submit().
        """
        built, files = job_of(function, name, arguments or {}, spec)
        return await self._backend.submit(checked(built)[0], file=None, code=files)

    async def get(self, name: str, *, namespace: str | None = None) -> AsyncJob:
        """The job of this name. Raises NoJobError, which names jobs of similar names."""
        return await self._backend.get(name, namespace=namespace)

    async def list(self, *, all_namespaces: bool = False) -> list[AsyncJob]:
        """The jobs of the namespace, or of all namespaces."""
        return await self._backend.jobs(all_namespaces=all_namespaces)

    async def close(self) -> None:
        """Closes the connection. Jobs on a cluster go on. Local runs save and end, unless they are detached."""
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _backend(
    name: BackendName, target: tuple[str | None, ...], *, directory: str | Path | None, detach: bool, presets: str | Path | None
) -> Backend:
    if name == "local":
        if any(each is not None for each in target):
            raise errors.RefusedError("namespace, context and kubeconfig are for clusters: leave them out with backend='local'")
        from muster.client.local_backend import LocalBackend

        file = presets or os.environ.get("MUSTER_PRESETS")
        return LocalBackend(Path(directory or "runs"), detach=detach, presets=Path(file) if file else None)
    if name != "cluster":
        raise errors.RefusedError(f"backend: must be cluster or local, not {name!r}")
    if directory is not None or detach or presets is not None:
        raise errors.RefusedError("directory, detach and presets are for backend='local'")
    from muster.client.either_backend import cluster_backend

    return cluster_backend(*target)
