"""The history beside checkpoints is untrusted: it is read within bounds, without following links, and shown as text."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster.tools.report.history import ReportError
from muster.tools.report.job import JobView, Log, Point, job_page, points_in
from muster.tools.report.page import as_html
from muster.tools.report.recorded import MOST_BYTES, Recorded, read_recorded
from muster_contract.history import MOST_EVENT_BYTES

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)


NAMESPACE, NAME = "default", "digits"


def read(root: Path, **options: Any) -> Recorded:
    return read_recorded(root, NAMESPACE, NAME, **options)


def leave(folder: Path, *, attempt: int = 0, index: int = 0, steps: range = range(1, 6), **changed: Any) -> Path:
    """Writes the files that a worker leaves of an attempt."""
    created: datetime = changed.pop("created", CREATED)
    replica = folder / "history" / f"{created:%Y%m%dT%H%M%SZ}-{attempt:04d}" / f"worker-{index}"
    replica.mkdir(parents=True)
    begin = created.timestamp() + 100 * attempt
    origin = {"role": "worker", "index": index, "attempt": attempt, "rank": index}
    events = [{"event": "resumed", "time": begin, "step": steps.start - 1, **origin}]
    events += [{"event": "step", "time": begin + n, "step": n, "loss": "0.5", "samples": 8, "seconds": 1.0, **origin} for n in steps]
    (replica / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (replica / "log.txt").write_text(f"attempt {attempt} of worker-{index}\n")
    record = {
        "job": "default/digits",
        "jobUid": "uid",
        "jobCreated": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "strategy": "DDP",
        "role": "worker",
        "index": index,
        "attempt": attempt,
        "began": begin,
        "ended": begin + 50,
        "termination": {"code": 0, "reason": "Completed", "step": steps.stop - 1, "loss": "0.5"},
        **changed,
    }
    (replica / "replica.json").write_text(json.dumps(record))
    return replica


def test_the_attempts_of_a_deleted_job_become_its_history_and_its_status(tmp_path: Path) -> None:
    words = {"code": 10, "reason": "UserError", "message": "ValueError: no", "endedAt": CREATED.timestamp() + 40}
    leave(tmp_path / NAMESPACE / NAME, attempt=0, termination=words)
    leave(
        tmp_path / NAMESPACE / NAME, attempt=0, index=1, termination={"code": 20, "reason": "PeerLost", "endedAt": CREATED.timestamp() + 41}
    )
    leave(tmp_path / NAMESPACE / NAME, attempt=1, steps=range(4, 11))
    recorded = read(tmp_path)
    status = recorded.status()
    assert (recorded.state, status.phase.value, status.attempt) == ("Succeeded", "Succeeded", 1)
    leave(tmp_path / NAMESPACE / NAME, attempt=2, termination={"code": 21, "reason": "Preempted"})
    assert read(tmp_path).state == "Stopped", "a job that a user deletes is no preemption"
    assert status.progress is not None
    assert (status.progress.step, status.progress.loss) == (10, "0.5")
    first = status.attempts[0]
    assert (first.replica, first.message, first.reason and first.reason.value) == ("worker-0", "ValueError: no", "UserError")
    assert sorted(recorded.history.curve) == list(range(1, 11))
    assert [step.step for step in recorded.history.redone] == [4, 5]
    assert [each.log for each in recorded.last] == [("attempt 1 of worker-0",)]


def test_jobs_of_one_name_are_separated_by_their_creation_times(tmp_path: Path) -> None:
    later = datetime(2026, 11, 22, tzinfo=UTC)
    leave(tmp_path / NAMESPACE / NAME, steps=range(1, 6))
    leave(tmp_path / NAMESPACE / NAME, steps=range(1, 9), created=later)
    assert max(read(tmp_path).history.curve) == 8
    assert max(read(tmp_path, created=CREATED).history.curve) == 5
    with pytest.raises(ReportError, match="has no history of the job"):
        read(tmp_path, created=datetime(2026, 11, 23, tzinfo=UTC))


def test_a_folder_without_a_history_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="supervisors write it when an attempt has ended"):
        read(tmp_path)


def test_links_pipes_large_files_and_wrong_records_are_left_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    job = tmp_path / "storage" / NAMESPACE / NAME
    linked = leave(job, attempt=0)
    (linked / "log.txt").unlink()
    (linked / "log.txt").symlink_to(secret)
    piped = leave(job, attempt=1)
    (piped / "log.txt").unlink()
    os.mkfifo(piped / "log.txt")
    large = leave(job, attempt=2)
    with (large / "events.jsonl").open("ab") as file:
        file.truncate(MOST_EVENT_BYTES + 1)
    (leave(job, attempt=3) / "replica.json").write_text("[" * 100_000)
    leave(job, attempt=4, role="ps")  # another role than that of its folder
    outside = leave(tmp_path / "elsewhere", attempt=5)
    (job / "history" / outside.parent.name).symlink_to(outside.parent)
    recorded = read(tmp_path / "storage")
    assert [(each.record.attempt, each.log) for each in recorded.replicas] == [(0, ()), (1, ()), (2, ("attempt 2 of worker-0",))]
    assert recorded.replicas[2].events == ()


def test_events_with_another_attempt_than_their_folder_are_left_out(tmp_path: Path) -> None:
    replica = leave(tmp_path / NAMESPACE / NAME)
    with (replica / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "step", "time": 1.0, "rank": 0, "role": "worker", "index": 0, "attempt": 7, "step": 99}) + "\n")
    assert max(read(tmp_path).history.curve) == 5


def test_the_page_shows_hostile_text_as_text(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    replica = leave(tmp_path / NAMESPACE / NAME, termination={"code": 10, "reason": script, "message": script})
    (replica / "log.txt").write_text(f"{script}\x1b[31m\n")
    recorded = read(tmp_path)
    logs = [Log(script, each.log) for each in recorded.last]
    view = JobView(script, recorded.state, recorded.status(), history=recorded.history, logs=logs, explanation=[script], notes=[script])
    page = as_html(job_page(view))
    assert script not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page


def test_log_lines_of_the_bundled_trainer_are_points_of_the_curve() -> None:
    lines = [
        (1.0, "epoch 1 of 3: step 23, loss 1.5000, 2% of the time waiting for samples"),
        (2.0, "[rank 0] epoch 2 of 3: step 46, loss nan"),
        (3.0, "epoch 3 of 3: step 69, loss e.e.e"),
        (4.0, "step 7, loss 3"),
    ]
    first, second = points_in(lines)
    assert first == Point(1.0, 23, 1.5)
    assert (second.step, str(second.loss)) == (46, "nan")


def test_a_job_without_steps_has_a_page(tmp_path: Path) -> None:
    leave(tmp_path / NAMESPACE / NAME, steps=range(1, 1))
    recorded = read(tmp_path)
    page = as_html(job_page(JobView("digits", "Pending", recorded.status())))
    assert "digits: Pending" in page


def test_extreme_numbers_do_not_prevent_the_page(tmp_path: Path) -> None:
    replica = leave(tmp_path / NAMESPACE / NAME, attempt=0)
    leave(tmp_path / NAMESPACE / NAME, attempt=1, steps=range(3, 9))
    origin = {"event": "step", "rank": 0, "role": "worker", "index": 0, "attempt": 0}
    with (replica / "events.jsonl").open("a") as file:
        for step, time, loss in ((2**53, 1e11, "1e308"), (7, 0, "-1e308"), (8, 1.0, "inf"), (9, 2.0, "1e-300")):
            file.write(json.dumps({**origin, "step": step, "time": time, "loss": loss, "seconds": 1e9, "samples": 2**53}) + "\n")
    recorded = read(tmp_path)
    assert "data-plot=" in as_html(job_page(JobView("digits", recorded.state, recorded.status(), history=recorded.history)))


@pytest.mark.parametrize("linked", ["default", "default/digits", "default/digits/history"])
def test_links_in_the_storage_are_not_followed_to_other_jobs(tmp_path: Path, linked: str) -> None:
    leave(tmp_path / "other" / "digits")
    link = tmp_path / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / linked.replace("default", "other"))
    with pytest.raises(ReportError):
        read(tmp_path)


def test_only_the_newest_part_of_a_large_history_is_read(tmp_path: Path) -> None:
    job = tmp_path / NAMESPACE / NAME
    for attempt in range(10):
        with (leave(job, attempt=attempt) / "events.jsonl").open("a") as file:
            file.write("x" * (MOST_EVENT_BYTES - 10_000))
    read_steps = [bool(each.events) for each in read(tmp_path).replicas]
    assert read_steps == [False] * (10 - MOST_BYTES // MOST_EVENT_BYTES) + [True] * (MOST_BYTES // MOST_EVENT_BYTES)
    assert [each.events for each in read(tmp_path, brief=True).replicas] == [()]
