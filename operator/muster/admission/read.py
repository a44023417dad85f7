"""Reads job files. Returns a valid TrainingJob, or raises all problems of the file at once, each with file, line, field and remedy."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from muster.admission.paths import nearest_in_file, spelled, step
from muster.admission.sentences import MAX_PROBLEMS, nearest, problem_of, shown
from muster.admission.validate import problems, strategy_problems
from muster.admission.yaml_text import JOB_TOP, Document, UnreadableYamlError, read_yaml
from muster.api.constants import API_VERSION, KIND
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.unchecked import mapping
from muster_contract.text import printable

MAX_BYTES = 2**20
STDIN = "-"

_MOST_REPAIRS = 4
_ANY_STRATEGY = "DDP"
"""A placeholder, with which a job can be read whose strategy is not known."""
_NAME_NEEDED = (
    "is required in place of generateName, because a job is found and goes on under its name: write name: digits-1, and another name "
    "for each further job"
)

_SERVER_METADATA = ("uid", "generation", "creationTimestamp", "deletionTimestamp", "resourceVersion", "managedFields", "selfLink")
_FREE = "spec.trainer.config"


class InvalidJobFileError(InvalidJobError):
    """A job file that cannot be accepted. Its text has one line per problem: `jobs/x.yaml:7: spec.roles.worker.replicas: must be ...`."""

    def __init__(self, source: str, problems: list[Problem], *, lines: dict[str, int] | None = None) -> None:
        lines = lines or {}
        fields = {problem: nearest_in_file(problem.field, lines) for problem in problems}
        positions = {field: position for position, field in enumerate(lines)}
        ordered = sorted(fields, key=lambda problem: positions.get(fields[problem], -1))
        super().__init__(ordered)
        self.source = source
        self.args = ("\n".join(printable(f"{_location(source, lines.get(fields[problem]))}: {problem}") for problem in ordered),)


def read_job(path: str | Path) -> TrainingJob:
    """The job in a file, or on standard input for `-`. Raises InvalidJobFileError with all problems, in the order of the file."""
    source = "standard input" if str(path) == STDIN else str(path)
    return parse_job(_text(_bytes(path, source), source), source=source)


def read_document(path: str | Path, *, top: str) -> Document:
    """The plain data of any YAML file for Muster. `top` names its top-level fields for messages. Raises InvalidJobFileError if it cannot be
    read."""
    return _document(_text(_bytes(path, str(path)), str(path)), str(path), top=top)


def _document(text: str, source: str, *, top: str) -> Document:
    try:
        return read_yaml(text, top=top)
    except UnreadableYamlError as error:
        raise InvalidJobFileError(_location(source, error.line), [Problem("", str(error))]) from error


def parse_job(text: str, *, source: str) -> TrainingJob:
    """The job that `text` holds; `source` names the text in messages."""
    document = _document(text, source, top=JOB_TOP)
    if not isinstance(document.data, dict):
        message = f"holds {shown(document.data)}, not a job: write {JOB_TOP} at its top"
        raise InvalidJobFileError(source, [Problem("", message)], lines=document.lines)
    return check_job(document.data, source=source, lines=document.lines, problems_of_text=document.problems)


def check_job(
    data: dict[str, Any], *, source: str, lines: dict[str, int] | None = None, problems_of_text: Sequence[Problem] = ()
) -> TrainingJob:
    """The job in plain data, with the names of a job file. `source` names the data in messages, and `lines` has the lines of its fields.

    Raises InvalidJobFileError with all problems, `problems_of_text` among them.
    """
    _require_kind(data, source, lines=lines or {})
    scan = _Scan()
    cleaned = scan.cleaned(data)
    job, errors = _read(cleaned, [*problems_of_text, *scan.problems])
    if errors:
        raise InvalidJobFileError(source, errors, lines=lines)
    assert job is not None
    return job


def _location(source: str, line: int | None) -> str:
    return f"{source}:{line}" if line else source


def _bytes(path: str | Path, source: str) -> bytes:
    try:
        if str(path) == STDIN:
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InvalidJobFileError(source, [Problem("", f"does not exist{_beside(Path(path))}")]) from None
    except IsADirectoryError:
        raise InvalidJobFileError(source, [Problem("", "is a directory: name the job file in it")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidJobFileError(source, [Problem("", f"cannot be read: {reason}")]) from error
    if len(content) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 2**20} MiB, which is too large for a job file; put code and data into other files"
        raise InvalidJobFileError(source, [Problem("", message)])
    return content


def _beside(path: Path) -> str:
    """A file of the same folder that the user may have meant."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return ": the folder does not exist either" if not path.parent.exists() else ""
    suggestion = nearest(path.name, names)
    return f"; did you mean {path.parent / suggestion}?" if suggestion else ""


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}; save it as UTF-8"
        raise InvalidJobFileError(f"{source}:{line}", [Problem("", message)]) from error


def _require_kind(data: dict[str, Any], source: str, *, lines: dict[str, int]) -> None:
    """Raises InvalidJobFileError for an object of another kind, because its other problems do not matter."""
    kind = data.get("kind")
    if isinstance(kind, str) and nearest(kind, [KIND]) is None:
        raise InvalidJobFileError(
            source, [Problem("kind", f"must be {KIND}, not {shown(kind)}; muster convert reads jobs of other tools")], lines=lines
        )


def _read(data: dict[str, Any], errors: list[Problem]) -> tuple[TrainingJob | None, list[Problem]]:
    """The data as a job, with strict types, and all problems, `errors` among them. A field gets one problem.

    If the types are wrong, the other fields are checked all the same. Without a strategy or a program they cannot be.
    """
    spec = data.get("spec")
    missing = {"apiVersion": API_VERSION, "kind": KIND}
    errors = [
        *errors,
        *(Problem(field, f"is required: write {field}: {value}") for field, value in missing.items() if field not in data),
        *(strategy_problems(spec.get("strategy")) if isinstance(spec, dict) else ()),
    ]
    unread = {problem.field for problem in errors}
    job, wrong = _typed(data)
    errors += _unless(unread, [_problem_of_type(detail, data) for detail in wrong[:MAX_PROBLEMS]])
    if (more := len(wrong) - MAX_PROBLEMS) > 0:
        return None, [*errors, Problem("", f"has {more:,} more problems than these")]
    for _ in range(_MOST_REPAIRS):
        if job is not None or not wrong:
            break
        unread |= {spelled(detail["loc"]) for detail in wrong}
        job, wrong = _typed(_without(data, wrong))
    if job is not None and "spec.strategy" in unread:
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"strategy": _ANY_STRATEGY})})
    if job is not None:
        errors += _unless({problem.field for problem in errors}, problems(job, unread=unread))
    return job, errors


def _typed(data: dict[str, Any]) -> tuple[TrainingJob | None, list[ErrorDetails]]:
    try:
        # In JSON mode strict types allow what a wire format must: names of enums and times as text.
        return TrainingJob.model_validate_json(json.dumps(data, allow_nan=False), strict=True, by_alias=True, by_name=False), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _unless(fields: Collection[str], problems: Sequence[Problem]) -> list[Problem]:
    """The problems of other fields than these."""
    return [problem for problem in problems if problem.field not in fields]


def _problem_of_type(detail: ErrorDetails, data: dict[str, Any]) -> Problem:
    if detail["type"] == "missing" and detail["loc"] == ("metadata", "name") and "generateName" in data["metadata"]:
        return Problem("metadata.name", _NAME_NEEDED)
    return problem_of(detail)


def _without(data: dict[str, Any], details: Sequence[ErrorDetails]) -> dict[str, Any]:
    """The data without the parts that are wrong, and with placeholders for parts that every job needs."""
    data = copy.deepcopy(data)
    for detail in details:
        path = [key for key in detail["loc"] if key != "[key]"]
        is_missing = detail["type"] == "missing"
        if is_missing:
            path.pop()
        while path and isinstance(path[-1], int):
            path.pop()
        if path and not (is_missing and len(path) == 1):
            _remove(data, path)
    metadata, spec = mapping(data.get("metadata")), mapping(data.get("spec"))
    needed = {"metadata": {"name": "job", **metadata}, "spec": {"trainer": {"task": "digits"}, "strategy": _ANY_STRATEGY, **spec}}
    return {**data, **needed}


def _remove(data: Any, path: Sequence[str | int]) -> None:
    for key in path[:-1]:
        data = data.get(key) if isinstance(data, dict) else data[key] if isinstance(data, list) and isinstance(key, int) else None
    if isinstance(data, dict):
        data.pop(path[-1], None)


class _Scan:
    """Finds problems in plain data that types cannot express: fields without a value, numbers that JSON does not have, NUL characters."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def cleaned(self, data: dict[str, Any]) -> dict[str, Any]:
        """The data without invalid values, without the status, and without metadata that the server sets (`kubectl get -o yaml` prints
        them)."""
        job = {key: value for key, value in data.items() if key != "status"}
        if isinstance(job.get("metadata"), dict):
            job["metadata"] = {key: value for key, value in job["metadata"].items() if key not in _SERVER_METADATA}
        cleaned: dict[str, Any] = self._mapping(job, "", free=False)
        return cleaned

    def _mapping(self, values: dict[str, Any], path: str, *, free: bool) -> dict[str, Any]:
        cleaned = {}
        for key, value in values.items():
            here = step(path, key)
            if "\0" in key:
                self.problems.append(Problem(here, "has a NUL character in its name: remove it"))
            elif self._allowed(value, here, free=free):
                cleaned[key] = self._value(value, here, free=free or here == _FREE)
        return cleaned

    def _value(self, value: Any, path: str, *, free: bool) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, path, free=free)
        if isinstance(value, list):
            steps = [(each, step(path, index)) for index, each in enumerate(value)]
            return [self._value(each, here, free=free) for each, here in steps if self._allowed(each, here, free=free)]
        return value

    def _allowed(self, value: Any, path: str, *, free: bool) -> bool:
        message = None
        if value is None and not free:
            message = "has no value: leave the field out, or give it one ({} is an empty mapping)"
        elif isinstance(value, float) and not math.isfinite(value):
            message = "must be a finite number: JSON has no NaN and no infinity"
        elif isinstance(value, str) and "\0" in value:
            message = "has a NUL character: remove it"
        if message is not None:
            self.problems.append(Problem(path, message))
        return message is None
