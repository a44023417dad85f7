"""The types of causes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from muster.api.status import LONGEST_TEXT
from muster.explain.evidence import Evidence, Source


class Kind(StrEnum):
    """What a cause explains."""

    NOT_ACCEPTED = "Why nothing is started"
    REFUSED = "Why pods are not created"
    SCHEDULING = "Why pods get no node"
    NODE = "Which nodes do not answer"
    STARTING = "Why containers do not start"
    WAITING = "What pods without a node wait for"
    FAILED = "Why an attempt or the job failed"
    SLOW = "Why the job is slow"
    STATE = "What the job does"
    RISK = "What may go wrong later"


@dataclass(frozen=True)
class Cause:
    """A row of the table of causes.

    Evidence from one of `sources` matches this cause if `pattern` is in its `reason: message`, or if `ends` has the signal or exit code of
    the process. `sentence` and `remedy` may use `{subject}`, `{message}`, `{logs}`, and the named groups of the pattern.
    """

    id: str
    kind: Kind
    sources: tuple[Source, ...]
    pattern: str
    sentence: str
    remedy: str
    ends: tuple[str | int, ...] = ()

    def values(self, evidence: Evidence) -> dict[str, str] | None:
        """The values for sentence and remedy. None if the evidence does not match this cause."""
        if evidence.source not in self.sources:
            return None
        pattern = re.compile(self.pattern, re.IGNORECASE | re.DOTALL)
        # Everyone who may create Events can write longer texts, and the time of some patterns grows with the square of the length.
        match = pattern.search(evidence.text[:LONGEST_TEXT])
        if match is None and evidence.end not in self.ends:
            return None
        groups = dict.fromkeys(pattern.groupindex, "") if match is None else match.groupdict(default="")
        return {"subject": evidence.subject, "message": evidence.message, "logs": evidence.logs, **groups}


_Row = tuple[str, str, str] | tuple[str, str, str, str] | tuple[str, str, str, str, tuple[str | int, ...]]


def rows(kind: Kind, sources: Iterable[Source], *table: _Row) -> tuple[Cause, ...]:
    """Causes of one kind with the same sources, from (id, sentence, remedy), (id, pattern, sentence, remedy) or (id, pattern, sentence,
    remedy, ends). A row without a pattern matches evidence whose reason is the id."""
    where = tuple(sources)
    return tuple(Cause(row[0], kind, where, *(row[1:] if len(row) > 3 else (f"^{row[0]}", *row[1:]))) for row in table)
