"""Lines of logs with their times. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from muster.api.constants import ATTEMPT_LABEL
from muster.client import errors
from muster.explain.evidence import label_of
from muster.kubernetes.objects import Object
from muster_contract.environment import NAMES

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]00:00) ?")
FIRST, LAST = "", "~"
_FIRST_RANK, _PROCESSES = NAMES["first_rank"], NAMES["processes"]


@dataclass(frozen=True, order=True)
class Line:
    """A line of a replica. `time` is in UTC with nine decimals, so that it sorts as text."""

    time: str
    replica: str
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"[{self.replica}] {self.text}"


@dataclass(frozen=True)
class Selection:
    """The replicas and the times to show. `attempt` is None for everything that the pods have printed."""

    rank: int | None = None
    replica: str | None = None
    attempt: int | None = None

    def pods(self, pods: Iterable[Object]) -> list[Object]:
        """The pods whose logs are to be shown."""
        return [pod for pod in pods if self._has(pod)]

    def _has(self, pod: Object) -> bool:
        if self.replica is not None and label_of(pod) != self.replica:
            return False
        if self.attempt is not None and (number_of((pod["metadata"].get("labels") or {}).get(ATTEMPT_LABEL)) or 0) > self.attempt:
            return False
        return self.rank is None or self.rank in ranks_of(pod)


def ranks_of(pod: Object) -> range:
    """The ranks of the processes of a pod, when it was created. Empty for roles without ranks."""
    variables = {
        variable["name"]: variable.get("value")
        for container in pod["spec"].get("containers") or ()
        for variable in container.get("env") or ()
        if variable.get("name") in (_FIRST_RANK, _PROCESSES)
    }
    first, count = number_of(variables.get(_FIRST_RANK)), number_of(variables.get(_PROCESSES))
    return range(first, first + (count or 1)) if first is not None else range(0)


def number_of(text: object) -> int | None:
    """A number that Muster may have written. Everyone who may create pods can write other text in its place."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10 else None


def line_of(text: str, *, replica: str) -> Line:
    """A line as the API server writes it with timestamps=true."""
    match = _TIMESTAMP.match(text)
    if match is None:
        return Line(FIRST, replica, text)
    return Line(f"{match[1]}.{(match[2] or '').ljust(9, '0')}", replica, text[match.end() :])


def merged(logs: Iterable[list[Line]]) -> Iterator[Line]:
    """The lines of several logs by time. Lines of one log stay in their order."""
    return heapq.merge(*logs, key=lambda line: line.time)


def span_of(job: Object, attempt: int) -> tuple[str, str]:
    """The first and the last time of the lines of an attempt. In-place restarts leave several attempts in one log.

    Raises RefusedError if the status does not have the attempt.
    """
    records = {record["attempt"]: record for record in (job.get("status") or {}).get("attempts") or ()}
    if attempt not in records:
        available = ", ".join(map(str, sorted(records))) or "none yet"
        raise errors.RefusedError(f"{job['metadata']['name']}: the status has no attempt {attempt}; it has {available}")
    start = line_of(records[attempt]["startTime"], replica="").time if attempt > min(records) else FIRST
    following = records.get(attempt + 1)
    return start, line_of(following["startTime"], replica="").time if following else LAST
