"""Speed and cost of a finished run, from its events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from statistics import fmean, median

from muster.tools.report.history import History
from muster.tools.report.run import Run, last_evaluation

NORMAL_95 = 1.96


@dataclass(frozen=True)
class RunFigures:
    """Times in seconds, memory in bytes, shares from 0 to 1. Step times leave out steps that were redone and the first of each attempt.

    `training_seconds` is the time from the beginning of the first step to the end of the last. `communication` is the share of its steps
    in which a rank waited for data from others; None: the strategy cannot measure it, so it is part of computing. `peak_bytes` is that of
    the largest process.
    """

    processes: int
    step_seconds: float
    interval: tuple[float, float]
    """95 % interval of the median, by order statistics. Of several runs: from the lowest bound to the highest one."""
    samples_per_second: float
    training_seconds: float
    communication: float | None
    input_stall: float
    peak_bytes: int | None
    loss: float
    metrics: Mapping[str, float]
    step_share: float
    """The share of the training time that is in steps."""
    step_samples: float = 0.0
    """The samples of a step; 0 if the program does not report them."""
    device_hours: float | None = None
    """What the status of the run counts, from the start of its replicas to their end. None if it has no count."""

    def shown(self) -> dict[str, str]:
        """The figures for the page of a run: name -> value with its unit."""
        texts = {"median step": f"{1e3 * self.step_seconds:.3g} ms"} if self.step_seconds else {}
        if self.communication is not None:
            texts["steps waiting for others"] = f"{self.communication:.0%}"
        if self.peak_bytes is not None:
            texts["largest process"] = f"{self.peak_bytes / 2**20:.0f} MiB"
        return texts

    def parts(self) -> dict[str, float]:
        """The training seconds by their use."""
        steps = self.step_share * self.training_seconds
        others, samples = (self.communication or 0.0) * steps, self.input_stall * steps
        return {
            "computing": max(0.0, steps - others - samples),
            "waiting for others": others,
            "waiting for samples": samples,
            "saving, evaluating": self.training_seconds - steps,
        }


def figures_of(run: Run) -> RunFigures:
    """The figures of a run that did at least one step."""
    history = run.history
    curve = list(history.curve.values())
    first_of = {attempt: min(step.step for step in history.steps if step.attempt == attempt) for attempt in history.attempts}
    steady = [step for step in curve if step.step != first_of[step.attempt]] or curve
    seconds = sorted(step.seconds for step in steady)
    stepping = sum(step.seconds for step in curve)
    training = max(curve[-1].time - (curve[0].time - curve[0].seconds), stepping)
    return RunFigures(
        processes=len({(one.role, one.index, one.rank) for one in history.fingerprints if one.role != "evaluator"}),
        step_seconds=median(seconds),
        interval=interval_of_median(seconds),
        samples_per_second=sum(step.samples for step in steady if step.seconds) / max(sum(seconds), 1e-9),
        training_seconds=training,
        communication=_communication(history),
        input_stall=sum(step.input_seconds for step in steady) / max(sum(seconds), 1e-9),
        peak_bytes=max((one.peak_bytes for one in history.trainings if one.peak_bytes is not None), default=None),
        loss=curve[-1].loss_value,
        metrics=evaluation.metrics if (evaluation := last_evaluation(history)) else {},
        step_share=stepping / training if training else 0.0,
        step_samples=median(step.samples for step in steady),
        device_hours=run.status.usage.device_seconds / 3600 if run.status.usage else None,
    )


def joined(runs: Sequence[RunFigures]) -> RunFigures:
    """The figures of several runs of one job: means, the largest memory, and the loss and metrics of the last run. The interval contains
    those of all runs, because runs of one job differ by more than the steps of one run show."""
    last = runs[-1]
    hours = [run.device_hours for run in runs if run.device_hours is not None]
    shares = [run.communication for run in runs if run.communication is not None]
    return replace(
        last,
        step_seconds=fmean(run.step_seconds for run in runs),
        interval=(min(run.interval[0] for run in runs), max(run.interval[1] for run in runs)),
        samples_per_second=fmean(run.samples_per_second for run in runs),
        training_seconds=fmean(run.training_seconds for run in runs),
        communication=fmean(shares) if shares else None,
        input_stall=fmean(run.input_stall for run in runs),
        peak_bytes=max((run.peak_bytes for run in runs if run.peak_bytes is not None), default=None),
        step_share=fmean(run.step_share for run in runs),
        device_hours=fmean(hours) if hours else None,
    )


def interval_of_median(ordered: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of sorted values, by order statistics (normal approximation of the binomial)."""
    spread = NORMAL_95 * sqrt(len(ordered)) / 2
    low, high = floor(len(ordered) / 2 - spread), ceil(len(ordered) / 2 + spread)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]


def _communication(history: History) -> float | None:
    """The mean over ranks of the share of step time that they waited, in the last attempt that reported it. None if it was not measured."""
    newest = max((one.attempt for one in history.trainings), default=None)
    last = [one for one in history.trainings if one.attempt == newest]
    if len(last) == 1 and len(history.fingerprints) == 1:
        return 0.0
    if not last or any(one.own_seconds is None or not one.seconds for one in last):
        return None
    return fmean(1 - (one.own_seconds or 0.0) / one.seconds for one in last)
