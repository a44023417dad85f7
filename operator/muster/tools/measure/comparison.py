"""Trains one job under several strategies and world sizes, one run after another, on this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from muster.acceptance.presets import read_with_preset
from muster.admission.read import InvalidJobFileError, read_document
from muster.admission.sentences import problem_of
from muster.api.base import ApiModel
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import StrategyName
from muster.local.errors import ConfigurationError, RunError
from muster.local.overrides import overridden
from muster.local.session import run_job
from muster.strategies.registry import strategy_of
from muster.tools.measure.compare_page import Outcome
from muster.tools.measure.figures import figures_of, joined
from muster.tools.measure.jobs import fits
from muster.tools.measure.measuring import RecordingDisplay
from muster.tools.report.history import ReportError
from muster.tools.report.run import read_run
from muster_contract.codes import ExitCode

TOP = "job and variants"
"""Fields at the top of the file."""


class Variant(ApiModel):
    """One way to run the job."""

    name: str | None = Field(default=None, min_length=1, max_length=60, description="Its name; default: strategy and workers.")
    strategy: StrategyName | None = Field(default=None, description="The strategy; default: the job's.")
    replicas: int | None = Field(default=None, ge=1, description="Workers; default: the job's.")
    processes: int | None = Field(default=None, ge=1, le=64, description="Processes of each worker; default: the job's.")
    options: dict[str, Any] | None = Field(default=None, description="Options of the strategy, in place of the job's.")
    set: dict[str, Any] = Field(default_factory=dict, description="Other fields, by their path: spec.trainer.settings.epochs: 3.")


class ComparisonFile(ApiModel):
    """A job and its variants. Speed-ups are relative to the first variant."""

    job: str = Field(description="Path of the job file, relative to this file.", min_length=1, max_length=4096)
    set: dict[str, Any] = Field(default_factory=dict, description="Fields of the job that all variants override, by their path.")
    rounds: int = Field(
        default=2, ge=1, le=100, description="How often each variant runs, in turns, to see how much runs of one variant differ."
    )
    variants: list[Variant] = Field(description="The ways to run the job, one after another.", min_length=1, max_length=64)


@dataclass(frozen=True)
class Comparison:
    """The jobs to run, by variant name, in the order of the file. Each name has a folder of its own in each round."""

    job_file: Path
    jobs: dict[str, TrainingJob]
    rounds: int = 1


def read_comparison(path: Path, presets: Path | None = None) -> Comparison:
    """Reads a comparison file and checks each of its jobs. `presets` is a file with the preset that the job names.

    Raises InvalidJobError or RunError.
    """
    document = read_document(path, top=TOP)
    if not isinstance(document.data, dict):
        raise InvalidJobFileError(str(path), [Problem("", f"is not a comparison; write {TOP} at its top")], lines=document.lines)
    try:
        file = ComparisonFile.model_validate_json(json.dumps(document.data), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [problem_of(detail, ComparisonFile) for detail in error.errors(include_url=False)]
        raise InvalidJobFileError(str(path), [*document.problems, *problems], lines=document.lines) from None
    if document.problems:
        raise InvalidJobFileError(str(path), document.problems, lines=document.lines)
    job_file = path.parent / file.job
    base = read_with_preset(job_file, presets)
    jobs: dict[str, TrainingJob] = {}
    folders: dict[str, str] = {}
    for number, variant in enumerate(file.variants):
        field = f"variants[{number}]"
        job = _job(base, {**file.set, **variant.set}, variant, source=f"{path}:{document.lines.get(field, 1)}: {field}")
        plan = strategy_of(job.spec.strategy).plan(job.spec)
        name = variant.name or _name(job, plan.size)
        if problem := _name_problem(name, folders):
            raise InvalidJobFileError(str(path), [Problem(f"{field}.name", problem)], lines=document.lines)
        folders[_folder(name)] = name
        try:
            fits(plan.size, processors=os.cpu_count() or 1, field=f"{field}.replicas")
        except InvalidJobError as error:
            raise InvalidJobFileError(str(path), error.problems, lines=document.lines) from None
        jobs[name] = job
    return Comparison(job_file, jobs, file.rounds)


def _job(base: TrainingJob, settings: dict[str, Any], variant: Variant, *, source: str) -> TrainingJob:
    overrides = {
        "spec.strategy": variant.strategy,
        "spec.roles.worker.replicas": variant.replicas,
        "spec.roles.worker.processesPerReplica": variant.processes,
        "spec.options": variant.options,
    }
    fields = {**{path: value for path, value in overrides.items() if value is not None}, **settings}
    return overridden(base, [f"{path}={json.dumps(value)}" for path, value in fields.items()], source=source)


def _name(job: TrainingJob, processes: int) -> str:
    return f"{job.spec.strategy} x{processes}"


def _name_problem(name: str, folders: Mapping[str, str]) -> str | None:
    """Why a variant cannot have this name; None if it can. `folders` maps the folders of earlier variants to their names."""
    folder = _folder(name)
    if not name.isprintable():
        return f"{name!r} has a character that does not print; write another name"
    if not folder:
        return f"{name!r} has no letter or digit for the name of its folder; write at least one"
    other = folders.get(folder)
    if other == name:
        return f"{name!r} is also the name of another variant; write a different name"
    return f"{name!r} and {other!r} would share the folder {folder}; give one of them another name" if other else None


def _folder(name: str) -> str:
    """The name of a variant's folder. It has the letters and digits of the variant's name."""
    return re.sub(r"[\W_]+", "-", name).strip("-").lower()


def run_all(comparison: Comparison, directory: Path, *, say: Callable[[str], None]) -> list[Outcome]:
    """Runs each variant once in each round, so that a slow time of the machine does not hit one variant alone. Each run has a folder below
    `directory`, which keeps its logs. If a variant fails, it runs no more, and the others do. If the user stops one, the comparison ends
    with a RunError."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in comparison.jobs}
    for round_ in range(1, comparison.rounds + 1):
        for number, (name, job) in enumerate(comparison.jobs.items(), start=1):
            if any(one.figures is None for one in outcomes[name]):
                continue
            say(f"round {round_} of {comparison.rounds}, variant {number} of {len(comparison.jobs)}: {name}")
            folder = directory / f"round-{round_}" / _folder(name)
            outcomes[name].append(_run(name, job, folder, job_file=comparison.job_file))
    return [_joined(every) for every in outcomes.values()]


def _run(name: str, job: TrainingJob, folder: Path, *, job_file: Path) -> Outcome:
    display = RecordingDisplay()
    try:
        code = run_job(job, folder, job_file=job_file, display=display)
    except ConfigurationError as error:
        return Outcome(name, job.spec.strategy, None, str(error))
    if code in (ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED):
        raise RunError("stopped before all variants ran")
    return _outcome(name, job, folder, code, display.lines)


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of all runs of a variant: its failure if one failed."""
    figures = [one.figures for one in outcomes if one.figures]
    return outcomes[-1] if outcomes[-1].figures is None else replace(outcomes[-1], figures=joined(figures))


def _outcome(name: str, job: TrainingJob, folder: Path, code: ExitCode, lines: list[str]) -> Outcome:
    try:
        if code is ExitCode.COMPLETED:
            return Outcome(name, job.spec.strategy, figures_of(read_run(folder)))
    except ReportError as error:
        lines = [str(error)]
    return Outcome(name, job.spec.strategy, None, "\n".join(lines))
