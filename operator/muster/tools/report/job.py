"""The page of a job that runs, has ended or is deleted, from all data about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muster.api.figures import duration, rounded
from muster.api.status import TrainingJobStatus
from muster.tools.report.history import History
from muster.tools.report.load import load_sections
from muster.tools.report.page import Cell, Finding, Folded, Page, Places, Section, Source, Story, Table
from muster.tools.report.plots import SERIES, Bar, Bars, Line, Lines
from muster.tools.report.run import (
    ENVIRONMENT,
    FEW,
    MOST_ATTEMPTS,
    PHASE_TITLES,
    Run,
    clock,
    end_of,
    ending,
    metrics_of,
    run_page,
    seconds_of_phases,
    usage_figures,
)
from muster.tools.report.timeline import Kind
from muster_contract.printed import read_epoch_line


@dataclass(frozen=True)
class Point:
    """A step that the reader recorded while the job ran. `time` is in Unix seconds, or NaN if it is unknown."""

    time: float
    step: int
    loss: float
    samples_per_second: float | None = None


@dataclass(frozen=True)
class Log:
    """The last lines of a replica."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class JobView:
    """All data about a job. `state` is its phase, or how it ended if it is deleted. `created` is in Unix seconds."""

    name: str
    state: str
    status: TrainingJobStatus
    created: float | None = None
    job_yaml: str = ""
    history: History | None = None
    points: Sequence[Point] = ()
    explanation: Sequence[str] = ()
    logs: Sequence[Log] = ()
    places: Sequence[tuple[str, str]] = ()
    """Names and addresses of what the job names elsewhere: trackers and checkpoints."""
    notes: Sequence[str] = ()
    """Sentences about the missing parts of the page, and why they are missing."""


def job_page(job: JobView) -> Page:
    """The page of a job."""
    history = job.history if job.history is not None and job.history.steps else None
    if history is not None:
        page = run_page(Run(name=job.name, job_yaml="", status=job.status, history=history, state=job.state))
        sections = [each for each in page.sections if each.title != ENVIRONMENT or history.fingerprints]
        subtitle, figures, found = page.subtitle, page.figures or {}, page.findings
        newest = max(history.curve)
        later = [point for point in job.points if point.step > newest]
        if len(later) > 1:
            sections.insert(2, Section("Loss since then", [_loss(later)]))
    else:
        subtitle, figures, found, sections = _since(job), {}, (), list(_sections(job))
    used = _use_of_devices(job.status)
    if used is not None:
        sections.append(Section("What the devices did", used))
    if job.explanation:
        sections.insert(1, Section("Explanation", [Source("\n".join(job.explanation))]))
    if job.logs:
        sections.append(Section("Last lines of the logs", [Folded(log.title, "\n".join(log.lines)) for log in job.logs]))
    if job.places:
        sections.append(Section("Elsewhere", [Places(job.places)]))
    if job.job_yaml:
        sections.append(Section("Job", [Source(job.job_yaml)]))
    findings = [Finding(job.status.message, "bad" if job.state == "Failed" else "")] if job.status.message else []
    return Page(
        title=f"{job.name}: {job.state}",
        subtitle=subtitle,
        findings=[*findings, *found, *(Finding(note) for note in job.notes)],
        figures={**_status_figures(job.status), **figures},
        sections=sections,
    )


def overlay(jobs: Sequence[JobView]) -> Page:
    """The curves of several jobs in one plot for each metric."""
    curves: dict[str, list[Line]] = {}
    for number, job in enumerate(jobs):
        history = job.history
        steps = {} if history is None else {step: each.loss_value for step, each in history.curve.items()}
        loss = {**{point.step: point.loss for point in job.points}, **steps}
        metrics: Mapping[str, Sequence[tuple[float, float]]] = {} if history is None else metrics_of(history)
        for name, points in {"loss": sorted(loss.items()), **metrics}.items():
            if points:
                colour = SERIES[number % len(SERIES)]
                curves.setdefault(name, []).append(Line(points, job.name, colour, dots=len(points) <= FEW))
    sections = [Section(name, [Lines("step", name, lines, log_y=name == "loss", whole_x=True)]) for name, lines in curves.items()]
    figures = [{"state": job.state, **_status_figures(job.status)} for job in jobs]
    titles = dict.fromkeys(title for each in figures for title in each)
    rows: list[list[Cell]] = [[title, *(each.get(title, "") for each in figures)] for title in titles]
    return Page(
        title=f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} in one plot",
        subtitle="Drag over a plot to zoom in. A double click zooms out.",
        sections=[*sections, Section("Figures", [Table(["", *(job.name for job in jobs)], rows)])],
    )


def points_in(lines: Iterable[tuple[float, str]]) -> Iterator[Point]:
    """The steps that the bundled trainer has printed, from lines with their times."""
    for time, text in lines:
        if (printed := read_epoch_line(text)) is not None:
            yield Point(time, *printed)


def _since(job: JobView) -> str:
    began = "" if job.created is None else f"Created {clock(job.created, with_date=True)} UTC"
    ended = job.status.completion_time
    return f"{began}, ended {clock(ended.timestamp(), with_date=True)} UTC" if ended else began


def _status_figures(status: TrainingJobStatus) -> dict[str, str]:
    progress, goodput = status.progress, status.goodput
    shown: dict[str, str] = {}
    if status.queue is not None:
        shown["queued"] = status.queue.summary
        if status.queue.cluster_queue_position is not None:
            shown["position in its ClusterQueue"] = str(status.queue.cluster_queue_position)
        shown["in the queue since, UTC"] = clock(status.queue.since.timestamp(), with_date=True)
    if status.workers:
        shown["workers"] = status.workers
    if progress is not None:
        total = f" of {progress.total_steps}" if progress.total_steps else ""
        shown["steps"] = f"{progress.step}{total}"
        if progress.loss is not None:
            shown["loss"] = rounded(progress.loss)
        if progress.samples_per_second:
            shown["samples/s"] = f"{progress.samples_per_second:,.0f}"
        if progress.eta_seconds is not None and not status.phase.final:
            shown["left"] = duration(progress.eta_seconds)
    if status.checkpoint is not None:
        shown["saved at step"] = str(status.checkpoint.step)
    if status.attempts:
        shown["attempts"] = str(status.attempts[-1].attempt + 1)
    if goodput is not None and goodput.ratio is not None:
        shown["goodput"] = f"{goodput.ratio:.0%}"
    counts = status.notice_counts
    if counts is not None:
        shown["notices of nodes"] = f"{counts.came}; {counts.met} met without loss, {counts.missed} with lost steps"
    return shown | usage_figures(status)


def _sections(job: JobView) -> Iterator[Section]:
    """The sections for a job without recorded steps."""
    yield Section("What happened", [Story(_story(job))])
    if len(job.points) > 1:
        yield Section("Loss", [_loss(job.points)])
        rates = [(p.time, p.samples_per_second) for p in job.points if p.samples_per_second is not None and math.isfinite(p.time)]
        if len(rates) > 1:
            begin = rates[0][0]
            line = Line([(time - begin, rate) for time, rate in rates])
            yield Section("Throughput", [Lines("seconds", "samples/s", [line], height=240)])
    bars = _goodput(job)
    if bars is not None:
        yield Section("Where the time went", [bars])
    loads = job.history.loads if job.history is not None else ()
    if loads:
        yield from load_sections(loads, begin=loads[0].time, most_attempts=MOST_ATTEMPTS)
    if job.status.attempts:
        yield Section("Attempts", [_attempts(job)])


def _story(job: JobView) -> list[str]:
    lines = [] if job.created is None else [f"{clock(job.created)} The job was created."]
    for record in job.status.attempts:
        resumed = (
            "" if record.step_resumed is None else f" from step {record.step_resumed}" if record.step_resumed else " from the beginning"
        )
        lines.append(f"{record.start_time:%H:%M:%S} Attempt {record.attempt} begins{resumed}.")
        if record.end_time is not None:
            lines.append(ending(record))
    completed = job.status.completion_time
    if completed is not None:
        lines.append(f"{completed:%H:%M:%S} {job.state}.")
    return lines or ["Nothing has happened yet."]


def _loss(points: Sequence[Point]) -> Lines:
    finite = [point.loss for point in points if math.isfinite(point.loss)]
    line = Line([(point.step, point.loss) for point in points], width=1.3, dots=len(points) <= FEW)
    return Lines("step", "loss", [line], log_y=bool(finite) and min(finite) > 0, whole_x=True)


def _goodput(job: JobView) -> Bars | None:
    """The use of the whole time, from the status."""
    goodput = job.status.goodput
    if goodput is None:
        return None
    parts = {
        "queued": (Kind.SUSPENDED, goodput.queued_seconds),
        "starting": (Kind.STARTING, goodput.starting_seconds),
        "unreported": (Kind.UNREPORTED, goodput.unreported_seconds),
        "productive": (Kind.PRODUCTIVE, goodput.productive_seconds),
        "checkpoint": (Kind.CHECKPOINT, goodput.checkpoint_seconds),
        "redone": (Kind.REDONE, goodput.redone_seconds),
        "recovering": (Kind.RECOVERING, goodput.recovering_seconds),
        "suspended": (Kind.SUSPENDED, goodput.suspended_seconds),
    }
    wall = sum(seconds or 0.0 for _, seconds in parts.values())
    if not wall:
        return None
    bars = [Bar(name, [(0.0, seconds, kind.value, "")], note=f"{seconds / wall:.0%}") for name, (kind, seconds) in parts.items() if seconds]
    return Bars("seconds", bars)


_USES = {
    "useful": Kind.PRODUCTIVE,
    "unreported": Kind.UNREPORTED,
    "checkpoint": Kind.CHECKPOINT,
    "redone": Kind.REDONE,
    "waiting": Kind.STARTING,
    "recovering": Kind.RECOVERING,
    "idle": Kind.SUSPENDED,
}


def _use_of_devices(status: TrainingJobStatus) -> list[Bars | Table] | None:
    """The device-hours by what they were used for, and by capacity class."""
    usage = status.usage
    if usage is None or not usage.device_seconds:
        return None
    hours = {name: vars(usage)[f"{name}_seconds"] / 3600 for name in _USES}
    bars = [
        Bar(name, [(0.0, used, _USES[name].value, "")], note=f"{used * 3600 / usage.device_seconds:.0%}")
        for name, used in hours.items()
        if used
    ]
    rows: list[list[Cell]] = [[each.capacity_class or "none", each.device, each.seconds / 3600, each.open] for each in usage.devices]
    return [Bars("device-hours", bars), Table(["capacity class", "device", "device-hours", "held now"], rows)]


def _attempts(job: JobView) -> Table:
    head = ["attempt", "began", "committed step", "resumed at", "last step", "steps lost", *PHASE_TITLES, "end"]
    return Table(head, [_attempt_row(job, number) for number in range(len(job.status.attempts))])


def _attempt_row(job: JobView, number: int) -> list[Cell]:
    record = job.status.attempts[number]
    return [
        record.attempt,
        f"{record.start_time:%H:%M:%S}",
        record.step_committed,
        record.step_resumed,
        record.last_step,
        record.steps_lost,
        *seconds_of_phases(record),
        end_of(record, state=job.state),
    ]
