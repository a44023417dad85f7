"""`muster plan`: whether a job should be distributed at all, and how."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.job_file import presets_option
from muster.cli.prices import Prices, prices_option
from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.api.job import TrainingJob
    from muster.tools.measure.cost import Costs
    from muster_contract.events import StepMeasurement

DEFAULT_SAMPLES = 64  # of a step, where the job leaves it to the trainer
SMALL_BYTES = 1024
USABLE = 0.9  # of a machine's memory


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option(
    "--gbits", type=click.FloatRange(0.001, 10000), help="Plan for one process on each machine, and a network of this many Gbit/s."
)
@click.option(
    "--round-trip",
    type=click.FloatRange(0, 10000),
    default=0.2,
    show_default=True,
    help="With --gbits: round trip of the network, in milliseconds.",
)
@prices_option
@click.option(
    "--epoch-samples",
    type=click.IntRange(1, 10**12),
    default=10**6,
    show_default=True,
    help="Samples of an epoch, for its device-hours and cost.",
)
@click.option("-f", "--file", "output", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page.")
@presets_option
def plan(
    *, job: str, gbits: float | None, round_trip: float, prices: Prices, epoch_samples: int, output: Path | None, presets: Path | None
) -> None:
    """Says whether the job in JOB.YAML should be distributed, with which strategy, world and batch for each process, and why.

    It measures a step in one process, and the time in which processes add up its gradients.
    """
    import psutil

    from muster.acceptance.presets import read_with_preset
    from muster.cli.pages import write
    from muster.local.errors import RunError
    from muster.tools.measure import plan_page as shown
    from muster.tools.measure.advice import advise
    from muster.tools.measure.jobs import measured_of
    from muster.tools.report.page import as_text

    read = read_with_preset(job, presets)
    samples = read.spec.batch.global_size or DEFAULT_SAMPLES
    sizes = _worlds(read, samples, processors=None if gbits else os.cpu_count() or 1)
    try:
        if gbits:
            costs = _over_network(read, Path(job), samples, gbits=gbits, round_trip=round_trip)
        else:
            costs = costs_here(read, Path(job), samples, sizes)
    except RunError as error:
        raise RefusalError(str(error), error.code) from error
    memory = USABLE * psutil.virtual_memory().total
    advice = advise(costs, sizes, samples=samples, measured=measured_of(read), machine_bytes=memory)
    click.echo(f"\n{as_text(shown.worlds_table(advice, prices=prices, epoch=epoch_samples))}\n{advice.sentence}")
    for reason in advice.reasons:
        click.echo(f"- {reason}")
    if output:
        where = f"machines with {gbits:g} Gbit/s between them" if gbits else "this machine"
        title, subtitle = f"Plan for {read.metadata.name}", f"Steps of {samples} samples, on {where}"
        write(shown.page(advice, costs, title=title, subtitle=subtitle, prices=prices, epoch=epoch_samples), output)


def _worlds(job: TrainingJob, samples: int, *, processors: int | None) -> list[int]:
    """The numbers of processes to compare: 1, 2, 4, ... up to those of the job and of the machine. Each process has at least one sample."""
    from muster.strategies.registry import strategy_of
    from muster.tools.measure.jobs import fits, rehearsal_job

    rehearsal_job(job, [1], processes=1)  # raises an error if the job cannot be measured
    own = strategy_of(job.spec.strategy).plan(job.spec).size
    if processors:
        fits(own, processors=processors)
    most = max(own, processors or 2 * own)
    sizes = {own, *(2**power for power in range(most.bit_length()) if 2**power <= most)}
    return sorted(size for size in sizes if size <= samples)


def costs_here(job: TrainingJob, file: Path, samples: int, sizes: list[int]) -> Costs:
    """The measured costs of steps of `samples` and of an all-reduce on this machine. The processes of worlds of these sizes share its
    processors. Raises RunError."""
    from muster.tools.measure import readings
    from muster.tools.measure.jobs import link_job
    from muster.tools.measure.measuring import run_and_measure

    processors = os.cpu_count() or 1
    rehearsals = {size: _rehearsal(job, file, samples, processes=size) for size in sizes}
    gradients = rehearsals[1][0].gradient_bytes
    click.echo("Measuring the all-reduce of 2 processes", err=True)
    link = run_and_measure(link_job(job, sorted({SMALL_BYTES, max(gradients, SMALL_BYTES)})), job_file=file)
    return readings.costs(rehearsals, readings.link_of(link), processors=processors)


def _over_network(job: TrainingJob, file: Path, samples: int, *, gbits: float, round_trip: float) -> Costs:
    """The costs for processes that each have a machine like this one. `gbits` is the speed of the network, and `round_trip` is in
    milliseconds."""
    from muster.tools.measure import readings
    from muster.tools.measure.cost import Line

    link = Line(round_trip / 1e3, 8 / (gbits * 1e9))
    return readings.costs({1: _rehearsal(job, file, samples, processes=1)}, link, processors=None)


def _rehearsal(job: TrainingJob, file: Path, samples: int, *, processes: int) -> list[StepMeasurement]:
    """Measures steps of `processes` at a time, with their shares of `samples` and less."""
    from muster.tools.measure.jobs import rehearsal_job
    from muster.tools.measure.measuring import run_and_measure
    from muster.tools.measure.readings import rehearsed

    click.echo(f"Measuring steps of {processes} process{'es' if processes > 1 else ''}", err=True)
    shares = [max(1, samples // (processes * part)) for part in (1, 2, 4, 8)]
    return rehearsed(run_and_measure(rehearsal_job(job, shares, processes=processes), job_file=file))
