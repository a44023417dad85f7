"""The jobs that the commands work on: the runs of this machine, and the jobs of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from muster.api.job import TrainingJob
from muster.client import errors
from muster.client.async_job import AsyncJob
from muster.client.code import Code
from muster.client.local_backend import LocalBackend
from muster.kubernetes.objects import Object
from muster.local.rundir import has_run

if TYPE_CHECKING:
    from muster.client.cluster_backend import ClusterBackend

RUNS = Path("runs")
"""The folder with the runs of `muster run`."""
_DEFAULT_KUBECONFIG = "~/.kube/config"


def is_path(name: str) -> bool:
    """Whether the argument is a path, and not the name of a job."""
    return Path(name).name != name


def cluster_backend(namespace: str | None, context: str | None, kubeconfig: str | None) -> ClusterBackend:
    """The jobs of a cluster. Raises ClientError if the extra `cluster` is not installed."""
    try:
        from muster.client.cluster_backend import ClusterBackend
    except ModuleNotFoundError as error:
        if (sentence := errors.missing_package(error)) is None:
            raise
        raise errors.ClientError(sentence) from error
    return ClusterBackend(namespace=namespace, context=context, kubeconfig=kubeconfig)


class EitherBackend:
    """The runs of this machine, and the jobs of the cluster of the kubeconfig. Of one name, the run comes first.

    If a namespace, context or kubeconfig is given, only the jobs of that cluster.
    """

    def __init__(self, target: tuple[str | None, ...]) -> None:
        self._target = target
        self._local = LocalBackend(RUNS, detach=True) if not any(target) else None
        self._cluster: ClusterBackend | None = None
        self._silence = ""

    async def submit(self, job: TrainingJob, *, file: Path | None, code: Code | None, dry_run: bool = False) -> AsyncJob:
        """Submits to the cluster. With `dry_run`, only asks whether it would accept the job."""
        return await self._remote().submit(job, file=file, code=code, dry_run=dry_run)

    async def get(self, name: str, *, namespace: str | None = None) -> AsyncJob:
        if self._local is None or namespace is not None:  # a run has no namespace
            return await self._remote().get(name, namespace=namespace)
        if is_path(name):
            return await LocalBackend(Path(name).parent, detach=True).get(Path(name).name, namespace=None)
        if has_run(RUNS / name) or (not _has_kubeconfig() and self._local.names()):
            return await self._local.get(name, namespace=None)
        return await self._remote().get(name, namespace=namespace)

    async def jobs(self, *, all_namespaces: bool) -> list[AsyncJob]:
        local = await self._local.jobs(all_namespaces=False) if self._local and not all_namespaces else []
        return [*local, *await self._remote().jobs(all_namespaces=all_namespaces)]

    async def documents(self, *, all_namespaces: bool, whole: bool) -> list[Object]:
        """The runs of this machine, then the jobs of the cluster. If there are runs, a cluster that does not answer is no error."""
        local = await self._local.documents(all_namespaces=False, whole=whole) if self._local and not all_namespaces else []
        if local and not _has_kubeconfig():
            return local
        try:
            return [*local, *await self._remote().documents(all_namespaces=all_namespaces, whole=whole)]
        except errors.ClientError as error:
            if not local:
                raise
            self._silence = str(error)
            return local

    async def neglects(self, documents: Sequence[Object], *, now: datetime) -> list[str]:
        if self._silence:
            return [f"The jobs of the cluster are missing: {self._silence}"]
        remote = [document for document in documents if "namespace" in document["metadata"]]
        return await self._remote().neglects(remote, now=now) if remote else []

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    def _remote(self) -> ClusterBackend:
        if self._cluster is None:
            self._cluster = cluster_backend(*self._target)
        return self._cluster


def _has_kubeconfig() -> bool:
    paths = os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
    return any(path and Path(path).expanduser().exists() for path in paths.split(os.pathsep))
