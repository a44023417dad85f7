"""`muster report`: a run or a job as one HTML page."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.on_jobs import cluster_options, on_cluster
from muster.cli.pages import history_storage
from muster.cli.refusal import RefusalError

MOST_LOG_BYTES, LOG_LINES = 64 << 10, 50

if TYPE_CHECKING:
    from muster.tools.report.page import Page


@click.command()
@click.argument("run_dir", metavar="RUN_DIR|JOB", type=click.Path(path_type=Path))
@click.option(
    "-f",
    "--file",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; default: report.html in the run directory, or JOB-report.html.",
)
@click.option("--against", type=click.Path(path_type=Path), help="Another run directory. The losses of both runs are compared.")
@click.option(
    "--history",
    metavar="FOLDER|s3://...",
    help="The checkpoint storage, for the full curves of a job on a cluster, also of a deleted one: its folder, or s3://bucket/prefix.",
)
@click.option("--open", "open_browser", is_flag=True, help="Show the page in a browser.")
@cluster_options
def report(
    *,
    run_dir: Path,
    output: Path | None,
    against: Path | None,
    history: str | None,
    open_browser: bool,
    target: tuple[str | None, ...],
) -> None:
    """Writes an HTML page about the run in RUN_DIR: loss with restarts marked, throughput, timeline of attempts, goodput.

    If there is no such folder, the argument is the name of a JOB: a run in runs/, or else a job on a cluster. The page of such a job
    also has the explanation and the last lines of the logs.
    """
    from muster.cli.pages import write
    from muster.client.either_backend import RUNS
    from muster.local.rundir import has_run

    if not any(target) and is_job(run_dir) and has_run(RUNS / run_dir):
        run_dir = RUNS / run_dir
    if is_job(run_dir):
        if against is not None:
            raise click.UsageError("--against: compares run directories; leave it out for a job on a cluster")
        page, default = page_of_job(str(run_dir), history=history, target=target), Path(f"{run_dir}-report.html")
    else:
        if history is not None:
            raise click.UsageError("--history: is for jobs on a cluster; a run directory has its own")
        page, default = page_of_run(run_dir, against=against), run_dir / "report.html"
    file = write(page, output, default=default)
    if open_browser:
        webbrowser.open(file.resolve().as_uri())


def is_job(argument: Path) -> bool:
    """Whether the argument is the name of a job and not a path."""
    return not argument.exists() and len(argument.parts) == 1 and argument.name not in ("", "..")


def page_of_run(run_dir: Path, *, against: Path | None) -> Page:
    """The page of a run directory."""
    from muster.local.files import tail_of
    from muster.tools.measure.figures import figures_of
    from muster.tools.report.history import ReportError
    from muster.tools.report.job import JobView, Log, job_page
    from muster.tools.report.run import read_any_run, read_run, run_page

    try:
        run = read_any_run(run_dir)
        if not run.history.steps:
            files = sorted(run_dir.glob(f"attempts/{run.status.attempt}/*/log.txt"))
            logs = [Log(each.parent.name, tail_of(each, MOST_LOG_BYTES).splitlines()[-LOG_LINES:]) for each in files]
            return job_page(JobView(run.name, run.shown_state, run.status, job_yaml=run.job_yaml, logs=logs))
        page = run_page(run, against=read_run(against) if against else None)
    except ReportError as error:
        raise RefusalError(str(error)) from error
    return replace(page, figures={**(page.figures or {}), **figures_of(run).shown()})


def page_of_job(name: str, *, history: str | Path | None, target: tuple[str | None, ...]) -> Page:
    """The page of a job on a cluster. If it is deleted, the page of its history."""
    from muster.client.connection import Connection
    from muster.client.errors import NoClusterError, NoJobError
    from muster.client.views import cluster_view, deleted_job_view
    from muster.tools.report.history import ReportError
    from muster.tools.report.job import JobView, job_page

    storage = history_storage(history)

    async def view(connection: Connection) -> JobView:
        try:
            return await cluster_view(connection, name, history=storage)
        except NoJobError:
            if storage is None:
                raise
            return deleted_job_view(storage, connection.namespace, name)

    try:
        return job_page(on_cluster(target, view))
    except RefusalError as error:
        if error.exit_code != NoClusterError.code:
            raise
        raise RefusalError(f"{name}: there is no such run directory. As the name of a job: {error.message}", error.exit_code) from error
    except ReportError as error:
        raise RefusalError(str(error)) from error
