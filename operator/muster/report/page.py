"""Puts a run's history into one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from muster.api.status import AttemptRecord, Phases, TrainingJobStatus
from muster.report.curves import compare
from muster.report.history import History, ReportError, read_history
from muster.report.plots import loss_plot, throughput_plot, timeline_plot
from muster.report.timeline import Kind, Span, goodput, seconds_by_kind, timeline

INTERRUPTED = {"Suspended", "Preempted"}


@dataclass(frozen=True)
class Run:
    """One run to report on: its name, the job as the user wrote it, its status, and what its processes said."""

    name: str
    job_yaml: str
    status: TrainingJobStatus
    history: History

    @property
    def begin(self) -> float:
        """Unix seconds: when its first world was decided, or its first process spoke if that was earlier."""
        first = min(first for first, _ in self.history.attempt_spans.values())
        return min(first, self.status.admitted_time.timestamp()) if self.status.admitted_time else first

    @property
    def end(self) -> float:
        """Unix seconds of its last event."""
        return max(last for _, last in self.history.attempt_spans.values())

    def spans(self) -> list[Span]:
        paused = [record.attempt for record in self.status.attempts if record.reason and record.reason.value in INTERRUPTED]
        return timeline(self.history, begin=self.begin, end=self.end, suspended_after=paused)


def render_page(run: Run, *, against: Run | None = None) -> str:
    """The page, as HTML text. With `against`, the verdict on whether both runs have the same losses stands at its head."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files("muster.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    history, spans = run.history, run.spans()
    totals = seconds_by_kind(spans)
    verdict = compare(history, against.history) if against else None
    return template.render(
        title=f"{run.name}: {run.status.phase.value}",
        subtitle=f"{_clock(run.begin, with_date=True)} to {_clock(run.end, with_date=True)} UTC",
        figures=_figures(run, totals),
        comparison=verdict and against and {"other": against.name, "identical": verdict.identical, "sentence": verdict.sentence()},
        story=story(run),
        plots={
            "loss": loss_plot(history),
            "throughput": throughput_plot(history, run.begin),
            "timeline": timeline_plot(spans, run.begin),
        },
        redone=len(history.redone),
        parts=_parts(totals),
        phases=[name.removesuffix("_seconds").replace("_", " ") for name in Phases.model_fields],
        attempts=[_attempt_row(run, number) for number in sorted(history.attempt_spans)],
        processes=_processes(history),
        job=run.job_yaml,
    )


def story(run: Run) -> list[str]:
    """What happened, in order, a sentence each."""
    history = run.history
    records = {record.attempt: record for record in run.status.attempts}
    lines = []
    for start in history.starts:
        before = records.get(start.attempt - 1)
        if before is not None and before.end_time is not None:
            lines.append(_ending(before))
        lines.extend(f"A checkpoint was passed over: {skipped}." for skipped in start.skipped)
        where = "from the beginning" if start.step == 0 else f"from the checkpoint of step {start.step}"
        lines.append(f"{_clock(start.time)} Attempt {start.attempt} trains {where}.")
    if history.curve:
        last = max(history.curve)
        lines.append(f"{_clock(run.end)} {run.status.phase.value} after {last} steps with loss {history.curve[last].loss:.4g}.")
    for step, metrics in history.evaluations[-1:]:
        lines.append(f"Evaluation at step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) + ".")
    return lines


def _ending(record: AttemptRecord) -> str:
    when = f"{record.end_time:%H:%M:%S}" if record.end_time else ""
    who = f"{record.replica}: " if record.replica else ""
    why = record.message or (record.reason.value if record.reason else "it ended")
    return f"{when} Attempt {record.attempt} ended. {who}{why}".rstrip(".") + "."


def _figures(run: Run, totals: Mapping[Kind, float]) -> list[dict[str, str]]:
    history = run.history
    shown = {
        "steps": str(max(history.curve, default=0)),
        "attempts": str(len(history.attempt_spans)),
        "steps redone": str(len(history.redone)),
        "goodput": f"{goodput(totals):.0%}",
        "wall time": f"{run.end - run.begin:.1f} s",
        "steps waiting for samples": f"{_stall(history):.0%}",
    }
    if history.evaluations:
        metrics = history.evaluations[-1][1]
        shown |= {f"test {name}": f"{value:.2%}" if name == "accuracy" else f"{value:.4g}" for name, value in metrics.items()}
    return [{"name": name, "value": value} for name, value in shown.items()]


def _stall(history: History) -> float:
    """The share of the step time that went by in waiting for samples."""
    return sum(step.input_seconds for step in history.steps) / max(sum(step.seconds for step in history.steps), 1e-9)


def _parts(totals: Mapping[Kind, float]) -> list[dict[str, str]]:
    wall = sum(totals.values()) or 1.0
    return [
        {"kind": kind.value, "seconds": f"{seconds:.1f}", "percent": f"{100 * seconds / wall:.0f}"}
        for kind, seconds in totals.items()
        if seconds > 0
    ]


def _attempt_row(run: Run, number: int) -> dict[str, Any]:
    history = run.history
    first = history.attempt_spans[number][0]
    steps = [step for step in history.steps if step.attempt == number]
    start = next((start for start in history.starts if start.attempt == number), None)
    record = next((record for record in run.status.attempts if record.attempt == number), None)
    return {
        "number": number,
        "began": _clock(first),
        "found": _shown(record.step_found if record else None),
        "resumed": start.step if start else "",
        "last": steps[-1].step if steps else "",
        "redone": sum(1 for step in history.redone if step.attempt == number),
        "phases": [_shown(value) for _, value in (record and record.phases) or [("", None)] * len(Phases.model_fields)],
        "end": _end_of(run, record),
    }


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _end_of(run: Run, record: AttemptRecord | None) -> str:
    if record is None or record.reason is None:
        return run.status.phase.value
    return f"{record.reason.value} ({record.failure_class.value})" if record.failure_class else record.reason.value


def _processes(history: History) -> Sequence[dict[str, Any]]:
    newest = {(item["role"], item["index"], item["rank"]): item for item in history.fingerprints}
    return [
        {
            "replica": f"{role}-{index}",
            "rank": rank,
            "framework": f"{item.get('framework', '')} {item.get('version', '')}",
            "python": item.get("python", ""),
            "devices": ", ".join(map(str, item.get("devices", ()))),
            "host": item.get("host", ""),
        }
        for (role, index, rank), item in sorted(newest.items())
    ]


def _clock(time: float, *, with_date: bool = False) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")


def read_run(directory: Path) -> Run:
    """The run in a run directory; ReportError when it holds none or its status cannot be read."""
    history = read_history(directory)
    if not history.steps:
        raise ReportError(f"{directory}: no training step was done, so there is nothing to draw; its logs are below attempts/")
    try:
        status = TrainingJobStatus.model_validate_json((directory / "status.json").read_text(encoding="utf-8"))
        job_yaml = (directory / "job.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ReportError(f"{directory}: not a whole run directory: {error}") from error
    return Run(name=directory.resolve().name, job_yaml=job_yaml, status=status, history=history)
