"""The messages about a run, and their display without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from muster.api.figures import duration
from muster.api.status import AttemptRecord, CheckpointStatus, Notice, Phase, Progress, Reason, Restarts, TrainingJobStatus
from muster.local.display import PanelDisplay, PlainDisplay
from muster.local.messages import change_lines, failure, log_tail, progress_line, stopped, success
from muster_contract.codes import ExitCode
from muster_contract.notices import NoticeReason
from tests.support.texts import absent
from tests.unit.local.local_jobs import NOW, failed, job

RUNNING = TrainingJobStatus(
    phase=Phase.RUNNING,
    workers="2/2",
    progress=Progress(step=120, total_steps=345, loss="0.41270001", samples_per_second=5120.0, eta_seconds=83, updated_at=NOW),
    checkpoint=CheckpointStatus(step=100, path="p", committed_at=NOW),
    restarts=Restarts(total=1),
)
BEGUN = AttemptRecord(attempt=1, start_time=NOW)


def test_the_end_of_an_attempt_is_shown_once_when_its_cause_is_settled() -> None:
    empty = TrainingJobStatus()
    unsettled = TrainingJobStatus(attempts=(failed(0, settled=False),))
    settled = TrainingJobStatus(attempts=(failed(0),))
    assert change_lines(empty, unsettled) == []
    [line] = change_lines(unsettled, settled)
    assert absent(line, "worker-1 was killed", "ended by signal 9") == []
    assert change_lines(settled, settled) == []


def test_a_resume_is_shown_with_the_number_of_lost_steps() -> None:
    before = TrainingJobStatus(
        attempts=(
            failed(0),
            BEGUN,
        )
    )
    after = TrainingJobStatus(
        attempts=(
            failed(0),
            replace(BEGUN, step_resumed=320, steps_lost=4),
        )
    )
    [line] = change_lines(before, after)
    assert absent(line, "attempt 1", "step 320", "4 steps") == []


def test_a_later_attempt_that_starts_at_step_0_is_shown() -> None:
    later = replace(BEGUN, step_resumed=0)
    first = replace(later, attempt=0)
    [line] = change_lines(TrainingJobStatus(), TrainingJobStatus(attempts=(later,)))
    assert absent(line, "attempt 1", "no checkpoint", "step 0") == []
    assert change_lines(TrainingJobStatus(), TrainingJobStatus(attempts=(first,))) == []


def test_notices_are_shown_once() -> None:
    after = TrainingJobStatus(notices=(Notice(reason=NoticeReason.CHECKPOINT_DAMAGED, message="a checkpoint was passed over"),))
    [line] = change_lines(TrainingJobStatus(), after)
    assert "a checkpoint was passed over" in line
    assert change_lines(after, after) == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_appear_at_phase_changes_and_every_few_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    plain = PlainDisplay(out, clock)
    plain.show(job(TrainingJobStatus(phase=Phase.STARTING, message="attempt 0 waits")))
    plain.show(job(RUNNING))
    advanced = replace(RUNNING, progress=Progress(step=121, updated_at=NOW))
    plain.show(job(advanced))
    clock.now = 5.0
    plain.show(job(advanced))
    plain.show(job(TrainingJobStatus(phase=Phase.SUCCEEDED)))
    starting, running, later = out.getvalue().splitlines()
    assert absent(starting, "attempt 0 waits") == []
    figures = ("120/345", "0.4127", "5,120 samples/s", "1:23", "attempt 0", "2/2", "step 100", "restarts 1")
    assert absent(running, *figures) == []
    assert absent(later, "step 121", "2/2", "step 100") == []


def test_a_quiet_display_shows_no_progress() -> None:
    out = io.StringIO()
    plain = PlainDisplay(out, Clock(), progress=False)
    plain.show(job(RUNNING))
    plain.line("attempt 0 ended")
    assert out.getvalue() == "attempt 0 ended\n"


def test_a_display_without_a_reader_does_not_fail() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    plain = PlainDisplay(Gone(), Clock())
    plain.line("one")
    plain.show(job(RUNNING))


def test_a_failure_shows_the_first_failed_replica_and_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    status = TrainingJobStatus(phase=Phase.FAILED, message="the budget is used up", attempts=(failed(0),))
    lines = failure(job(status), "job.yaml", log)
    assert absent(lines[0], "tiny failed", "the budget is used up") == []
    assert absent(lines[1], "worker-1", "ended by signal 9") == []
    assert str(log) in lines[2]
    assert lines[3:] == [f"  | line {number}" for number in range(85, 100)]


def test_an_invalid_job_is_shown_once_with_the_name_of_its_file(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("muster: there is no task 'x'\n")
    record = failed(0, reason=Reason.BAD_CONFIGURATION, message="there is no task 'x'")
    status = TrainingJobStatus(phase=Phase.FAILED, message="worker-1: there is no task 'x'", attempts=(record,))
    lines = failure(job(status), "jobs/a.yaml", log)
    assert [line.count("there is no task 'x'") for line in lines] == [1, 0]
    assert absent(lines[0], "jobs/a.yaml", "tiny", "worker-1") == []
    assert str(log) in lines[1]


def test_the_end_of_a_log_shows_an_error_once_and_the_last_state_of_a_bar(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    error = "Traceback (most recent call last):\n  at line 4\nValueError: NaN\n"
    log.write_bytes(f"start\n{error}again\r\n1 %\r2 %\r3 %{error}".encode())
    assert log_tail(log) == ["again", "3 %Traceback (most recent call last):", "  at line 4", "ValueError: NaN"]
    log.write_text("")
    assert log_tail(log) == []


def test_the_line_about_a_restart_leaves_out_its_cause() -> None:
    record = failed(0, reason=Reason.USER_ERROR, message="rank 0: KeyError: 'b'")
    message = "worker-1 failed: rank 0: KeyError: 'b'. Attempt 1 begins at 10:00:01 UTC"
    status = TrainingJobStatus(phase=Phase.RECOVERING, message=message, attempts=(record, BEGUN))
    assert progress_line(status) == "recovering: attempt 1 begins at 10:00:01 UTC"


def test_a_stop_shows_the_saved_step_and_the_command_to_continue() -> None:
    again = "muster run job.yaml --resume"
    [saved] = stopped(job(RUNNING), ExitCode.PREEMPTED, again)
    assert absent(saved, "step 100", again) == []
    assert absent(stopped(job(RUNNING), ExitCode.PREEMPTED_NOT_SAVED, again)[0], "checkpoint of step 100") == []
    assert "nothing was saved" in stopped(job(TrainingJobStatus()), ExitCode.PREEMPTED_NOT_SAVED, again)[0]
    assert "before the first step" in stopped(job(TrainingJobStatus()), ExitCode.PREEMPTED, again)[0]


def test_a_success_has_a_summary() -> None:
    progress = Progress(step=345, loss="0.0912", metrics={"accuracy": 0.97222}, updated_at=NOW)
    status = TrainingJobStatus(phase=Phase.SUCCEEDED, progress=progress, restarts=Restarts(total=2))
    lines = "\n".join(success(job(status), Path("runs/tiny")))
    assert absent(lines, "tiny succeeded", "345 steps", "loss 0.0912", "2 restarts", "accuracy 0.9722", "runs/tiny") == []


def test_durations_are_short() -> None:
    assert [duration(seconds) for seconds in (0.4, 59, 60, 185, 7385, 255_348)] == [
        "0 s",
        "59 s",
        "1:00",
        "3:05",
        "2:03:05",
        "2 d 22 h",
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    PlainDisplay(out, Clock()).line("  | boom \x1b]0;owned\x07\x1b[2J\n  | next")
    assert out.getvalue() == "  | boom \\x1b]0;owned\\x07\\x1b[2J\n  | next\n"
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    PanelDisplay(console).line("boom \x1b]0;owned\x07")
    assert isinstance(console.file, io.StringIO)
    assert "\x07" not in console.file.getvalue()
