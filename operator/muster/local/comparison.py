"""One task under several strategies and world sizes, one run after another on this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from muster.admission.read import InvalidJobFileError, read_document, read_job
from muster.admission.sentences import problem_of
from muster.api.base import ApiModel
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import StrategyName
from muster.local.errors import ConfigurationError, RunError
from muster.local.outcome import ExitCode
from muster.local.overrides import overridden
from muster.local.probe import Kept
from muster.local.session import run_job
from muster.measure.compare_page import Outcome
from muster.measure.figures import figures_of
from muster.measure.jobs import fits
from muster.report.history import ReportError
from muster.report.run import read_run
from muster.strategies.registry import strategy_of

TOP = "job and variants"
"""Fields at the top of the file."""


class Variant(ApiModel):
    """How the job is run once."""

    name: str | None = Field(default=None, min_length=1, max_length=60, description="What it is called; default: strategy and workers.")
    strategy: StrategyName | None = Field(default=None, description="The strategy; default: the job's.")
    replicas: int | None = Field(default=None, ge=1, description="Workers; default: the job's.")
    processes: int | None = Field(default=None, ge=1, le=64, description="Processes of each worker; default: the job's.")
    options: dict[str, Any] | None = Field(default=None, description="Options of the strategy, in place of the job's.")
    set: dict[str, Any] = Field(default_factory=dict, description="Other fields, by their path: spec.trainer.config.epochs: 3.")


class ComparisonFile(ApiModel):
    """What is compared: a job, and the variants of it. Times are told against the first variant."""

    job: str = Field(description="The job file, as a path from here.", min_length=1, max_length=4096)
    set: dict[str, Any] = Field(default_factory=dict, description="Fields of the job that are other for all variants, by their path.")
    variants: list[Variant] = Field(description="How the job is run, one after another.", min_length=1, max_length=64)


@dataclass(frozen=True)
class Comparison:
    """The jobs to run by the names of their variants, in the order of the file. Each name gives another folder."""

    job_file: Path
    jobs: dict[str, TrainingJob]


def read_comparison(path: Path) -> Comparison:
    """The comparison in a file, every job of it checked. Raises InvalidJobError or RunError with what is wrong."""
    document = read_document(path, top=TOP)
    if not isinstance(document.data, dict):
        raise InvalidJobFileError(str(path), [Problem("", f"is no comparison: write {TOP} at its top")], lines=document.lines)
    try:
        said = ComparisonFile.model_validate_json(json.dumps(document.data), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        found = [problem_of(detail, ComparisonFile) for detail in error.errors(include_url=False)]
        raise InvalidJobFileError(str(path), [*document.problems, *found], lines=document.lines) from None
    if document.problems:
        raise InvalidJobFileError(str(path), document.problems, lines=document.lines)
    job_file = path.parent / said.job
    base = read_job(job_file)
    jobs: dict[str, TrainingJob] = {}
    folders: dict[str, str] = {}
    for number, variant in enumerate(said.variants):
        field = f"variants[{number}]"
        job = _job(base, {**said.set, **variant.set}, variant, source=f"{path}:{document.lines.get(field, 1)}: {field}")
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
    return Comparison(job_file, jobs)


def _job(base: TrainingJob, settings: dict[str, Any], variant: Variant, *, source: str) -> TrainingJob:
    given = {
        "spec.strategy": variant.strategy and variant.strategy.value,
        "spec.roles.worker.replicas": variant.replicas,
        "spec.roles.worker.processesPerReplica": variant.processes,
        "spec.options": variant.options,
    }
    fields = {**{path: value for path, value in given.items() if value is not None}, **settings}
    return overridden(base, [f"{path}={json.dumps(value)}" for path, value in fields.items()], source=source)


def _name(job: TrainingJob, processes: int) -> str:
    return f"{job.spec.strategy.value} x{processes}"


def _name_problem(name: str, folders: Mapping[str, str]) -> str | None:
    """What keeps a variant from this name, where `folders` have the names before it; None: nothing."""
    folder = _folder(name)
    if not folder:
        return f"{name!r} gives its folder no name; write a letter or a digit"
    other = folders.get(folder)
    if other == name:
        return f"{name!r} is the name of another variant; give it a name of its own"
    return f"{name!r} and {other!r} would share the folder {folder}; give one of them another name" if other else None


def _folder(name: str) -> str:
    """What the folder of a variant is called: the letters and digits of its name."""
    return re.sub(r"[\W_]+", "-", name).strip("-").lower()


def run_all(comparison: Comparison, directory: Path, *, say: Callable[[str], None]) -> Iterator[Outcome]:
    """Runs each variant in a folder of its own below `directory`, where its logs stay. One that fails does not keep the others from
    running; one that the user stops ends the comparison with a RunError."""
    for number, (name, job) in enumerate(comparison.jobs.items(), start=1):
        say(f"{number} of {len(comparison.jobs)}: {name}")
        folder = directory / _folder(name)
        kept = Kept()
        try:
            code = run_job(job, folder, job_file=comparison.job_file, display=kept)
        except ConfigurationError as error:
            yield Outcome(name, job.spec.strategy.value, None, str(error))
            continue
        if code in (ExitCode.SAVED, ExitCode.NOT_SAVED):
            raise RunError("stopped before all variants had run")
        yield _outcome(name, job, folder, code, kept.lines)


def _outcome(name: str, job: TrainingJob, folder: Path, code: ExitCode, said: list[str]) -> Outcome:
    try:
        if code is ExitCode.SUCCEEDED:
            return Outcome(name, job.spec.strategy.value, figures_of(read_run(folder)))
    except ReportError as error:
        said = [str(error)]
    return Outcome(name, job.spec.strategy.value, None, "\n".join(said))
