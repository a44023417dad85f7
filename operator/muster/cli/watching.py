"""Commands that follow a job or collect data about it: watch, logs, debug-dump."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.on_jobs import Target, cluster_options, job_argument, on_cluster, on_job, on_jobs
from muster.cli.pages import write_text

if TYPE_CHECKING:
    from muster.client.async_job import AsyncJob, Backend

POLL_SECONDS = 1.0


@click.command()
@job_argument
@cluster_options
def watch(*, name: str, target: Target) -> int:
    """Shows the live progress of a job until it has ended. Ctrl-C ends the display, not the job.

    Exit codes: those of muster run.
    """
    from muster.client.watch import watch as watch_job

    try:
        return on_job(target, name, watch_job)
    except KeyboardInterrupt:
        return 0


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(min=0), help="Only the replica that has this rank.")
@click.option("--replica", metavar="ROLE-INDEX", help="Only this replica, such as worker-1.")
@click.option("--attempt", type=click.IntRange(min=0), help="Only what was printed in this attempt.")
@click.option("-p", "--previous", is_flag=True, help="Only what was printed in the attempt before the current one.")
@click.option("-f", "--follow", is_flag=True, help="Go on, over restarts, until the job has ended.")
@click.option("--tail", type=click.IntRange(min=0), help="At most this many lines of each replica.")
@cluster_options
def logs(
    *,
    name: str,
    rank: int | None,
    replica: str | None,
    attempt: int | None,
    previous: bool,
    follow: bool,
    tail: int | None,
    target: Target,
) -> None:
    """Prints what the replicas of a job print, each line with its replica. On a cluster, the lines are in the order of time.

    With --follow it may be called before there are pods, or before there is a job. While the trainer of a replica has not started, it
    prints what an init container of the replica prints. Pods that are gone have no logs any more.
    """
    from muster.client.log_lines import Selection

    if previous and attempt is not None:
        raise click.UsageError("--previous and --attempt: give one of them")
    if follow and (previous or attempt is not None or tail is not None):
        raise click.UsageError("--follow shows all attempts, with all their lines: leave --previous, --attempt and --tail out")

    async def work(backend: Backend) -> None:
        if follow:
            job = await existing(backend, name)
            async with aclosing(job.follow(Selection(rank=rank, replica=replica), note=_note)) as lines:
                async for line in lines:
                    click.echo(line)
            return
        job = await backend.get(name, namespace=None)
        for line in await job.logs(rank=rank, replica=replica, attempt=attempt, previous=previous, tail=tail):
            click.echo(line)

    try:
        on_jobs(target, work)
    except KeyboardInterrupt:
        return


async def existing(backend: Backend, name: str) -> AsyncJob:
    """The job, once it exists. Shows a sentence if it does not exist yet."""
    from muster.client.errors import NoJobError

    has_waited = False
    while True:
        try:
            return await backend.get(name, namespace=None)
        except NoJobError as error:
            if not has_waited:
                _note(f"{error}; waiting for it (Ctrl-C ends the wait)")
            has_waited = True
            await asyncio.sleep(POLL_SECONDS)


def _note(text: str) -> None:
    from muster_contract.text import printable

    click.echo(printable(text), err=True)


@click.command("debug-dump")
@job_argument
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Default: JOB-debug.json; - for standard output."
)
@cluster_options
def debug_dump(*, name: str, path: Path | None, target: Target) -> None:
    """Writes all that helps to find a fault into one file: status, pods, events, nodes, last log lines and the explanation.

    Values that look like secrets are left out. Read the file before you send it to anybody.
    """
    from muster.client.dump import debug_dump as dump
    from muster.client.job_text import document_as

    document = on_cluster(target, lambda connection: dump(connection, name, version=version("muster-training")))
    text = document_as("json", document)
    if path and str(path) == "-":
        click.echo(text, nl=False)
    else:
        write_text(text, path, default=Path(f"{name}-debug.json"), option="--file", mode=0o600)
