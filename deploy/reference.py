"""Writes docs/reference. With --check, prints the stale pages: `deploy/reference.py [--check]`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import reference_api
from reference_api import filled

from muster.explain.causes import CAUSES
from muster.operator.metrics.families import FAMILIES
from muster.operator.metrics.job_series import MOST_JOBS, MOST_JOBS_PER_NAMESPACE, MOST_NAMESPACES, MOST_UNREADABLE
from muster_contract.codes import PROCESS_KILLED, SIGNAL_BASE, ExitCode
from muster_contract.config import COMMON_KEYS, Key
from muster_contract.environment import NAMES, PROCESS_VARIABLES, STATUS_VARIABLES, TRACKER_VARIABLES, ReplicaEnvironment
from muster_contract.events import EVENTS, Event
from muster_contract.inputs import FETCHER_VARIABLES
from muster_contract.notices import NoticeReason
from muster_contract.reports import Reply, Report
from muster_contract.tasks import TASKS
from muster_contract.trainer_spec import TrainerSpec
from muster_contract.wire import FieldPlan, Limits, fields_of

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
LARGE = 10**8
NOTE = "<!-- Generated from muster_contract by `make reference`; do not edit. -->\n"


def main(arguments: list[str]) -> int:
    """Writes or checks all pages."""
    made = {FOLDER / name: text for name, text in pages()}
    stale = [(path, text) for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path, _ in stale:
            print(f"stale: {path.relative_to(FOLDER.parents[1])}; run `make reference`", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in stale:
        path.write_text(text)
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of each page."""
    entries = {
        "environment.md": ("Environment variables", "The variables in the environment of a replica and its processes", environment()),
        "settings.md": ("Settings", "The fields of `trainer.settings`, which all tasks and modules share, with their defaults", settings()),
        "trainer-spec.md": ("Trainer spec", "The JSON object in `MUSTER_TRAINER`", trainer_spec()),
        "events.md": ("Events", "What a training process writes to its supervisor, one JSON object a line", events()),
        "reports.md": ("Reports and replies", "The documents between supervisors and the operator, and termination messages", reports()),
        "exit-codes.md": ("Exit codes", "The exit codes of supervisors, training processes and `muster run`", exit_codes()),
        "notices.md": ("Notices", "Messages for the user, each with a reason", notices()),
        "causes.md": ("Causes", "The causes that `muster explain` shows, in its order, and what to do", causes()),
        "metrics.md": ("Metrics", "What the operator serves at `/metrics`", metrics()),
        "trainingjob.md": ("TrainingJob", "Every field of a job and of its status", reference_api.training_job()),
        "commands.md": ("Commands", "Arguments and options of every `muster` command", reference_api.commands()),
        "python.md": ("Python client", "Classes and methods of `muster`", reference_api.python_client()),
    }
    sources = {"causes.md": "muster.explain", "metrics.md": "muster.operator.metrics.families"}
    sources |= {"trainingjob.md": "muster.api", "commands.md": "muster.cli", "python.md": "muster.client"}
    for name, (title, _, text) in entries.items():
        note = NOTE.replace("muster_contract", sources.get(name, "muster_contract"))
        yield name, f"# {title}\n{note}\n{text}"
    index = table(("page", "subject"), ((f"[{title}]({name})", subject) for name, (title, subject, _) in entries.items()))
    yield "README.md", f"# Reference\n{NOTE}\n{index}"


def environment() -> str:
    rows = [(f"`{NAMES[plan.name]}`", plan.doc + _default(plan)) for plan in fields_of(ReplicaEnvironment)]
    others = {**PROCESS_VARIABLES, **STATUS_VARIABLES, **TRACKER_VARIABLES, **FETCHER_VARIABLES}
    rows += [(f"`{name}`", doc) for name, doc in others.items()]
    return table(("variable", "meaning"), rows)


def settings() -> str:
    shared = (
        "These fields of `trainer.settings` mean the same for every `task` and every `module`, with every strategy. `kubectl explain "
        "trainingjob.spec.trainer.settings` shows them too. [Your own model](../tasks/own-model.md#settings) reads them, and may have more "
        "keys, in `trainer.config`. Jobs may also have the shared settings in `trainer.config`. Two values for one of them are refused."
    )
    bundled = (
        "[Bundled tasks](../strategies.md#bundled-tasks) have `data` ([input](../input.md)) and these keys in `trainer.config`, and refuse "
        "others. They replace shared settings of the same name:"
    )
    common = table(("key", "default", "value", "meaning"), (_setting(key, key.doc) for key in COMMON_KEYS))
    rows = (
        ("", *_setting(key)) if index else (f"`{name}`", *_setting(key))
        for name, task in TASKS.items()
        for index, key in enumerate(task.own_keys)
    )
    return f"{filled(shared)}\n\n{common}\n## Bundled tasks\n{filled(bundled)}\n\n{table(('task', 'key', 'default', 'value'), rows)}"


def _setting(key: Key, *more: str) -> tuple[str, ...]:
    default = "" if key.default in ("", None) else f"`{_shown(key.default)}`"
    return f"`{key.name}`", default, key.needed.rstrip(","), *more


def trainer_spec() -> str:
    return "".join(documents(TrainerSpec))


def events() -> str:
    intro = "A field with a wrong value is ignored, and so is an event without a required field. All events have these fields:"
    return f"{filled(intro)}\n\n{''.join(documents(Event, *EVENTS.values()))}"


def reports() -> str:
    return "".join(documents(Report, Reply))


def exit_codes() -> str:
    rows = [(code.value, f"`{code.reason}`", code.meaning, code.of_run, code.failure_class or "") for code in ExitCode]
    killed = "Signal n ended a process."
    rows.append((f"{SIGNAL_BASE}+n", f"`{PROCESS_KILLED}`", killed, "", "Infrastructure for KILL and TERM, else Application"))
    return table(("code", "reason", "meaning in a replica", "meaning of `muster run`", "failure class"), rows)


def notices() -> str:
    rows = ((f"`{reason.value}`", reason.description, "Warning" if reason.is_warning else "Normal") for reason in NoticeReason)
    return table(("reason", "meaning", "type"), rows)


def causes() -> str:
    intro = (
        "The command `muster explain JOB` names the first causes of this list that apply. An earlier cause explains later ones. Words in "
        "angle brackets are filled in from the job."
    )
    parts = [f"{filled(intro)}\n"]
    for kind in dict.fromkeys(cause.kind for cause in CAUSES):
        rows = ((f"`{each.id}`", _blanks(each.sentence), _blanks(each.remedy)) for each in CAUSES if each.kind is kind)
        parts.append(f"\n## {kind.value}\n{table(('cause', 'what it says', 'what to do'), rows)}")
    return "".join(parts)


def metrics() -> str:
    each_job = (
        f"The leader exports these gauges for jobs that have not ended, oldest first: for at most {MOST_JOBS_PER_NAMESPACE} jobs of a "
        f"namespace, and at most {MOST_JOBS} jobs in total. A gauge whose value is not known has no series. "
        "`muster_jobs_without_series` counts the other jobs."
    )
    sections = (
        ("operator", "Each operator", "Each operator exports these metrics, also a standby operator."),
        (
            "jobs",
            "All jobs",
            "Only the leader exports the gauges and adds to the counters. So the sum over all operators has each job once.",
        ),
        ("job", "Each job", each_job),
    )
    intro = (
        "[Monitoring](../monitoring.md) describes how to scrape them. The number of series has a limit for any jobs of tenants: "
        f"`muster_jobs` counts the jobs of the {MOST_NAMESPACES} largest namespaces by namespace and all others together, and "
        f"`muster_unreadable_objects` names at most {MOST_UNREADABLE} objects. There are also the usual `process_*` metrics."
    )
    parts = [f"{filled(intro)}\n"]
    for scope, title, text in sections:
        rows = (
            (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.meaning)
            for each in FAMILIES
            if each.scope == scope
        )
        parts.append(f"\n## {title}\n{filled(text)}\n\n{table(('metric', 'type', 'labels', 'meaning'), rows)}")
    return "".join(parts)


def _blanks(template: str) -> str:
    """The template with its fields in angle brackets. Alternative fields, of which only one has a value, become one blank."""
    return re.sub(r"\{(\w+)\}(?:\{\w+\})*", r"`<\1>`", template)


def documents(*classes: type) -> Iterator[str]:
    """A section for each document, and for each document inside it."""
    for cls in dict.fromkeys(each for outer in classes for each in _with_parts(outer)):
        docs, rows = _attribute_docs(cls), []
        for plan in _fields(cls):
            meaning = (plan.doc or docs.get(plan.name, "")) + _default(plan)
            rows.append((f"`{plan.wire_name}`", _type(plan.hint, plan.limits), "yes" if plan.required else "", meaning))
        fields = f"{table(('field', 'type', 'required', 'meaning'), rows)}\n" if rows else ""
        yield f"## {cls.__name__}\n{filled(_name(cls) + (cls.__doc__ or ''))}\n\n{fields}"


def _with_parts(cls: type) -> Iterator[type]:
    """The document and those inside it, except events, which have a page of their own."""
    yield cls
    for inner in _documents_in([plan.hint for plan in _fields(cls)]):
        if not issubclass(inner, Event):
            yield from _with_parts(inner)


def _fields(cls: type) -> Iterator[FieldPlan]:
    """The fields of a document. For an event, only those that not all events have."""
    common = {plan.name for plan in fields_of(Event)} if issubclass(cls, Event) and cls is not Event else set()
    return (plan for plan in fields_of(cls) if plan.name not in common)


def _name(cls: type) -> str:
    """The name of an event in its line."""
    if not issubclass(cls, Event) or cls is Event:
        return ""
    return f"Event `{cls.event}`. " if cls.what is None else f"Event `{cls.event}` with `what`: `{cls.what}`. "


def _attribute_docs(cls: type) -> dict[str, str]:
    """The strings below the fields of a class, because Python itself does not store them."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for field, below in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    cells = [list(header)]
    cells.append(["---"] * len(cells[0]))
    cells += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|\n" for row in cells)


def _documents_in(hints: Iterable[Any]) -> Iterator[type]:
    for hint in hints:
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield hint
        else:
            yield from _documents_in(get_args(hint))


def _default(plan: FieldPlan) -> str:
    default = plan.default
    if plan.required or default in (None, "", (), {}, False):
        return ""
    if dataclasses.is_dataclass(default):
        return ""
    return f" Default: `{_shown(default)}`."


def _shown(value: Any) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value).lower() if isinstance(value, bool) else str(value)


def _type(hint: Any, limits: Limits) -> str:
    """The JSON type with its limits."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], next((each for each in arguments[1:] if isinstance(each, Limits)), limits))
    if origin in (Union, UnionType):
        return " or ".join(_type(each, limits) for each in arguments if each is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0], limits)}"
    if origin in (Mapping, dict):
        return f"object of {_type(arguments[1], limits)}"
    if hint is NoticeReason:
        return "[reason](notices.md)"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{each.value}`" for each in hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        page = "events.md" if issubclass(hint, Event) else ""
        return f"[{hint.__name__}]({page}#{hint.__name__.lower()})"
    return {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path", Any: "any"}.get(hint, "time") + _range(limits)


def _range(limits: Limits) -> str:
    """The bounds. Omits large ones, because they only guard arithmetic and storage."""
    low, high = (limit if limit is not None and abs(limit) < LARGE else None for limit in (limits.minimum, limits.maximum))
    if high is not None:
        return f", {low} to {high}" if low is not None else f" ≤ {high}"
    return f" ≥ {low}" if low is not None else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
