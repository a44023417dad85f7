"""Turns a snapshot into one ordered answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from muster.explain.cause import Cause, Kind
from muster.explain.causes import CAUSES
from muster.explain.evidence import Evidence, evidence_in, phase_of
from muster.explain.scheduler_message import decisive
from muster.explain.snapshot import Snapshot
from muster.explain.states import evidence_of_states
from muster_contract.text import printable

LONGEST = 600  # characters of a sentence
_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """A cause that applies to the job."""

    cause: Cause
    sentence: str
    remedy: str
    is_past: bool = False
    """Whether the job has gone on since this event."""
    subjects: tuple[str, ...] = ()
    """The objects that show the cause, such as worker-1."""


@dataclass(frozen=True)
class Explanation:
    """Why the job is as it is: the first finding explains the most."""

    name: str
    phase: str
    findings: tuple[Finding, ...]
    unreadable: tuple[str, ...] = ()
    """What the user may not read. Causes may be missing for this reason."""

    def __str__(self) -> str:
        return "\n".join(as_lines(self))


@dataclass
class _Match:
    finding: Finding
    rank: tuple[bool, int, int]
    subjects: list[str] = field(default_factory=list)


def explain(snapshot: Snapshot) -> Explanation:
    """The causes that apply, in order. A generic cause is omitted if a specific one explains the same evidence."""
    name = str(snapshot.job["metadata"]["name"])
    matches: dict[tuple[str, bool], _Match] = {}
    for order, each in enumerate([*evidence_of_states(snapshot), *evidence_in(snapshot)]):
        evidence = each if each.logs else replace(each, logs=f"muster logs {name}")
        for index, cause, values in matches_of(evidence):
            match = _Match(_finding(evidence, cause, values), (evidence.is_past, index, order))
            entry = matches.setdefault((cause.id, evidence.is_past), match)
            if evidence.subject and evidence.subject not in entry.subjects:
                entry.subjects.append(evidence.subject)
    ordered = sorted(matches.values(), key=lambda match: match.rank)
    findings = [replace(match.finding, subjects=tuple(match.subjects)) for match in ordered]
    return Explanation(name, phase_of(snapshot.job), tuple(_without_generic(findings)), snapshot.unreadable)


def first_match(evidence: Evidence) -> tuple[int, Finding] | None:
    """The first cause that matches this evidence, with its place in the table."""
    found = matches_of(evidence)
    return (found[0][0], _finding(evidence, *found[0][1:])) if found else None


def matches_of(evidence: Evidence) -> list[tuple[int, Cause, dict[str, str]]]:
    """The first cause for each reason in the evidence that counts, with its place in the table and the values for its sentence."""
    each = (_match(replace(evidence, message=message)) for message in decisive(evidence.message))
    by_place = {match[0]: match for match in each if match is not None}
    return [by_place[place] for place in sorted(by_place)]


def _match(evidence: Evidence) -> tuple[int, Cause, dict[str, str]] | None:
    values = ((index, cause, cause.values(evidence)) for index, cause in enumerate(CAUSES))
    return next(((index, cause, found) for index, cause, found in values if found is not None), None)


def _finding(evidence: Evidence, cause: Cause, values: dict[str, str]) -> Finding:
    return Finding(cause, filled(cause.sentence, values), filled(cause.remedy, values), evidence.is_past)


def filled(template: str, values: dict[str, str]) -> str:
    """The sentence or remedy of a cause with these values, on one line. Parentheses and a colon without a value are left out."""
    shown = {name: printable(" ".join(value.split())) for name, value in values.items()}
    text = " ".join(template.format_map(shown).replace(" ()", "").split()).removesuffix(":")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


_GENERIC = {
    "Starting": None,
    "InputsFetched": (Kind.STARTING,),
    "ContainersStart": (Kind.STARTING,),
    "Unschedulable": (Kind.SCHEDULING,),
    "ClaimUnbound": (Kind.SCHEDULING,),
    "PodsRefused": (Kind.REFUSED,),
    "Failed": (Kind.FAILED,),
    "StartFailed": (Kind.STARTING, Kind.SCHEDULING, Kind.WAITING),
    "PeerLost": (Kind.FAILED, Kind.NODE),
    "ImagePull": (Kind.STARTING,),
}
"""Causes that explain nothing if a cause of one of these kinds applies too. None stands for any kind before the states."""
_BEFORE_STATES = (Kind.NOT_ACCEPTED, Kind.REFUSED, Kind.SCHEDULING, Kind.STARTING, Kind.WAITING, Kind.FAILED)


def _without_generic(findings: Iterable[Finding]) -> list[Finding]:
    every = list(findings)
    return [each for each in every if not _is_idle(each, every)]


def _is_idle(finding: Finding, every: list[Finding]) -> bool:
    if finding.cause.id not in _GENERIC:
        return False
    kinds = _GENERIC[finding.cause.id]
    others = [other.cause for other in every if other.is_past == finding.is_past]
    if kinds is None:
        return any(cause.kind in _BEFORE_STATES for cause in others)
    return any(cause.kind in kinds and cause.id not in _GENERIC for cause in others)


def as_lines(explanation: Explanation) -> list[str]:
    """The answer as text, one numbered finding after the other."""
    lines = [f"{explanation.name} is {explanation.phase}."]
    for number, finding in enumerate(explanation.findings, 1):
        before = "Before: " if finding.is_past else ""
        rest = len(finding.subjects) - _NAMED
        others = f" ({', '.join(finding.subjects[:_NAMED])} and {rest} more)" if rest > 0 else ""
        lines += [f"{number}. {before}{capital(finding.sentence)}{others}.", f"   What to do: {finding.remedy}. [{finding.cause.id}]"]
    if explanation.unreadable:
        lines.append(f"You may not read {', '.join(explanation.unreadable)}, so causes there are not shown.")
    return lines


def as_document(explanation: Explanation) -> dict[str, object]:
    """The answer as plain data."""
    return {
        "job": explanation.name,
        "phase": explanation.phase,
        "causes": [
            {
                "id": each.cause.id,
                "kind": each.cause.kind.name,
                "sentence": each.sentence,
                "remedy": each.remedy,
                "isPast": each.is_past,
                "subjects": list(each.subjects),
            }
            for each in explanation.findings
        ],
        "unreadable": list(explanation.unreadable),
    }


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
