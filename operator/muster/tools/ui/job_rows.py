"""A row of the list of jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from muster.api.status import FINAL_PHASES, Phase, TrainingJobStatus
from muster.kubernetes.objects import Object
from muster.tools.report.run import METRICS
from muster_contract.metric_names import of_the_model
from muster_contract.text import printable

Kind = Literal["cluster", "local", "gone"]
_LONGEST = 300


@dataclass(frozen=True)
class Listed:
    """A job as the list shows it. `created` and `ended` are in Unix seconds."""

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
    ended: float | None = None
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str | float] = field(default_factory=dict)
    """Further figures by name, for columns that a reader may choose."""

    @property
    def path(self) -> str:
        """The path of the job's page."""
        return path_of(self.kind, self.namespace, self.name)


def path_of(kind: str, namespace: str, name: str) -> str:
    """The path of a job's page."""
    return f"/jobs/{kind}/{quote(namespace, safe='')}/{quote(name, safe='')}"


def actions_in(state: str) -> tuple[str, ...]:
    """What a user may want to do with a job in this state. The names are those of methods of `AsyncJob`."""
    if state == Phase.SUCCEEDED:
        return ("delete",)
    if state == Phase.FAILED:
        return "restart", "delete"
    if state == Phase.SUSPENDED or state not in set(Phase):  # a local run without a process
        return "resume", "delete"
    return "suspend", "restart", "delete"


def row_of(job: Object) -> Listed:
    """The row of a job of the API server. Values of an unexpected type are omitted, because an older operator may have written them."""
    metadata, status = job["metadata"], job.get("status") or {}
    progress, restarts, queue, checkpoint, goodput, usage = (
        status.get(part) or {} for part in ("progress", "restarts", "queue", "checkpoint", "goodput", "usage")
    )
    phase = _text(status.get("phase")) or Phase.PENDING.value
    return Listed(
        kind="cluster",
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        strategy=_text(job["spec"].get("strategy")),
        state=phase,
        queue=_text(queue.get("summary")),
        workers=_text(status.get("workers")),
        step=_whole(progress.get("step")),
        percent=_whole(progress.get("percent")),
        loss=_text(progress.get("loss")),
        restarts=_whole(restarts.get("total")),
        created=_unix(metadata.get("creationTimestamp")),
        ended=_last_write(metadata) if phase in FINAL_PHASES else None,
        message=_text(status.get("message")),
        labels=metadata.get("labels") or {},
        figures=_figures(
            {
                "seconds left": progress.get("etaSeconds"),
                "goodput": goodput.get("ratio"),
                "saved at step": checkpoint.get("step"),
                "used": usage.get("summary"),
            }
        ),
    )


def row_of_status(
    kind: Kind,
    namespace: str,
    name: str,
    *,
    status: TrainingJobStatus,
    strategy: str,
    created: float | None,
    labels: Mapping[str, str] | None = None,
) -> Listed:
    """The row of a job with this status."""
    progress = status.progress
    metrics = (progress and progress.metrics) or {}
    last = next((record.end_time for record in reversed(status.attempts) if record.end_time), None)
    ended = (status.completion_time or last) if status.phase.final else None
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
        ended=None if ended is None else ended.timestamp(),
        message=_text(status.message),
        labels=labels or {},
        figures=_figures(
            {
                "seconds left": None if progress is None or status.phase.final else progress.eta_seconds,
                "samples/s": progress and progress.samples_per_second,
                "goodput": status.goodput and status.goodput.ratio,
                "saved at step": status.checkpoint and status.checkpoint.step,
                "used": status.usage and status.usage.summary,
                **{METRICS.get(name, f"test {name}"): value for name, value in of_the_model(metrics).items()},
            }
        ),
    )


def _text(value: object) -> str:
    text = printable(str(value)) if isinstance(value, str) else ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _figures(values: Mapping[str, object]) -> dict[str, str | float]:
    """The values that can be shown."""
    return {
        _text(name): value if isinstance(value, int | float) else _text(value)
        for name, value in values.items()
        if (isinstance(value, int | float) and not isinstance(value, bool)) or (isinstance(value, str) and value)
    }


def _last_write(metadata: Object) -> float | None:
    """When the status was last written. Of a job that has ended, that is about when it ended."""
    return max(
        (at for each in metadata.get("managedFields") or () if each.get("subresource") and (at := _unix(each.get("time")))), default=None
    )


def _unix(time: object) -> float | None:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
