"""The presets of a cluster, or of a file: defaults by name that jobs get in `spec.preset`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.acceptance.pod_checks import pod_problems
from muster.admission.preset import preset_problems
from muster.admission.read import InvalidJobFileError, read_document, read_job
from muster.admission.sentences import problem_of
from muster.admission.validate import problems
from muster.api.constants import PRESET_KIND
from muster.api.job import TrainingJob
from muster.api.preset import TrainingPreset
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import TrainingJobSpec
from muster.render.defaults import JobDefaults, written_out
from muster.render.images import default_images
from muster.render.merge import MergeError
from muster_contract.text import printable

MOST_LISTED = 12
_NONE = "there is none: the owners of the cluster create them (docs/presets.md)"
_FILE_TOP = "apiVersion, kind, metadata and spec of a TrainingPreset, or kind: List with items"


@dataclass(frozen=True)
class _Entry:
    """A preset, or the problems that make it unusable."""

    source: Mapping[str, Any]
    defaults: JobDefaults | None
    problems: tuple[Problem, ...]


class Presets:
    """The presets that jobs may name. The operator lists them again and again, and calls `update`."""

    def __init__(self, objects: Iterable[Mapping[str, Any]] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        self.update(objects)

    def update(self, objects: Iterable[Mapping[str, Any]]) -> bool:
        """Takes over a list of all presets. Returns whether something has changed. A preset that has not changed stays the same object."""
        before = self._entries
        sources = {str(obj["metadata"]["name"]): _source_of(obj) for obj in objects}
        unchanged = {name: entry for name, entry in before.items() if sources.get(name) == entry.source}
        if len(unchanged) == len(before) == len(sources):
            return False
        self._entries = {name: unchanged.get(name) or _entry(name, source) for name, source in sources.items()}
        return True

    def version_of(self, name: str | None) -> object:
        """An object that differs after the preset has changed. If there is no such preset, the object differs after any preset has changed,
        because messages list all presets."""
        return self._entries.get(name, self._entries) if name else None

    def of(self, name: str) -> tuple[JobDefaults | None, list[Problem]]:
        """The defaults of a preset, or the problems of a job that names it."""
        entry = self._entries.get(name)
        if entry is None:
            return None, [Problem("spec.preset", f"there is no preset {name}; {self._listed()}")]
        messages = "; ".join(f"{problem.field}: {problem.message}" for problem in entry.problems)
        problem = Problem("spec.preset", f"preset {name} is not valid: {messages}; its owners must correct it")
        return entry.defaults, [problem] if messages else []

    def _listed(self) -> str:
        names = sorted(self._entries)
        more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
        return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:MOST_LISTED])}{more}" if names else _NONE


def read_presets(path: Path) -> Presets:
    """The presets in a file, as `kubectl get trainingpresets -o yaml` prints them, or a single one. Raises InvalidJobFileError."""
    document = read_document(path, top=_FILE_TOP)
    data = document.data
    objects = data.get("items") if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") else [data]
    if document.problems:
        raise InvalidJobFileError(str(path), document.problems, lines=document.lines)
    named = [each for each in objects if _is_named(each)] if isinstance(objects, list) else []
    if not isinstance(objects, list) or len(named) < len(objects):
        raise InvalidJobFileError(str(path), [Problem("", f"has an object that is not a TrainingPreset: write {_FILE_TOP}")])
    return Presets(named)


def no_file_for(preset: str) -> str:
    """The message for a job whose preset is not in a file."""
    return (
        f"{preset} is a preset of a cluster, and is needed here: write `kubectl get trainingpreset {preset} -o yaml` into a file, and give "
        "the file in --presets or MUSTER_PRESETS, or in Python in Client(presets=...)"
    )


def with_preset(job: TrainingJob, file: Path | None) -> tuple[TrainingJob, tuple[JobDefaults, ...]]:
    """The job with the storage and resources of its preset, and the defaults to render the job with. The preset comes from `file`. There
    are no defaults if the job names no preset. Raises InvalidJobError if the operator would refuse the job with its preset."""
    defaults = () if job.spec.preset is None else (_in_file(job.spec.preset, file),)
    merged = job
    for each in defaults:
        merged = _checked(job, each.applied(job.spec))
    if errors := pod_problems(merged, job.spec, defaults=defaults, images=default_images()):
        raise InvalidJobError(errors)
    return merged, defaults


def with_preset_written_out(job: TrainingJob, file: Path | None) -> TrainingJob:
    """The job with all fields of its preset written into it. Raises InvalidJobError as `with_preset` does."""
    if job.spec.preset is None:
        return job
    _, [defaults] = with_preset(job, file)
    try:
        return _checked(job, written_out(job.spec, defaults))
    except MergeError as error:
        raise InvalidJobError([Problem("spec.preset", f"preset {defaults.preset} cannot be merged into a template: {error}")]) from None


def read_with_preset(path: str | Path, presets: Path | None, job: TrainingJob | None = None) -> TrainingJob:
    """The job in a file with all fields of its preset written into it, for commands that run it on this machine. `job` is the same job
    with other changes. Raises InvalidJobFileError, which names the file."""
    try:
        return with_preset_written_out(job or read_job(path), presets)
    except InvalidJobFileError:
        raise
    except InvalidJobError as error:
        raise InvalidJobFileError(str(path), error.problems) from None


def problems_with_defaults(job: TrainingJob, written: TrainingJob) -> list[Problem]:
    """The problems of a job with its defaults. `written` is the same job without them. Problems that only the preset causes name the
    preset, because the user may not own their fields."""
    errors, preset = problems(job), written.spec.preset
    if not errors or preset is None:
        return errors
    own = {each.field for each in problems(written)}
    return [each if each.field in own else _with_name(each, preset) for each in errors]


def _with_name(problem: Problem, preset: str) -> Problem:
    message = f"with preset {preset}, {problem.field} is not possible: {problem.message}"
    return Problem("spec.preset", message, reason=problem.reason)


def _in_file(preset: str, file: Path | None) -> JobDefaults:
    if file is None:
        raise InvalidJobError([Problem("spec.preset", no_file_for(preset))])
    defaults, errors = read_presets(file).of(preset)
    if defaults is None:
        raise InvalidJobError(errors)
    return defaults


def _checked(job: TrainingJob, spec: TrainingJobSpec) -> TrainingJob:
    merged = job.model_copy(update={"spec": spec})
    if errors := problems_with_defaults(merged, job):
        raise InvalidJobError(errors)
    return merged


def _is_named(obj: Any) -> bool:
    metadata = obj.get("metadata") if isinstance(obj, dict) and obj.get("kind") == PRESET_KIND else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def _source_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the object that makes the preset."""
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": PRESET_KIND,
        "metadata": {"name": obj["metadata"]["name"]},
        "spec": obj.get("spec"),
    }


def _entry(name: str, source: Mapping[str, Any]) -> _Entry:
    try:
        preset = TrainingPreset.model_validate_json(json.dumps(source), by_alias=True, by_name=False)
        errors = preset_problems(preset)
    except ValidationError as error:
        errors = [problem_of(detail, TrainingPreset) for detail in error.errors(include_url=False)]
    except (ValueError, TypeError, RecursionError) as error:
        errors = [Problem("spec", f"cannot be read ({type(error).__name__}): simplify it")]
    if errors:
        shown = [Problem(problem.field, printable(problem.message, most=500)) for problem in errors[:MOST_LISTED]]
        return _Entry(source, None, tuple(shown))
    return _Entry(source, JobDefaults.of(preset.spec, preset=name), ())
