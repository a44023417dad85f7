"""The page of one run: its story, the loss curve with its restarts, the throughput, and the use of time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import yaml

from muster.api.status import AttemptRecord, Phases, TrainingJobStatus
from muster.local.files import MOST_RUN_BYTES, content_of
from muster.tools.report.curves import compare
from muster.tools.report.history import History, ReportError, history_of, read_history
from muster.tools.report.load import load_sections
from muster.tools.report.page import Cell, Finding, Page, Section, Source, Story, Table
from muster.tools.report.plots import SERIES, Bar, Bars, Line, Lines
from muster.tools.report.timeline import Kind, Span, coarse, goodput, seconds_by_kind, timeline
from muster_contract.events import Evaluation, ResumeSource, Step
from muster_contract.metric_names import of_the_model

_PHASES = tuple(field.name for field in fields(Phases))
PHASE_TITLES = tuple(f"{name.removesuffix('_seconds').replace('_', ' ')}, s" for name in _PHASES)
SMOOTHING = 25
"""The throughput is averaged over at most this number of steps."""
FEW = 40
"""Up to this number of points, each has a dot."""
MOST_METRICS = 20
"""The number of metrics that have a plot. Programs choose their names."""
FEWEST_POINTS = 10
"""An attempt's throughput has at least this number of points, or one for each step."""
MOST_SEGMENTS = 2000
"""The number of segments of a timeline. A shorter segment would be narrower than a pixel."""
MOST_ATTEMPTS = 100
"""The newest attempts, which have a line, a mark or a row each. Drawing more takes minutes, and nobody could read them."""
ENVIRONMENT = "Environment of each process"
TOTALS = {"steps redone", "goodput", "wall time"}
"""Figures that are unknown if attempts are not recorded. The status of the job may have them."""
INTERRUPTED = {"Suspended", "Preempted"}
METRICS = {"stalenessMean": "mean staleness in updates", "stalenessMost": "most staleness in updates"}
"""Names of the trainer's own metrics. Other metrics keep the names that their task gives them."""

_STATES = {ResumeSource.MEMORY: "the snapshots in memory", ResumeSource.SURVIVORS: "the state of the processes that survived"}
"""What an attempt trains from, if that is not a checkpoint."""


@dataclass(frozen=True)
class Run:
    """A run: its name, the job as the user wrote it, its status, and its events."""

    name: str
    job_yaml: str
    status: TrainingJobStatus
    history: History
    state: str = ""
    """How the run ended, if the phase of its status does not show it."""

    @property
    def shown_state(self) -> str:
        return self.state or self.status.phase.value

    @property
    def begin(self) -> float:
        """Unix seconds of the decision on its first world, or of its first event if that was earlier."""
        first = min(first for first, _ in self.history.attempt_spans.values())
        return min(first, self.status.admitted_time.timestamp()) if self.status.admitted_time else first

    @property
    def end(self) -> float:
        """Unix seconds of its last event."""
        return max(last for _, last in self.history.attempt_spans.values())

    def spans(self) -> list[Span]:
        paused = [record.attempt for record in self.status.attempts if record.reason and record.reason.value in INTERRUPTED]
        return timeline(self.history, begin=self.begin, end=self.end, suspended_after=paused)


def run_page(run: Run, *, against: Run | None = None) -> Page:
    """The page of a run. With `against`, its first sentence shows whether both runs have the same losses."""
    history, spans = run.history, run.spans()
    totals = seconds_by_kind(spans)
    redone = f"The broad pale line shows the {len(history.redone)} steps that were lost in a failure and done again by the next attempt."
    return Page(
        title=f"{run.name}: {run.shown_state}",
        subtitle=_times(run),
        findings=[*_verdict(history, against), *_gap(history)],
        figures=_figures(run, totals),
        sections=[
            Section("What happened", [Story(story(run))]),
            Section("Loss", [_loss(history, against), *([redone] if history.redone else [])]),
            Section("Throughput", [_throughput(history, run.begin)]),
            *([Section("Metrics", _metrics(history))] if history.evaluations else []),
            Section("Where the time went", [_timeline(spans, totals, run.begin)]),
            *load_sections(history.loads, begin=run.begin, most_attempts=MOST_ATTEMPTS),
            Section("Attempts", [_attempts(run), *_left_out(history), PHASES_NOTE]),
            *([Section(ENVIRONMENT, [_processes(history)])] if history.fingerprints else []),
            *([Section("Job", [Source(run.job_yaml)])] if run.job_yaml else []),
        ],
    )


def _times(run: Run) -> str:
    """When the run began, and when it ended if it has."""
    began, last = clock(run.begin, with_date=True), clock(run.end, with_date=True)
    return f"{began} to {last} UTC" if run.state or run.status.phase.final else f"Began {began} UTC; last event {last} UTC"


PHASES_NOTE = (
    "The phases of a recovery begin with the failure of the attempt before; those of the first attempt begin with its start. They end when "
    "the failure is detected, all replicas run, the processes have formed a world, the checkpoint is loaded, and the first step is done."
)


def _verdict(history: History, against: Run | None) -> Iterator[Finding]:
    if against is not None:
        verdict = compare(history, against.history)
        yield Finding(f"Compared with {against.name}: {verdict.sentence()}.", "good" if verdict.identical else "bad")


def unrecorded(history: History) -> list[int]:
    """The attempts of which nothing is recorded. The supervisors of a lost node cannot store what they have recorded."""
    return sorted(set(range(max(history.attempt_spans, default=0))) - history.attempt_spans.keys())


def _gap(history: History) -> Iterator[Finding]:
    missing = unrecorded(history)
    if missing:
        first = min(history.curve, default=0)
        steps = f" Steps 1 to {first - 1} are missing." if first > 1 else ""
        numbers = f"attempt {missing[0]}" if len(missing) == 1 else f"{len(missing)} earlier attempts"
        yield Finding(f"Nothing is recorded of {numbers}, so the page has no totals.{steps}")


def _loss(history: History, against: Run | None = None) -> Lines:
    """Loss over steps. Steps that were lost and redone stay visible. Each restart has a mark at the step from which it resumed. The curve
    of the other run has its name at its end."""
    curve, redone = list(history.curve.values()), history.redone
    attempts = sorted({step.attempt for step in redone})[-MOST_ATTEMPTS:]
    lost = [[step for step in redone if step.attempt == attempt] for attempt in attempts]
    return Lines(
        x_label="step",
        y_label="loss",
        lines=[
            *(Line([(s.step, s.loss_value) for s in steps], "lost", colour="faint", width=3.2) for steps in lost),
            *([_other(against)] if against else []),
            Line([(s.step, s.loss_value) for s in curve], width=1.3, label="this run" if against else ""),
        ],
        marks=[(start.step, f"attempt {start.attempt} resumes at step {start.step}") for start in history.starts[1:][-MOST_ATTEMPTS:]],
        log_y=all(s.loss_value > 0 for s in curve if math.isfinite(s.loss_value)),
        whole_x=True,
    )


def _other(run: Run) -> Line:
    return Line([(s.step, s.loss_value) for s in run.history.curve.values()], run.name, SERIES[1], width=2.6)


def metrics_of(history: History) -> dict[str, list[tuple[float, float]]]:
    """The steps and values of each metric that the job has reported: evaluations, learning rate, and those of its own."""
    found: dict[str, dict[int, float]] = {}
    for evaluation in history.evaluations:
        for name, value in evaluation.metrics.items():
            if name in found or len(found) < MOST_METRICS:
                found.setdefault(name, {})[evaluation.step] = value
    return {METRICS.get(name, name): sorted(values.items()) for name, values in found.items()}


def _metrics(history: History) -> list[Lines]:
    return [
        Lines("step", name, [Line(points, dots=len(points) <= FEW)], whole_x=True, height=240)
        for name, points in metrics_of(history).items()
    ]


def _throughput(history: History, begin: float) -> Lines:
    """Samples per second over the seconds since the run began, or steps per second if the program does not report samples. Each point is
    the mean of some steps, fewer in a short attempt."""
    lines, marks = [], []
    counts_samples = any(step.samples for step in history.steps)
    for number in history.attempts[-MOST_ATTEMPTS:]:
        steps = [step for step in history.steps if step.attempt == number]
        size = min(SMOOTHING, max(1, len(steps) // FEWEST_POINTS))
        groups = [steps[at : at + size] for at in range(0, len(steps), size)]
        rates = [_samples_rate(group) for group in groups] if counts_samples else _step_rates(groups)
        lines.append(Line([(group[-1].time - begin, rate) for group, rate in zip(groups, rates, strict=True)]))
        marks.append((steps[0].time - steps[0].seconds - begin, f"attempt {number}"))
    unit = "samples/s" if counts_samples else "steps/s"
    return Lines(x_label="seconds since the run began", y_label=unit, lines=lines, marks=marks, height=240)


def _samples_rate(steps: Sequence[Step]) -> float:
    return sum(step.samples for step in steps if step.seconds) / max(sum(step.seconds for step in steps), 1e-9)


def _step_rates(groups: Sequence[Sequence[Step]]) -> list[float]:
    """Steps per second of each group, from the times of their last steps. The first has no step before it, so it is a gap."""
    rates = [math.nan]
    for before, group in pairwise(groups):
        seconds = group[-1].time - before[-1].time
        rates.append((group[-1].step - before[-1].step) / seconds if seconds > 0 else math.nan)
    return rates


def _timeline(spans: Sequence[Span], totals: Mapping[Kind, float], begin: float) -> Bars:
    """A row for each attempt, with the use of its time."""
    wall = sum(totals.values()) or 1.0
    drawn = coarse(spans, least=wall / MOST_SEGMENTS)
    return Bars(
        x_label="seconds since the run began",
        bars=[
            Bar(f"attempt {attempt}", [(s.begin - begin, s.seconds, s.kind.value, s.kind.value) for s in drawn if s.attempt == attempt])
            for attempt in sorted({span.attempt for span in spans})[-MOST_ATTEMPTS:]
        ],
        key={kind.value: f"{kind.value} {seconds:.1f} s ({seconds / wall:.0%})" for kind, seconds in totals.items() if seconds > 0},
    )


def story(run: Run) -> list[str]:
    """What happened, in order, with a sentence for each event."""
    history = run.history
    records = {record.attempt: record for record in run.status.attempts}
    lines = []
    for start in history.starts:
        before = records.get(start.attempt - 1)
        if before is not None and before.end_time is not None:
            lines.append(ending(before))
        lines.extend(f"The attempt skipped checkpoint {skipped.path}: {skipped.reason}." for skipped in start.skipped)
        state = _STATES.get(start.source or ResumeSource.STORAGE, "the checkpoint")
        where = "from the beginning" if start.step == 0 else f"from {state} of step {start.step}"
        lines.append(f"{clock(start.time)} Attempt {start.attempt} trains {where}.")
    if history.curve:
        last = max(history.curve)
        step = history.curve[last]
        loss = f" with loss {step.loss_value:.4g}" if step.loss else ""
        lines.append(f"{clock(run.end)} {run.shown_state} after {last} steps{loss}.")
    if evaluation := last_evaluation(history):
        metrics = ", ".join(f"{METRICS.get(name, name)} {value:.4g}" for name, value in evaluation.metrics.items())
        lines.append(f"Evaluation at step {evaluation.step}: {metrics}.")
    return lines


def last_evaluation(history: History) -> Evaluation | None:
    """The last evaluation, with the figures of the model only."""
    for evaluation in reversed(history.evaluations):
        if metrics := of_the_model(evaluation.metrics):
            return replace(evaluation, metrics=metrics)
    return None


def ending(record: AttemptRecord) -> str:
    """How an attempt ended, in a sentence."""
    when = f"{record.end_time:%H:%M:%S}" if record.end_time else ""
    replica = f"{record.replica}: " if record.replica else ""
    message = record.message or (record.reason.value if record.reason else "it ended")
    return f"{when} Attempt {record.attempt} ended. {replica}{message}".rstrip(".") + "."


def _figures(run: Run, totals: Mapping[Kind, float]) -> Mapping[str, str]:
    history = run.history
    shown = {
        "steps": str(max(history.curve, default=0)),
        "attempts": str(max(history.attempt_spans, default=0) + 1),
        "steps redone": str(len(history.redone)),
        "goodput": "unknown: no step was reported" if (ratio := goodput(totals)) is None else f"{ratio:.0%}",
        "wall time": f"{run.end - run.begin:.1f} s",
        "steps waiting for samples": f"{_stall(history):.0%}",
    }
    shown |= usage_figures(run.status)
    if unrecorded(history):
        shown = {name: text for name, text in shown.items() if name not in TOTALS}
    evaluation = last_evaluation(history)
    for name, value in evaluation.metrics.items() if evaluation else ():
        title = METRICS.get(name, f"test {name}")
        shown[title] = f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
    return shown


def usage_figures(status: TrainingJobStatus) -> dict[str, str]:
    """What the pods of the job have used."""
    usage = status.usage
    if usage is None:
        return {}
    shown = {"device-hours": f"{usage.device_seconds / 3600:,.2f}"}
    if usage.uncertain_seconds:
        shown["device-hours that may not have been used"] = f"{usage.uncertain_seconds / 3600:,.2f}"
    if usage.device_seconds:
        shown["useful device-hours"] = f"{usage.useful_seconds / usage.device_seconds:.0%}"
    if usage.cost is not None:
        shown["cost"] = f"{usage.cost:,.2f}"
    return shown


def _stall(history: History) -> float:
    """The share of the step time in which a process waited for samples."""
    return sum(step.input_seconds for step in history.steps) / max(sum(step.seconds for step in history.steps), 1e-9)


def _left_out(history: History) -> Iterator[str]:
    if len(history.attempt_spans) > MOST_ATTEMPTS:
        yield f"The plots and this table show the newest {MOST_ATTEMPTS} of {len(history.attempt_spans)} attempts."


def _attempts(run: Run) -> Table:
    redone = Counter(step.attempt for step in run.history.redone)
    return Table(
        ["attempt", "began", "committed step", "resumed at", "last step", "redone later", *PHASE_TITLES, "end"],
        [_attempt_row(run, number, redone[number]) for number in sorted(run.history.attempt_spans)[-MOST_ATTEMPTS:]],
    )


def _attempt_row(run: Run, number: int, redone: int) -> list[Cell]:
    history = run.history
    steps = [step for step in history.steps if step.attempt == number]
    start = next((start for start in history.starts if start.attempt == number), None)
    record = next((record for record in run.status.attempts if record.attempt == number), None)
    return [
        number,
        clock(history.attempt_spans[number][0]),
        record.step_committed if record else None,
        start.step if start else None,
        steps[-1].step if steps else None,
        redone,
        *seconds_of_phases(record),
        end_of(record, state=run.shown_state),
    ]


def seconds_of_phases(record: AttemptRecord | None) -> list[Cell]:
    """The cells below PHASE_TITLES."""
    return [getattr(record and record.phases, name, None) for name in _PHASES]


def end_of(record: AttemptRecord | None, *, state: str) -> str:
    """Why the attempt ended. `state` is shown for an attempt that has not ended."""
    if record is None or record.reason is None:
        return state
    return f"{record.reason.value} ({record.failure_class.value})" if record.failure_class else record.reason.value


def _processes(history: History) -> Table:
    newest = {(item.role, item.index, item.rank): item for item in history.fingerprints}
    return Table(
        ["replica", "rank", "framework", "Python", "devices", "host", "GPU ready, s", "NCCL ready, s"],
        [
            [
                f"{role}-{index}",
                rank,
                f"{item.framework or ''} {item.version or ''}",
                item.python or "",
                ", ".join(item.devices),
                item.host or "",
                item.device_seconds,
                item.collectives_seconds,
            ]
            for (role, index, rank), item in sorted(newest.items())
        ],
    )


def clock(time: float, *, with_date: bool = False) -> str:
    """A time in Unix seconds, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")


def read_run(directory: Path) -> Run:
    """The run in a run directory. Raises ReportError if it did no step, if there is none, or if its status cannot be read."""
    run = read_any_run(directory)
    if not run.history.steps:
        raise ReportError(f"{directory}: the run did no training step, so there is nothing to draw; its logs are below attempts/")
    return run


def read_any_run(directory: Path) -> Run:
    """The run in a run directory, also if it did no step. Its name is that of its job. Raises ReportError."""
    try:
        history = read_history(directory)
    except ReportError:
        if not (directory / "status.json").is_file():
            raise
        history = history_of(())  # its processes failed before they reported anything
    try:
        status = TrainingJobStatus.from_wire(json.loads(content_of(directory / "status.json", MOST_RUN_BYTES)))
        job_yaml = content_of(directory / "job.yaml", MOST_RUN_BYTES).decode()
    except (OSError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ReportError(f"{directory}: the run directory is not complete: {first}") from error
    return Run(name=_name_in(job_yaml) or directory.resolve().name, job_yaml=job_yaml, status=status, history=history)


def _name_in(job_yaml: str) -> str:
    """`metadata.name` of the job; empty if it has none."""
    try:
        job = yaml.safe_load(job_yaml)
    except (yaml.YAMLError, RecursionError, ValueError):
        return ""
    metadata = job.get("metadata") if isinstance(job, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
