"""The files that a supervisor leaves of each attempt beside the checkpoints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.tools.report.history import ReportError
from muster.tools.report.recorded import read_recorded
from muster.tools.report.storage import storage_of
from muster.tools.ui.sources import DeletedJobs
from muster_contract.environment import ReplicaEnvironment
from muster_contract.history import MOST_EVENT_BYTES, MOST_RECORD_BYTES, STORED_ATTEMPTS
from muster_trainer.supervisor.history_writer import HistoryWriter
from tests.support.object_store import BUCKET, object_store
from tests.support.supervisors import SLEEPS, Coordinator, SupervisorRun
from tests.support.waiting import wait_until

FENCE = "20261121T111614Z-{:04d}"
STEPS = """
import os
fd = int(os.environ["MUSTER_EVENTS_FD"])
for step in range(1, {count} + 1):
    os.write(fd, b'{{"event": "step", "time": %d, "step": %d, "loss": "0.5", "samples": 8, "seconds": 0.1}}\\n' % (step, step))
print("x" * 5000)
for line in range(300):
    print("line", line)
raise SystemExit({code})
"""


@pytest.fixture(autouse=True)
def ample_time(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors wait long for their files. By default they wait a second for a folder, which is too little on a busy machine."""
    folder = tmp_path_factory.mktemp("site")
    limits = "from muster_trainer.supervisor import history_writer as history\nhistory.FOLDER_SECONDS = history.STORE_SECONDS = 100.0\n"
    (folder / "sitecustomize.py").write_text(limits)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))


def left(folder: Path, attempt: int) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The record, the events of the processes and the last lines of worker-0."""
    replica = folder / "history" / FENCE.format(attempt) / "worker-0"
    events = [json.loads(line) for line in (replica / "events.jsonl").read_text().splitlines()]
    return json.loads((replica / "replica.json").read_text()), [each for each in events if each["event"] != "load"], log_of(replica)


def log_of(replica: Path) -> list[str]:
    return (replica / "log.txt").read_text().splitlines()


def test_each_attempt_leaves_its_events_its_last_lines_and_how_it_ended(
    run: SupervisorRun, coordinator: Coordinator, tmp_path: Path
) -> None:
    storage = tmp_path / "storage" / "default" / "job"
    coordinator.reply = {"attempt": 3, "intervalSeconds": 0.2, "graceSeconds": 0.0}
    run.start(STEPS.format(count=3, code=20), processes=2, MUSTER_COORDINATOR=coordinator.url, MUSTER_CHECKPOINT_DIR=str(storage))
    coordinator.wait_for_report(lambda report: report.get("waiting"))
    coordinator.reply = {"attempt": 4, "intervalSeconds": 0.2, "graceSeconds": 0.0, "world": {"MUSTER_ATTEMPT": "4"}}
    coordinator.wait_for_report(lambda report: report.get("waiting") and report["termination"]["attempt"] == 4)
    coordinator.reply = {"attempt": 4, "intervalSeconds": 0.2, "graceSeconds": 0.0, "end": True}
    assert run.wait() == 20
    for attempt in (3, 4):
        record, events, log = left(storage, attempt)
        assert (record["job"], record["attempt"], record["termination"]["code"], record["everyStep"]) == ("default/test", attempt, 20, True)
        assert {event["attempt"] for event in events} == {attempt}
        assert sorted((event["rank"], event["step"]) for event in events) == [(rank, step) for rank in (0, 1) for step in (1, 2, 3)]
        assert len(log) == 200
        assert {line.partition(" line")[0] for line in log} <= {"[rank 0]", "[rank 1]"}


def test_the_history_has_what_the_replica_took_of_its_machine(run: SupervisorRun, tmp_path: Path) -> None:
    run.start("print('ready', flush=True)\nwhile True: pass", MUSTER_CHECKPOINT_DIR=str(tmp_path / "default/job"))
    run.printed("ready")
    wait_until(lambda: len([event for event in run.recorded() if event["event"] == "load"]) >= 2, "two samples of the load")
    os.kill(run.pid, signal.SIGTERM)
    run.wait()
    loads = read_recorded(tmp_path, "default", "job").history.loads
    assert len(loads) >= 2
    assert loads[-1].cpus > 0.01
    assert loads[-1].memory_bytes > 4 << 20
    assert loads[-1].received_bytes_per_second is None  # it shares the network of this machine


def test_of_many_steps_every_second_fourth_and_so_on_stays_and_the_last_one(run: SupervisorRun, tmp_path: Path) -> None:
    run.start(STEPS.format(count=10_001, code=0), MUSTER_CHECKPOINT_DIR=str(tmp_path))
    assert run.wait() == 0
    record, events, log = left(tmp_path, 3)
    assert [event["step"] for event in events] == [*range(4, 10_001, 4), 10_001]
    assert record["everyStep"] is False
    assert (tmp_path / "history" / FENCE.format(3) / "worker-0" / "events.jsonl").stat().st_size < MOST_EVENT_BYTES
    assert log[-1] == "line 299"


def test_a_program_cannot_make_the_history_large(run: SupervisorRun, tmp_path: Path) -> None:
    source = """
import json, os, sys
fd = os.fdopen(int(os.environ["MUSTER_EVENTS_FD"]), "w", buffering=1)
for number in range(600):
    print(json.dumps({"event": "error", "message": "x" * 100000}), file=fd)
    print(json.dumps({"event": f"own-{number}", "text": "x" * 1000}), file=fd)
    print(json.dumps({"event": "evaluation", "step": number, "metrics": {f"m{n}": 0.1 for n in range(100)}}), file=fd)
for _ in range(500):
    print("\\x1b" * 60000)
"""
    run.start(source, MUSTER_CHECKPOINT_DIR=str(tmp_path))
    assert run.wait() == 0
    replica = tmp_path / "history" / FENCE.format(3) / "worker-0"
    assert (replica / "events.jsonl").stat().st_size < MOST_EVENT_BYTES
    assert {len(line) for line in log_of(replica)} == {1000}
    assert (replica / "log.txt").stat().st_size < 1 << 20


def test_the_newest_attempts_stay(run: SupervisorRun, tmp_path: Path) -> None:
    older = [f"20261120T111614Z-{attempt:04d}" for attempt in range(STORED_ATTEMPTS + 2)]
    newer = FENCE.format(9)
    for name in (*older, newer, "notes"):
        (tmp_path / "history" / name / "worker-0").mkdir(parents=True)
    assert run.start("", MUSTER_CHECKPOINT_DIR=str(tmp_path)).wait() == 0
    names = sorted(path.name for path in (tmp_path / "history").iterdir())
    assert names == [*older[-(STORED_ATTEMPTS - 1) :], FENCE.format(3), newer, "notes"]


def test_storage_that_takes_nothing_is_a_line_in_the_log(run: SupervisorRun, tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    assert run.start("", MUSTER_CHECKPOINT_DIR=str(tmp_path)).wait() == 0
    assert "the history of attempt 3 cannot be written" in run.err.read_text()
    assert run.termination_message()["code"] == 0


def test_a_pipe_and_a_link_in_the_storage_neither_hold_the_supervisor_nor_lead_it_elsewhere(run: SupervisorRun, tmp_path: Path) -> None:
    replica = tmp_path / "history" / FENCE.format(3) / "worker-0"
    replica.mkdir(parents=True)
    os.mkfifo(replica / "events.jsonl")
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (replica / ".log.txt.new").symlink_to(victim)
    assert run.start("", MUSTER_CHECKPOINT_DIR=str(tmp_path)).wait() == 0
    assert "cannot be written" in run.err.read_text()
    assert victim.read_text() == "as it was"


def test_a_replica_that_is_asked_to_go_leaves_its_history_too(run: SupervisorRun, tmp_path: Path) -> None:
    run.start(SLEEPS, MUSTER_CHECKPOINT_DIR=str(tmp_path))
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert left(tmp_path, 3)[2] == ["ready"]


def test_the_history_of_a_job_with_s3_storage_is_there_and_muster_reads_it(
    run: SupervisorRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store(tmp_path / "s3") as server:
        jobs = server.objects / "runs" / "default"
        older = [f"20261120T111614Z-{attempt:04d}" for attempt in range(STORED_ATTEMPTS + 1)]
        for name in older:
            (jobs / "job" / "history" / name / "worker-0").mkdir(parents=True)
            (jobs / "job" / "history" / name / "worker-0" / "log.txt").write_text("old")
        storage = f"s3://{BUCKET}/runs"
        run.start(STEPS.format(count=3, code=0), MUSTER_CHECKPOINT_DIR=f"{storage}/default/job", **server.variables)
        assert run.wait() == 0
        assert run.err.read_text() == ""
        record, events, log = left(jobs / "job", 3)
        assert (record["attempt"], record["termination"]["code"], len(events), len(log)) == (3, 0, 3, 200)
        kept = sorted(path.name for path in (jobs / "job" / "history").iterdir() if any(path.rglob("log.txt")))
        assert kept == [*older[-(STORED_ATTEMPTS - 1) :], FENCE.format(3)]

        large = jobs / "job" / "history" / FENCE.format(3) / "worker-1"
        large.mkdir()
        (large / "replica.json").write_text("[" * (MOST_RECORD_BYTES + 1))
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        bucket = storage_of(storage)
        assert (bucket.names(), bucket.names("default")) == (["default"], ["job"])
        recorded = read_recorded(bucket, "default", "job")
        assert [(each.label, each.record.attempt, each.log[-1]) for each in recorded.replicas] == [("worker-0", 3, "line 299")]
        assert sorted(recorded.history.curve) == [1, 2, 3]
        rows = asyncio.run(DeletedJobs(bucket, None).listed(None))
        assert [(row.namespace, row.name, row.state) for row in rows] == [("default", "job", "Succeeded")]
        for namespace, name in (("default", "other"), ("default", "../default/job"), ("..", "job"), ("", "default/job")):
            with pytest.raises(ReportError, match="has no history"):
                read_recorded(bucket, namespace, name)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(ReportError, match="SignatureDoesNotMatch"):
            read_recorded(storage_of(storage), "default", "job")
        wrong = {**server.variables, "AWS_SECRET_ACCESS_KEY": "wrong"}
        assert run.start("", MUSTER_CHECKPOINT_DIR=f"{storage}/default/job", **wrong).wait() == 0
        assert "the history of attempt 3 cannot be written to s3://" in run.err.read_text()


def test_a_write_that_never_ends_delays_the_end_for_a_bounded_time(run: SupervisorRun, tmp_path: Path) -> None:
    """The write waits for the log of the supervisor, into which it writes its failure."""
    (tmp_path / "history").write_text("a file")
    environ = {**run.environment(processes=1, entry={"script": "x.py"}, grace=1), "MUSTER_CHECKPOINT_DIR": str(tmp_path)}
    waits, go_on = threading.Event(), threading.Event()

    def say(message: str) -> None:
        waits.set()
        go_on.wait(60)

    writer = HistoryWriter(say)
    began = time.monotonic()
    writer.write(ReplicaEnvironment.from_environment(environ), {"log.txt": b""}, {})
    assert waits.wait(60)
    writer.finish(0.2)
    assert not go_on.is_set()
    assert time.monotonic() - began < 30
    go_on.set()
    writer.finish(60)
