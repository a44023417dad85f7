"""`muster bench-collectives`: how fast the processes of a job's world exchange numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.job_file import presets_option
from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.api.job import TrainingJob
    from muster_contract.events import Event


@click.command("bench-collectives")
@click.argument("job", metavar="JOB.YAML")
@click.option(
    "--seconds", type=click.FloatRange(0.01, 60), default=0.4, show_default=True, help="Seconds to measure each figure, approximately."
)
@click.option("--largest", type=click.IntRange(1, 4096), default=64, show_default=True, help="Size of the largest message, in MiB.")
@click.option("-f", "--file", "output", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page with plots.")
@click.option("--manifest", is_flag=True, help="Measure nothing. Print the job that measures on a cluster, for kubectl apply -f -.")
@click.option(
    "--log",
    type=click.File("r", errors="replace"),
    help="Measure nothing. Show the results in the log of that job's first pod (- for stdin).",
)
@presets_option
def bench_collectives(
    *, job: str, seconds: float, largest: int, output: Path | None, manifest: bool, log: Any, presets: Path | None
) -> None:
    """Measures collectives between the processes that the job in JOB.YAML would have, for several message sizes.

    These are the variants of all-reduce, broadcast, all-gather and reduce-scatter. For comparison, it measures a TCP connection between
    the first and the last process.

    \b
    On a cluster:
      muster bench-collectives JOB.YAML --manifest | kubectl apply -f -
      kubectl logs NAME-collectives-worker-0 | muster bench-collectives JOB.YAML --log -
    """
    from muster.acceptance.presets import read_with_preset
    from muster.admission.read import read_job
    from muster.cli.render import as_yaml
    from muster.tools.measure.jobs import collectives_job

    if manifest and log:
        raise click.UsageError("--manifest prints the job, --log shows its results: give one of them")
    # The manifest keeps the name of the preset: the cluster has it.
    read = read_job(job) if manifest or log else read_with_preset(job, presets)
    sizes = [size for power in range(5, 17) if (size := 4**power) <= largest * 2**20]
    measuring = collectives_job(read, {"sizes": sizes or [2**10], "seconds": seconds})
    if manifest:
        named = {"apiVersion": measuring.api_version, "kind": measuring.kind}
        written = measuring.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"status"})
        click.echo(as_yaml([named | written]), nl=False)
        return
    events = _in_log(log) if log else _here(measuring, Path(job))
    _show(read, events, output, processors=None if log else os.cpu_count())


def _in_log(log: Any) -> list[Event]:
    from muster.tools.measure.readings import in_log
    from muster_contract.events import CollectiveMeasurement

    events = in_log(log)
    if not any(isinstance(one, CollectiveMeasurement) for one in events):
        raise RefusalError("--log: there are no measurements in it; give the whole log of the first pod, once the job has succeeded")
    return list(events)


def _here(job: TrainingJob, file: Path) -> list[Event]:
    from muster.local.errors import RunError
    from muster.strategies.registry import strategy_of
    from muster.tools.measure.jobs import fits
    from muster.tools.measure.measuring import run_and_measure

    fits(strategy_of(job.spec.strategy).plan(job.spec).size, processors=os.cpu_count() or 1)
    try:
        return list(run_and_measure(job, job_file=file))
    except RunError as error:
        raise RefusalError(str(error), error.code) from error


def _show(job: TrainingJob, events: list[Event], output: Path | None, *, processors: int | None) -> None:
    from muster.cli.pages import write
    from muster.tools.measure import collectives_page as shown
    from muster.tools.measure.readings import collectives, socket
    from muster.tools.report.page import as_text

    operations, link = collectives(events), socket(events)
    click.echo(as_text(shown.overview(operations, link)))
    for finding in shown.findings(operations, link, processors=processors):
        click.echo(finding.sentence)
    if output:
        title = f"Collectives of {job.metadata.name}"
        subtitle = f"{job.spec.strategy}, {operations[0].world} {'processes' if link.seconds else 'devices'}"
        write(shown.page(operations, link, title=title, subtitle=subtitle, processors=processors), output)
