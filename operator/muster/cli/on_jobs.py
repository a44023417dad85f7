"""The common parts of the commands on jobs: their options, where the jobs are, their errors, and the completion of job names."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from muster.cli.refusal import RefusalError
from muster.client.errors import missing_package

if TYPE_CHECKING:
    from muster.client.async_job import AsyncJob
    from muster.client.connection import Connection
    from muster.client.either_backend import EitherBackend

Result = TypeVar("Result")
Target = tuple[str | None, ...]
"""Namespace, context and kubeconfig, as the options name them."""
COMPLETION_SECONDS = 3.0


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that name a cluster and a namespace. The command gets them as one argument, `target`."""

    @click.option("-n", "--namespace", help="Namespace of the cluster. Default: that of the context.")
    @click.option("--context", help="Context of the kubeconfig. Default: the current one.")
    @click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, or ~/.kube/config.")
    @functools.wraps(command)
    def with_target(*args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **kwargs: Any) -> Any:
        try:
            return command(*args, target=(namespace, context, kubeconfig), **kwargs)
        except ModuleNotFoundError as error:
            if (sentence := missing_package(error)) is None:
                raise
            raise RefusalError(sentence) from error

    return with_target


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The name of a job, which the shell can complete."""
    return click.argument("name", metavar="JOB", shell_complete=job_names)(command)


def output_option(*formats: str, default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("-o", "--output", type=click.Choice(formats), default=default, show_default=True, help="Format.")


def on_jobs(target: Target, work: Callable[[EitherBackend], Awaitable[Result]]) -> Result:
    """Runs `work` with the runs of this machine and the jobs of the cluster. Raises RefusalError with a sentence and the exit code."""
    from muster.client.either_backend import EitherBackend

    async def session() -> Result:
        backend = EitherBackend(target)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return _explained(session())


def on_job(target: Target, name: str, work: Callable[[AsyncJob], Awaitable[Result]]) -> Result:
    """Runs `work` with the job of this name: a run of this machine, or else a job of the cluster."""

    async def session(backend: EitherBackend) -> Result:
        return await work(await backend.get(name, namespace=None))

    return on_jobs(target, session)


def on_cluster(target: Target, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Runs `work` with a connection to the cluster. Raises RefusalError with a sentence and the exit code."""
    from muster.client.connection import Target as Place
    from muster.client.connection import connected

    async def session() -> Result:
        async with connected(Place(*target)) as connection:
            return await work(connection)

    return _explained(session())


def _explained(session: Coroutine[Any, Any, Result]) -> Result:
    from muster.client.errors import ClientError

    try:
        return asyncio.run(session)
    except ClientError as error:
        raise RefusalError(str(error), error.code) from error


def job_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of jobs that begin like this. The list is empty if the cluster does not answer soon."""

    from muster.client.job_text import run_directory

    async def names(backend: EitherBackend) -> list[str]:
        async with asyncio.timeout(COMPLETION_SECONDS):
            jobs = await backend.documents(all_namespaces=False, whole=False)
            return [Path(run_directory(job)).name or str(job["metadata"]["name"]) for job in jobs]

    target = (ctx.params.get("namespace"), ctx.params.get("context"), ctx.params.get("kubeconfig"))
    try:
        return [CompletionItem(name) for name in on_jobs(target, names) if name.startswith(incomplete)]
    except (RefusalError, TimeoutError, ModuleNotFoundError):
        return []
