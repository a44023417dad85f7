"""The outcome of a replica, from the ends of its processes."""

import re
import time
from dataclasses import replace

import pytest

from muster_contract.codes import ExitCode
from muster_contract.events import ErrorEvent
from muster_trainer.supervisor.outcome import End, Outcome, is_early, judge, meaning
from muster_trainer.supervisor.output import Tail
from muster_trainer.supervisor.output_tail import peer_lost_pattern
from tests.support import descriptors
from tests.support.texts import absent

PEER_LOST = peer_lost_pattern(descriptors.runtime().framework.peer_lost)
GLOO = "RuntimeError: [pair.cc:538] Connection closed by peer [127.0.0.1]:31415"
TRACEBACK = ["Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "    boom()"]


def ended(
    code: int, rank: int = 0, *, requested: bool = False, tail: tuple[str, ...] = (), uses_contract: bool = True, error: str = ""
) -> End:
    """`code` as subprocess gives it: negative where a signal ended the process."""
    return End(
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        requested=requested,
        tail=tail,
        uses_contract=uses_contract,
        error=ErrorEvent(code=code, message=error) if error else None,
        peer_lost=PEER_LOST,
    )


def outcome(
    *ends: End, stop: bool = False, overdue: bool = False, own: bool = False, commits: tuple[str, ...] = (), saved: bool = False
) -> Outcome:
    return judge(ends, stop_requested=stop, overdue=overdue, own_program=own, commits=frozenset(commits), saved=saved)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        *((ended(int(code)), int(code)) for code in ExitCode),
        (ended(1), 10),
        (ended(2), 10),
        (ended(255), 10),
        (ended(1, tail=(GLOO,)), 20),
        (ended(10, tail=(GLOO,)), 10),
        (ended(10, error=f"the training code failed: {GLOO}"), 20),
        (ended(10, error="the training code failed: ValueError: x"), 10),
        (ended(11, error=GLOO), 11),
        (ended(10, error=GLOO, uses_contract=False), 10),
        (ended(-9), 137),
        (ended(-11), 139),
        (ended(-15), 143),
        (ended(-9, tail=(GLOO,)), 137),
        (ended(-6), 134),
        (ended(-6, tail=("[rank0]: ncclRemoteError: a call failed",)), 20),
        (ended(137), 137),
        (ended(1, tail=("Root Cause (first observed failure):", "  exitcode  : -9 (pid: 11)  (SIGKILL)")), 137),
        (ended(134, tail=("NCCL communicator was aborted on rank 0",)), 20),
    ],
)
def test_each_end_of_a_process_has_one_exit_code(end: End, code: int) -> None:
    assert meaning(end) == code


@pytest.mark.parametrize("code", [int(code) for code in ExitCode if code])
def test_a_contract_code_of_another_program_is_an_application_failure(code: int) -> None:
    end = ended(code, uses_contract=False)
    assert meaning(end) == 10
    assert outcome(end, own=True).code == 10
    message = outcome(ended(code, uses_contract=False, tail=("curl: the requested URL returned an error",)), own=True).message
    assert message.endswith("curl: the requested URL returned an error")


def test_a_lost_peer_of_another_program_is_read_from_its_output() -> None:
    assert meaning(ended(21, uses_contract=False, tail=(GLOO,))) == 20


def test_exit_code_21_of_another_program_does_not_mean_that_it_saved() -> None:
    assert outcome(ended(21, requested=True, uses_contract=False), stop=True, own=True).code == 22


def test_a_replica_is_completed_if_all_its_processes_end_with_0() -> None:
    assert outcome(ended(0), ended(0, 1)).code == 0


def test_the_first_failure_decides_the_outcome() -> None:
    result = outcome(ended(31, 1), ended(10, 0), ended(-15, 2, requested=True))
    assert (result.code, result.culprit and result.culprit.rank) == (31, 1)


def test_another_failure_decides_before_a_lost_peer() -> None:
    result = outcome(ended(20, 0), ended(-9, 1))
    assert (result.code, absent(result.message, "rank 1", "SIGKILL")) == (137, [])


def test_a_failure_before_the_stop_decides() -> None:
    assert outcome(ended(10), ended(21, 1, requested=True), stop=True).code == 10


@pytest.mark.parametrize(
    ("ends", "commits", "own", "code"),
    [
        pytest.param([ended(21, requested=True), ended(21, 1, requested=True)], [], False, 21, id="both say that they saved"),
        pytest.param([ended(21, requested=True), ended(0, 1, requested=True)], [], False, 21, id="one saved, one was done"),
        pytest.param([ended(0, requested=True)], [], False, 0, id="the trainer completed after all"),
        pytest.param([ended(0, requested=True)], ["Stop"], False, 21, id="stop commit and 0"),
        pytest.param([ended(-15, requested=True)], ["Stop"], True, 21, id="saved, then died of the signal"),
        pytest.param([ended(-15, requested=True)], [], True, 22, id="died of the signal"),
        pytest.param([ended(22, requested=True)], [], False, 22, id="says that it could not save"),
        pytest.param([ended(31, requested=True)], [], False, 22, id="storage failed while saving"),
        pytest.param([ended(21, requested=True), ended(-9, 1, requested=True)], [], False, 22, id="one had to be killed"),
        pytest.param([ended(0, requested=True)], [], True, 22, id="a script's 0 alone proves nothing"),
        pytest.param([ended(0, requested=True)], ["Final"], True, 0, id="a script that says it finished"),
        pytest.param([ended(0, requested=True)], ["Periodic"], True, 21, id="a script that saved after the request"),
    ],
)
def test_saves_decide_the_outcome_after_a_stop_request(ends: list[End], commits: list[str], own: bool, code: int) -> None:
    assert outcome(*ends, stop=True, own=own, commits=tuple(commits)).code == code


@pytest.mark.parametrize("own", [False, True])
def test_a_killed_process_has_saved_if_its_last_step_is_committed(own: bool) -> None:
    killed = ended(-9, requested=True)
    assert outcome(killed, stop=True, overdue=True, own=own, saved=True).code == 21
    assert outcome(killed, stop=True, overdue=True, own=own, commits=("Final",)).code == 21
    assert outcome(killed, stop=True, overdue=True, own=own, commits=("Periodic",)).code == 22


def test_a_process_that_stops_before_its_first_step_loses_no_step() -> None:
    result = outcome(ended(-15, requested=True), stop=True, saved=True)
    assert result.code == 21


def test_a_failure_before_the_stop_decides_even_if_all_is_saved() -> None:
    assert outcome(ended(10), stop=True, commits=("Final",), saved=True).code == 10


def test_a_replica_is_preempted_if_its_world_was_stopped_elsewhere() -> None:
    assert outcome(ended(21)).code == 21
    assert outcome(ended(22)).code == 22
    assert outcome(ended(0), own=True, commits=("Stop",)).code == 21


def test_the_message_of_a_killed_process_names_the_grace_period() -> None:
    result = outcome(ended(-9, requested=True), stop=True, overdue=True)
    assert (result.code, absent(result.message, "killed", "grace period")) == (22, [])


def test_the_error_event_of_a_rank_is_its_message() -> None:
    end = End(rank=3, exit_code=31, signal=None, requested=False, tail=["noise"], error=ErrorEvent(message="disk full"), uses_contract=True)
    assert outcome(end).message == "rank 3: disk full"


def test_a_failure_without_output_has_a_message() -> None:
    assert absent(outcome(ended(3)).message, "rank 0", "exit code 3") == []


def test_the_last_line_of_the_traceback_is_the_message() -> None:
    assert outcome(ended(1, tail=(*TRACEBACK, "KeyError: 'lr'"))).message == "rank 0: KeyError: 'lr'"


HOSTILE = (
    *("gloo ", "gloo connect ", "client socket has timed out after ", "error reported from ", "coordination service ", "Connection "),
    *("a: ", "sh: ", "a: line 1: '", "python", "python: can't open file '", "aA.", "a.AError", "x: error: ", "usage: ", "[", "E1111 1 1 /"),
    *('  File "', "UnavailableError ", "errors_impl.", "  exitcode  : ", " ", "x", "="),
)


SHORT_SECONDS = 0.5


@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored", "JAX"])
def test_a_mebibyte_of_hostile_output_is_read_in_a_short_time(strategy: str) -> None:
    """One of several times must be short, because other programs use the machine too. It is 0.04 s at most on a machine of 2026."""
    pattern = peer_lost_pattern(descriptors.runtime(strategy).framework.peer_lost)
    slow = {}
    for word in HOSTILE:
        for code in (1, 2, 126, 127):
            seconds = [_seconds_to_judge(word, code, pattern)]
            while seconds[-1] >= SHORT_SECONDS and len(seconds) < 10:
                seconds.append(_seconds_to_judge(word, code, pattern))
            if seconds[-1] >= SHORT_SECONDS:
                slow[word, code] = min(seconds)
    assert slow == {}


def _seconds_to_judge(word: str, code: int, peer_lost: re.Pattern[str]) -> float:
    hostile = (word * (5000 // len(word))).encode()
    lines = [*[hostile] * 210, b"usage: x", TRACEBACK[0].encode(), hostile]
    begun = time.process_time()
    tail = Tail()
    for line in lines:
        tail.add(line)
    end = End(rank=0, exit_code=code, signal=None, requested=False, tail=tail.lines(0), starting=True, peer_lost=peer_lost)
    outcome(end, own=True)
    return time.process_time() - begun


@pytest.mark.parametrize(
    ("reported", "code", "expected"),
    [
        (ExitCode.STORAGE_UNAVAILABLE, 1, ExitCode.STORAGE_UNAVAILABLE),
        (ExitCode.CHECKPOINT_DAMAGED, 1, ExitCode.CHECKPOINT_DAMAGED),
        (ExitCode.BAD_CONFIGURATION, 1, ExitCode.BAD_CONFIGURATION),
        (ExitCode.USER_ERROR, 1, ExitCode.USER_ERROR),
        (ExitCode.STORAGE_UNAVAILABLE, 3, ExitCode.USER_ERROR),  # caught, and another end
        (ExitCode.COMPLETED, 1, ExitCode.USER_ERROR),
        (ExitCode.PREEMPTED, 1, ExitCode.USER_ERROR),
        (None, 1, ExitCode.USER_ERROR),
    ],
)
def test_an_exception_of_the_library_gives_its_exit_code(reported: int | None, code: int, expected: ExitCode) -> None:
    raised = ErrorEvent(code=reported, message="no space is left")
    assert meaning(replace(ended(code, tail=tuple(TRACEBACK), uses_contract=False), error=raised)) == expected


def test_the_exception_that_a_peer_is_lost_gives_its_exit_code() -> None:
    printed = "muster_contract.errors.PeerLost: rank 0 is gone"
    assert meaning(ended(1, tail=(*TRACEBACK, printed), uses_contract=False)) == ExitCode.PEER_LOST


@pytest.mark.parametrize(
    ("code", "reported", "reason"),
    [
        (31, "StorageFull", "StorageFull"),
        (10, "LossNotFinite", "LossNotFinite"),
        (10, "StorageFull", "UserError"),  # it says something else than the code
        (31, "SomethingNewer", "StorageUnavailable"),
        (31, None, "StorageUnavailable"),
    ],
)
def test_the_reason_that_a_process_reports_counts_if_it_says_more_than_its_code(code: int, reported: str | None, reason: str) -> None:
    failed = replace(ended(code), error=ErrorEvent(code=code, message="x", reason=reported))
    assert outcome(failed).reason == reason


EARLY = replace(ended(0), is_early=True)


def test_code_of_the_user_that_ends_the_trainer_with_0_has_not_completed_the_job() -> None:
    failed = outcome(EARLY, ended(0, rank=1))
    assert (failed.code, failed.culprit) == (10, EARLY)
    assert absent(failed.message, "rank 0", "remove that call") == []
    asked = replace(EARLY, requested=True)
    assert outcome(asked, stop=True).code == 22
    assert outcome(asked, stop=True, saved=True).code == 21


@pytest.mark.parametrize(
    ("code", "completed", "early"),
    [
        pytest.param(0, False, True, id="ended by other code"),
        pytest.param(0, True, False, id="completed"),
        pytest.param(10, False, False, id="a failure"),
        pytest.param(None, False, False, id="a signal"),
    ],
)
def test_a_rank_ends_early_if_it_ends_with_0_and_has_not_completed(code: int | None, completed: bool, early: bool) -> None:
    assert is_early(code, completed=completed) is early
