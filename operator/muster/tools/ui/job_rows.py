"""A row of the list of jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

from muster.api.status import TrainingJobStatus
from muster.kubernetes.objects import Object
from muster_contract.text import printable

Kind = Literal["cluster", "local", "gone"]
_LONGEST = 300


@dataclass(frozen=True)
class Listed:
    """A job as the list shows it. `created` is in Unix seconds."""

    kind: Kind
    namespace: str
    name: str
    strategy: str = ""
    state: str = ""
    queue: str = ""
    """Position and queue in short, while the job waits in a queue."""
    workers: str = ""
    step: int | None = None
    percent: int | None = None
    loss: str = ""
    restarts: int | None = None
    created: float | None = None
    message: str = ""

    @property
    def path(self) -> str:
        """The path of the job's page."""
        return f"/jobs/{self.kind}/{quote(self.namespace, safe='')}/{quote(self.name, safe='')}"

    @property
    def created_text(self) -> str:
        return "" if self.created is None else datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%d %H:%M")


def row_of(job: Object) -> Listed:
    """The row of a job of the API server. Values of an unexpected type are omitted, because an older operator may have written them."""
    metadata, status = job["metadata"], job.get("status") or {}
    progress, restarts, queue = (status.get(part) or {} for part in ("progress", "restarts", "queue"))
    try:
        created: float | None = datetime.fromisoformat(str(metadata.get("creationTimestamp"))).timestamp()
    except ValueError:
        created = None
    return Listed(
        kind="cluster",
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        strategy=_text(job["spec"].get("strategy")),
        state=_text(status.get("phase")) or "Pending",
        queue=_text(queue.get("summary")),
        workers=_text(status.get("workers")),
        step=_whole(progress.get("step")),
        percent=_whole(progress.get("percent")),
        loss=_text(progress.get("loss")),
        restarts=_whole(restarts.get("total")),
        created=created,
        message=_text(status.get("message")),
    )


def row_of_status(kind: Kind, namespace: str, name: str, *, status: TrainingJobStatus, strategy: str, created: float | None) -> Listed:
    """The row of a job with this status."""
    progress = status.progress
    return Listed(
        kind=kind,
        namespace=namespace,
        name=name,
        strategy=_text(strategy),
        state=status.phase.value,
        queue=_text(status.queue.summary) if status.queue else "",
        workers=status.workers,
        step=progress.step if progress else None,
        percent=progress.percent if progress else None,
        loss=_text(progress.loss) if progress else "",
        restarts=status.restarts.total,
        created=created,
        message=_text(status.message),
    )


def in_order(rows: Iterable[Listed]) -> list[Listed]:
    """The rows, newest first."""
    return sorted(rows, key=lambda row: (-(row.created or 0.0), row.kind, row.namespace, row.name))


def _text(value: object) -> str:
    text = printable(str(value)) if isinstance(value, str) else ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
