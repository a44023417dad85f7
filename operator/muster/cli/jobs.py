"""Commands on jobs that read or change them: submit, get, explain, suspend, resume, restart, scale, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.job_file import set_option
from muster.cli.on_jobs import Target, cluster_options, job_argument, job_names, on_job, on_jobs, output_option
from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.client.async_job import RankProcess
    from muster.client.either_backend import EitherBackend
    from muster.kubernetes.objects import Object

MOST_WIDE = 20
_HALF_WAY = "interrupted: {name} may be suspended. See muster get {name}; it goes on with muster resume {name}"


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("--code", type=click.Path(path_type=Path, file_okay=False), help="Folder whose files the pods get in /code.")
@set_option
@click.option("--dry-run", is_flag=True, help="Only ask the cluster whether it would accept the job.")
@click.option("-w", "--watch", "follow", is_flag=True, help="Show the progress until the job has ended.")
@cluster_options
def submit(*, job: str, code: Path | None, settings: tuple[str, ...], dry_run: bool, follow: bool, target: Target) -> int:
    """Creates the job in JOB.YAML (- for standard input) on a cluster.

    The files of --code go into a ConfigMap that is deleted with the job: at most 1 MB, no folders. It replaces trainer.code.
    """
    from muster.admission.read import read_job
    from muster.cli.job_file import show_remarks
    from muster.client.watch import watch as watch_job
    from muster.local.errors import RunError
    from muster.local.overrides import overridden

    try:
        read = overridden(read_job(job), settings)
    except RunError as error:
        raise RefusalError(str(error), error.code) from error
    show_remarks(read, job)

    async def work(backend: EitherBackend) -> int:
        created = await backend.submit(read, file=None, code=code, dry_run=dry_run)
        if dry_run:
            click.echo(f"{created.name} would be accepted in namespace {created.namespace}. Nothing was created")
            return 0
        place = f"-n {created.namespace} {created.name}"
        click.echo(f"{created.name} submitted to namespace {created.namespace}. See muster watch {place}, muster logs -f {place}")
        return await watch_job(created) if follow else 0

    try:
        return on_jobs(target, work)
    except KeyboardInterrupt:
        if not follow:
            raise
        return 0  # ends the display, not the job


@click.command()
@click.argument("names", metavar="[JOB]...", nargs=-1, shell_complete=job_names)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces.")
@output_option("table", "wide", "json", "yaml", "name", default="table")
@cluster_options
def get(*, names: tuple[str, ...], everywhere: bool, output: str, target: Target) -> None:
    """Lists the runs of this machine and the jobs of the namespace, or shows the named ones.

    -o wide also shows their training processes: the rank of each, its process id or pod, and its node.
    """
    from muster.client.job_text import jobs_as, processes_as_table, run_directory

    async def work(backend: EitherBackend) -> tuple[list[Object], list[str], list[tuple[str, RankProcess]]]:
        if names:
            listing = [await (await backend.get(name, namespace=None)).document() for name in names]
        else:
            listing = await backend.documents(all_namespaces=everywhere, whole=output in ("json", "yaml"))
        neglects = await backend.neglects(listing, now=datetime.now(UTC))
        if output != "wide":
            return listing, neglects, []
        if len(listing) > MOST_WIDE:
            raise click.UsageError(f"-o wide reads the processes of each job, and these are {len(listing)}: name at most {MOST_WIDE}")
        named = [(run_directory(job) or job["metadata"]["name"], job["metadata"].get("namespace")) for job in listing]
        jobs = [(name, await backend.get(name, namespace=namespace)) for name, namespace in named]
        return listing, neglects, [(name, process) for name, job in jobs for process in await job.processes()]

    listing, neglects, processes = on_jobs(target, work)
    for neglect in neglects:
        click.echo(neglect, err=True)
    if not listing and output in ("table", "wide"):
        click.echo("There are no jobs." if everywhere else "There are no jobs in this namespace.", err=True)
        return
    click.echo(jobs_as(output, listing, now=datetime.now(UTC), namespaced=everywhere, single=len(names) == 1), nl=False)
    if processes:
        click.echo(f"\n{processes_as_table(processes)}", nl=False)


@click.command()
@job_argument
@output_option("text", "json", "yaml", default="text")
@cluster_options
def explain(*, name: str, output: str, target: Target) -> None:
    """Explains why a job does not run, is slow or has failed, and what to do. The most likely cause comes first.

    On a cluster, it looks at the job's status, its pods, their events, nodes, claims, quotas and network policies, as far as you may
    read them.
    docs/reference/causes.md lists the causes.
    """
    from muster.client.job_text import document_as
    from muster.explain.explain import as_document, as_lines

    explanation = on_job(target, name, lambda job: job.explain())
    if output == "text":
        click.echo("\n".join(as_lines(explanation)))
    else:
        click.echo(document_as(output, as_document(explanation)), nl=False)


@click.command()
@job_argument
@cluster_options
def suspend(*, name: str, target: Target) -> None:
    """Stops a job so that it saves, and removes its pods or processes until it is resumed."""
    on_job(target, name, lambda job: job.suspend())
    click.echo(f"{name} saves and stops. Continue with muster resume {name}")


@click.command()
@job_argument
@cluster_options
def resume(*, name: str, target: Target) -> None:
    """Lets a suspended job go on from its last commit. A run of this machine goes on in the background."""
    on_job(target, name, lambda job: job.resume())
    click.echo(f"{name} goes on. See muster watch {name}")


@click.command()
@job_argument
@cluster_options
def restart(*, name: str, target: Target) -> None:
    """Stops a job so that it saves, and starts it again in new pods or processes. A failed job is created again, and resumes."""
    try:
        on_job(target, name, lambda job: job.restart())
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
    try:
        on_job(target, name, lambda job: job.scale(replicas, role=role))
    except KeyboardInterrupt:
        raise RefusalError(_HALF_WAY.format(name=name), 130) from None
    click.echo(f"{name} is scaled to {replicas} of role {role}")


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=job_names)
@cluster_options
def delete(*, names: tuple[str, ...], target: Target) -> None:
    """Deletes jobs with their pods or processes. Their checkpoints stay.

    A run of this machine saves and ends. Its directory is moved aside, to <run directory>.1 and so on, and is no run any more.
    """

    async def work(backend: EitherBackend) -> None:
        for name in names:
            moved = await (await backend.get(name, namespace=None)).delete()
            click.echo(f"{name} is deleted. Its checkpoints stay" + (f" in {moved}" if moved else ""))

    on_jobs(target, work)
