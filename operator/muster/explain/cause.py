"""What a cause is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from muster.explain.evidence import Evidence, Source


class Kind(StrEnum):
    """What a cause explains."""

    NOT_ACCEPTED = "Why nothing is started"
    REFUSED = "Why pods are not created"
    SCHEDULING = "Why pods get no node"
    STARTING = "Why containers do not start"
    FAILED = "Why an attempt or the job failed"
    SLOW = "Why the job is slow"
    STATE = "What the job does"
    RISK = "What may go wrong later"


@dataclass(frozen=True)
class Cause:
    """A row of the table of causes.

    `sources` and `pattern` say what it matches: `pattern` is searched in the evidence's `reason: message`. `sentence` and `remedy` may use
    `{subject}`, `{message}`, and the named groups of the pattern.
    """

    id: str
    kind: Kind
    sources: tuple[Source, ...]
    pattern: str
    sentence: str
    remedy: str

    def values(self, evidence: Evidence) -> dict[str, str] | None:
        """The values for sentence and remedy, or None if the evidence is not of this cause."""
        if evidence.source not in self.sources:
            return None
        match = re.search(self.pattern, evidence.text, re.IGNORECASE | re.DOTALL)
        if match is None:
            return None
        groups = {name: value or "" for name, value in match.groupdict().items()}
        return {"subject": evidence.subject, "message": evidence.message, **groups}


def rows(kind: Kind, sources: Iterable[Source], *table: tuple[str, str, str, str]) -> tuple[Cause, ...]:
    """Causes of one kind with the same sources, from (id, pattern, sentence, remedy)."""
    return tuple(Cause(name, kind, tuple(sources), pattern, sentence, remedy) for name, pattern, sentence, remedy in table)
