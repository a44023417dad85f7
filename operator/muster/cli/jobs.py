"""Commands on the jobs of a cluster that read or change them: submit, get, explain, suspend, resume, restart, scale, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.on_cluster import cluster_options, job_argument, job_names, on_cluster, output_option
from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.client.connection import Connection

Target = tuple[str | None, ...]
_HALF_WAY = "interrupted: {name} may be suspended. See muster get {name}; it goes on with muster resume {name}"


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("--code", type=click.Path(path_type=Path, file_okay=False), help="Folder whose files the pods get in /code.")
@click.option("-w", "--watch", "follow", is_flag=True, help="Show the progress until the job has ended.")
@cluster_options
def submit(*, job: str, code: Path | None, follow: bool, target: Target) -> int:
    """Creates the job in JOB.YAML (- for standard input) on a cluster.

    The files of --code go into a ConfigMap that is deleted with the job: at most 1 MB, no folders. It replaces trainer.code.
    """
    from muster.admission.read import read_job
    from muster.cli.job_file import show_remarks
    from muster.client.submit import submit as create
    from muster.client.watch import watch as watch_job

    read = read_job(job)
    show_remarks(read, job)
    namespace = read.metadata.namespace if "namespace" in read.metadata.model_fields_set else None
    name = read.metadata.name

    async def work(connection: Connection) -> None:
        await create(connection, read, code=code)
        click.echo(f"{name} submitted to namespace {connection.namespace}. See muster watch {name}, muster logs -f {name}")

    place = (target[0] or namespace, *target[1:])
    on_cluster(place, work)
    if not follow:
        return 0
    try:
        return on_cluster(place, lambda connection: watch_job(connection, name))
    except KeyboardInterrupt:
        return 0  # ends the display, not the job


@click.command()
@click.argument("names", metavar="[JOB]...", nargs=-1, shell_complete=job_names)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces.")
@output_option("table", "json", "yaml", "name", default="table")
@cluster_options
def get(*, names: tuple[str, ...], everywhere: bool, output: str, target: Target) -> None:
    """Lists the jobs of the namespace, or shows the named ones."""
    from muster.client.job_text import jobs_as
    from muster.client.jobs import Jobs

    async def work(connection: Connection) -> tuple[list[Any], list[str]]:
        jobs = Jobs(connection)
        if names:
            listing = [await jobs.get(name) for name in names]
        else:
            listing = await (jobs.summaries if output in ("table", "name") else jobs.all)(everywhere=everywhere)
        return listing, await jobs.neglects(listing, now=datetime.now(UTC))

    listing, neglects = on_cluster(target, work)
    for neglect in neglects:
        click.echo(neglect, err=True)
    if not listing and output == "table":
        click.echo("There are no jobs." if everywhere else "There are no jobs in this namespace.", err=True)
        return
    click.echo(jobs_as(output, listing, now=datetime.now(UTC), namespaced=everywhere, single=len(names) == 1), nl=False)


@click.command()
@job_argument
@output_option("text", "json", "yaml", default="text")
@cluster_options
def explain(*, name: str, output: str, target: Target) -> None:
    """Explains why a job does not run, is slow or has failed, and what to do. The most likely cause comes first.

    It looks at the job's status, its pods, their events, nodes, claims, quotas and network policies, as far as you may read them.
    docs/reference/causes.md lists the causes.
    """
    from muster.client.job_text import document_as
    from muster.client.snapshot import snapshot_of
    from muster.explain.explain import as_document, as_lines
    from muster.explain.explain import explain as explained

    explanation = explained(on_cluster(target, lambda connection: snapshot_of(connection, name)))
    if output == "text":
        click.echo("\n".join(as_lines(explanation)))
    else:
        click.echo(document_as(output, as_document(explanation)), nl=False)


@click.command()
@job_argument
@cluster_options
def suspend(*, name: str, target: Target) -> None:
    """Stops a job so that it saves, and removes its pods until it is resumed."""
    from muster.client.jobs import Jobs

    on_cluster(target, lambda connection: Jobs(connection).suspend(name, suspend=True))
    click.echo(f"{name} saves and stops. Continue with muster resume {name}")


@click.command()
@job_argument
@cluster_options
def resume(*, name: str, target: Target) -> None:
    """Lets a suspended job go on from its last commit."""
    from muster.client.jobs import Jobs

    on_cluster(target, lambda connection: Jobs(connection).suspend(name, suspend=False))
    click.echo(f"{name} goes on")


@click.command()
@job_argument
@cluster_options
def restart(*, name: str, target: Target) -> None:
    """Stops a job so that it saves, and starts it again in new pods. A failed job is created again, and resumes."""
    from muster.client.jobs import Jobs

    try:
        on_cluster(target, lambda connection: Jobs(connection).restart(name))
    except KeyboardInterrupt:
        raise RefusalError(_HALF_WAY.format(name=name), 130) from None
    click.echo(f"{name} is restarted")


@click.command()
@job_argument
@click.option("--replicas", type=click.IntRange(min=1), required=True, help="Number of replicas.")
@click.option("--role", default="worker", show_default=True, help="Role of the replicas.")
@cluster_options
def scale(*, name: str, replicas: int, role: str, target: Target) -> None:
    """Changes the number of replicas of a role. The job saves, and goes on in a new world. If it is not elastic, it is suspended
    meanwhile."""
    from muster.client.jobs import Jobs

    try:
        on_cluster(target, lambda connection: Jobs(connection).scale(name, role=role, replicas=replicas))
    except KeyboardInterrupt:
        raise RefusalError(_HALF_WAY.format(name=name), 130) from None
    click.echo(f"{name} is scaled to {replicas} of role {role}")


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=job_names)
@cluster_options
def delete(*, names: tuple[str, ...], target: Target) -> None:
    """Deletes jobs with their pods. Their checkpoints stay."""
    from muster.client.jobs import Jobs

    async def work(connection: Connection) -> None:
        for name in names:
            await Jobs(connection).delete(name)
            click.echo(f"{name} is deleted. Its checkpoints stay")

    on_cluster(target, work)
