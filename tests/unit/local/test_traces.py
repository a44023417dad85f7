"""The files that replicas leave in the run directory, and the status that is restored from them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, CheckpointStatus, Goodput, Phase, Progress, Reason, TrainingJobStatus, World
from muster.local.rundir import new_run, open_run_directory
from muster.local.start import open_run
from muster.local.traces import traces_of
from tests.unit.local.local_jobs import NOW, job

LAST = NOW + timedelta(seconds=30)


def event(kind: str, second: float, *, attempt: int = 0, **fields: Any) -> str:
    origin = {"time": (NOW + timedelta(seconds=second)).timestamp(), "rank": 0, "role": "worker", "index": 0, "attempt": attempt}
    return json.dumps({"event": kind, **fields, **origin}) + "\n"


def left(run: Path, *events: str, folder: str = "attempts/0/worker-0", **words: Any) -> None:
    (run / folder).mkdir(parents=True)
    (run / folder / "events.jsonl").write_text("".join(events))
    if words:
        (run / folder / "termination.json").write_text(json.dumps(words))


def killed(run: Path) -> TrainingJob:
    """A run of a `muster run` that was killed after 20 steps in 20 seconds."""
    status = TrainingJobStatus(
        phase=Phase.RUNNING,
        admitted_time=NOW,
        world=World(attempt=0, size=2, created_time=NOW, ready_time=NOW, first_step_time=NOW),
        progress=Progress(step=20, total_steps=100, updated_at=NOW),
        checkpoint=CheckpointStatus(step=10, path="c10", committed_at=NOW),
        attempts=(AttemptRecord(attempt=0, start_time=NOW, step_resumed=0, steps_lost=0),),
        goodput=Goodput(productive_seconds=20, productive_steps=20),
    )
    directory = open_run_directory(run)
    written = new_run(job(), NOW).with_status(status)
    directory.write_job(written)
    directory.write_status(status)
    directory.release()
    return written


def resumed(run: Path) -> TrainingJobStatus:
    start = open_run(job(), run, resume=True, fresh=False, now=NOW + timedelta(seconds=1000), command="", say=print)
    start.directory.release()
    return start.job.status


def test_events_after_the_last_status_are_added_to_it(tmp_path: Path) -> None:
    killed(tmp_path)
    commit = event("commit", 30, step=27, path="c27", seconds=1.0, blockedSeconds=0.5, reason="Stop")
    left(tmp_path, event("step", 21, step=21, totalSteps=100), event("step", 29, step=27, loss="0.25", totalSteps=100), commit)
    status = resumed(tmp_path)
    [record] = status.attempts
    assert (record.last_step, record.end_time, record.reason, record.message) == (27, LAST, Reason.SUSPENDED, "muster run was ended")
    assert status.checkpoint is not None
    assert (status.checkpoint.step, status.checkpoint.path, status.checkpoint.committed_at) == (27, "c27", LAST)
    assert status.progress is not None
    assert (status.progress.step, status.progress.loss) == (27, "0.25")
    assert status.goodput is not None
    assert (status.goodput.productive_seconds, status.goodput.checkpoint_seconds) == (29.5, 0.5)
    assert (status.goodput.productive_steps, status.goodput.suspended_seconds) == (27, 0)


def test_a_termination_message_is_used_if_events_are_lost(tmp_path: Path) -> None:
    killed(tmp_path)
    left(tmp_path, code=21, attempt=0, step=27, commit={"step": 27, "path": "c27"})
    status = resumed(tmp_path)
    assert status.attempts[0].last_step == 27
    assert status.checkpoint is not None
    assert status.checkpoint.step == 27


def test_an_attempt_without_traces_ended_at_the_last_write_of_the_status(tmp_path: Path) -> None:
    killed(tmp_path)
    status = resumed(tmp_path)
    assert (status.attempts[0].last_step, status.attempts[0].end_time) == (20, NOW + timedelta(seconds=20))
    assert status.goodput is not None
    assert status.goodput.productive_seconds == 20


def test_traces_complete_the_record_of_an_interrupted_stop(tmp_path: Path) -> None:
    run = killed(tmp_path)
    stopping = replace(run.status.attempts[0], end_time=NOW, reason=Reason.SUSPENDED, settled=True, last_step=20)
    directory = open_run_directory(tmp_path)
    directory.write_status(replace(run.status, attempts=(stopping,)))
    directory.release()
    left(tmp_path, event("step", 21, step=21))
    assert resumed(tmp_path).attempts[0] == replace(stopping, last_step=21)


def test_events_count_for_their_own_attempt_in_any_folder(tmp_path: Path) -> None:
    left(tmp_path, event("step", 1, step=9), event("step", 5, step=4, attempt=1), code=21, attempt=1, step=5)
    left(tmp_path, event("step", 2, step=8), folder="attempts/0/worker-1", code=21, attempt=0, step=8)
    traces = traces_of(tmp_path, 1)
    assert traces.last_event == NOW + timedelta(seconds=5)
    [view] = traces.replicas
    assert view.report is not None
    assert view.report.progress is not None
    assert view.report.progress.step == 4
    assert view.termination is not None
    assert view.termination.step == 5


def test_invalid_events_are_ignored(tmp_path: Path) -> None:
    left(tmp_path, event("step", 1, step=9), event("step", 2, step="many"), event("commit", 3), event("evaluation", 4, metrics=7), '{"eve')
    [view] = traces_of(tmp_path, 0).replicas
    assert view.report is not None
    assert view.report.progress is not None
    assert (view.report.progress.step, view.report.checkpoint) == (9, None)
    assert traces_of(tmp_path, 1).last_event is None
    assert view.finished == datetime.fromtimestamp((NOW + timedelta(seconds=4)).timestamp(), UTC)


def test_termination_in_odd_places_are_left_out(tmp_path: Path) -> None:
    killed(tmp_path)
    left(tmp_path, event("step", 30, step=27), attempt=0, code=20)
    before = traces_of(tmp_path, 0)
    left(tmp_path, folder="attempts/0/elsewhere", attempt=0, code=10)
    left(tmp_path, folder=f"attempts/0/worker-{'9' * 5000}"[:200], attempt=0, code=10)
    left(tmp_path, folder="attempts/0/worker-5")
    os.mkfifo(tmp_path / "attempts/0/worker-5/termination.json")
    assert traces_of(tmp_path, 0) == before
