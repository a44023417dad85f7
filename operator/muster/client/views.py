"""Everything about a job for its page: for a job on a cluster, a local run, or a job that is gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

from muster.admission.yaml_text import write_yaml
from muster.api.job import TrainingJob
from muster.api.status import Phase
from muster.api.unchecked import mapping
from muster.client.connection import Connection
from muster.client.jobs import Jobs, manifest_of, typed
from muster.client.log_lines import Line, Selection, merged
from muster.client.logs import shown as labelled
from muster.client.logs import tails_of
from muster.client.places import places_of
from muster.client.snapshot import snapshot_of
from muster.explain.evidence import label_of, time_of
from muster.explain.explain import as_lines, explain
from muster.explain.snapshot import Snapshot
from muster.kubernetes.objects import Object
from muster.local.files import tail_of
from muster.local.rundir import RunFolder, replica_logs
from muster.tools.report.history import History, ReportError
from muster.tools.report.job import JobView, Log, Point, points_in
from muster.tools.report.recorded import Recorded, read_recorded
from muster.tools.report.storage import Storage
from muster_contract.history import LOG_LINE, LOG_LINES
from muster_contract.text import printable

MOST_LOGS = 16
"""Replicas whose logs a page shows, unless the user selects one."""
MOST_LOG_BYTES = 1 << 18
MOST_LINES = 2000
"""Lines of each replica on the page of a log."""
MOST_YAML_BYTES = 1 << 17
"""Bytes of a job, as JSON, that a page shows as YAML. To write more of it takes seconds."""

SOME_STEPS = "The job did many steps, of which the history has some."


async def cluster_view(
    connection: Connection, name: str, *, history: Path | Storage | None = None, points: Sequence[Point] = (), replica: str | None = None
) -> JobView:
    """A job of the connection's namespace. `history` is the checkpoint storage, if it can be read. `points` are steps that were recorded
    before. Raises a ClientError.

    What takes long for large jobs runs in threads, because one event loop serves the pages of all users.
    """
    snapshot = await snapshot_of(connection, name)
    job = await asyncio.to_thread(typed, snapshot.job)
    pods = [pod for pod in snapshot.pods if replica is None or label_of(pod) == replica]
    logs = await tails_of(connection, pods[:MOST_LOGS], lines=LOG_LINES, most_bytes=MOST_LOG_BYTES)
    shown = [Log(label, [_cut(line.text) for line in lines]) for label, lines in logs]
    created = job.metadata.creation_timestamp
    notes = [] if len(pods) <= MOST_LOGS else [f"The logs are those of the first {MOST_LOGS} of {len(pods)} replicas."]
    recorded: Recorded | None = None
    if history is not None:
        folder = job.spec.checkpoint.name or name
        try:
            recorded = await asyncio.to_thread(read_recorded, history, connection.namespace, folder, created=created)
        except ReportError as error:
            notes.append(f"There are no full curves: {error}.")
    if recorded is not None:
        notes += [] if recorded.has_every_step else [SOME_STEPS]
        shown += _recorded_logs(recorded, without=[label for label, lines in logs if any(line.time for line in lines)])
    printed = points_in((_unix(line), line.text) for _, lines in logs for line in lines)
    return JobView(
        name=f"{connection.namespace}/{name}",
        state=job.status.phase.value,
        status=job.status,
        created=None if created is None else created.timestamp(),
        job_yaml=await asyncio.to_thread(_yaml_of, snapshot.job, name),
        history=recorded.history if recorded is not None else None,
        points=_merged(points, printed),
        explanation=as_lines(await asyncio.to_thread(explain, snapshot)),
        logs=shown,
        places=places_of(job),
        notes=[printable(note) for note in notes],
    )


async def cluster_log(connection: Connection, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
    """The last lines of the replicas by time, each after its replica, and sentences about what is missing. Raises a ClientError."""
    jobs = Jobs(connection)
    pods = Selection(replica=replica).pods(await jobs.pods(await jobs.get(name, bounded=True)))
    logs = await tails_of(connection, pods[:MOST_LOGS], lines=MOST_LINES, most_bytes=MOST_LOG_BYTES)
    notes = [] if len(pods) <= MOST_LOGS else [f"The lines are those of the first {MOST_LOGS} of {len(pods)} replicas. Choose one."]
    return [_cut(labelled(line)) for line in merged(lines for _, lines in logs)], notes


def local_log(directory: Path, *, replica: str | None) -> tuple[list[str], list[str]]:
    """The last lines of the replicas of a run, one replica after the other, because the lines have no times; and notes for the reader."""
    logs = _local_logs(directory, replica=replica, most=MOST_LINES)
    count = 0 if replica else len({log.parent.name for log in replica_logs(directory)})
    notes = [f"The lines are those of the first {MOST_LOGS} of {count} replicas. Choose one."] if count > MOST_LOGS else []
    return [f"[{log.title}] {line}" for log in logs for line in log.lines], notes


def _yaml_of(job: Object, name: str) -> str:
    manifest = manifest_of(job)
    size = len(orjson.dumps(manifest))
    return write_yaml(manifest) if size <= MOST_YAML_BYTES else f"# The job has {size:,} bytes. See them with: muster get {name} -o yaml\n"


async def local_view(job: TrainingJob, directory: Path, *, is_running: bool, history: History | None) -> JobView:
    """The run in this directory. Its `history` comes from its events."""
    state = state_of_run(job.status.phase, is_running=is_running)
    snapshot = Snapshot(now=datetime.now(UTC), job={**job.manifest(), "status": job.status.wire()})
    created = job.metadata.creation_timestamp
    tensorboard = RunFolder(directory).tensorboard
    return JobView(
        name=directory.name,
        state=state,
        status=job.status,
        created=None if created is None else created.timestamp(),
        job_yaml=write_yaml(job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})),
        history=history,
        explanation=as_lines(explain(snapshot)),
        logs=await asyncio.to_thread(_local_logs, directory),
        places=places_of(job, tensorboard=str(tensorboard) if tensorboard.is_dir() else ""),
    )


def state_of_run(phase: Phase, *, is_running: bool) -> str:
    """The state of a local run, of which the process may have ended before its time."""
    return phase.value if is_running or phase.final or phase is Phase.SUSPENDED else f"{phase.value}, stopped"


def deleted_job_view(root: Path | Storage, namespace: str, name: str) -> JobView:
    """A job that is gone, from the history beside its checkpoints. Raises ReportError if there is none."""
    recorded = read_recorded(root, namespace, name)
    return JobView(
        name=f"{namespace}/{name}",
        state=recorded.state,
        status=recorded.status(),
        created=recorded.created.timestamp(),
        history=recorded.history,
        logs=_recorded_logs(recorded, without=()),
        notes=["The page is made of the history beside the checkpoints.", *([] if recorded.has_every_step else [SOME_STEPS])],
    )


def observed_points(job: Object, now: float) -> list[Point]:
    """The step that the job has reached, if it has a loss. `now` is in Unix seconds, for a summary of a job, which has no times."""
    progress = mapping(mapping(job.get("status")).get("progress"))
    step, rate, updated = progress.get("step"), progress.get("samplesPerSecond"), time_of(progress.get("updatedAt"))
    try:
        loss = float(str(progress.get("loss")))
    except ValueError:
        return []
    if not isinstance(step, int) or not step:
        return []
    return [Point(now if updated is None else updated.timestamp(), step, loss, rate if isinstance(rate, int | float) else None)]


def _merged(*sources: Iterable[Point]) -> list[Point]:
    """The points by step. If several points have the same step, the first one counts."""
    by_step: dict[int, Point] = {}
    for points in sources:
        for point in points:
            by_step.setdefault(point.step, point)
    return [by_step[step] for step in sorted(by_step)]


def _recorded_logs(recorded: Recorded, *, without: Sequence[str]) -> list[Log]:
    attempt = recorded.last[0].record.attempt
    remaining = [each for each in recorded.last if each.log and each.label not in without]
    return [Log(f"{each.label}, attempt {attempt}", each.log) for each in remaining[:MOST_LOGS]]


def _local_logs(run: Path, *, replica: str | None = None, most: int = LOG_LINES) -> list[Log]:
    """The last lines of each replica, from the newest of its logs."""
    newest = {log.parent.name: log for log in replica_logs(run) if replica in (None, log.parent.name)}
    return [Log(label, _last_lines(newest[label], most)) for label in sorted(newest)[:MOST_LOGS]]


def _last_lines(log: Path, most: int) -> list[str]:
    return [_cut(line) for line in tail_of(log, MOST_LOG_BYTES).splitlines()[-most:]]


def _cut(text: str) -> str:
    return printable(text, keep="\t", most=LOG_LINE)


def _unix(line: Line) -> float:
    """The time of a line in Unix seconds; NaN if it has none."""
    try:
        return datetime.fromisoformat(f"{line.time[:26]}+00:00").timestamp()
    except ValueError:
        return math.nan
