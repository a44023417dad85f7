"""What the ends of a replica's processes mean."""

import pytest

from muster_trainer.contract import ExitCode
from muster_trainer.supervisor.outcome import End, Outcome, judge, meaning

GLOO = "RuntimeError: [pair.cc:538] Connection closed by peer [127.0.0.1]:31415"
TRACEBACK = ["Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "    boom()"]


def ended(code: int, rank: int = 0, *, asked: bool = False, tail: tuple[str, ...] = (), speaks: bool = True) -> End:
    """`code` as subprocess gives it: negative where a signal ended the process."""
    return End(
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        asked=asked,
        tail=tail,
        speaks=speaks,
    )


def outcome(
    *ends: End, stop: bool = False, overdue: bool = False, own: bool = False, commits: tuple[str, ...] = (), saved: bool = False
) -> Outcome:
    return judge(ends, stop_asked=stop, overdue=overdue, own_program=own, commits=frozenset(commits), saved=saved)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        *((ended(int(code)), int(code)) for code in ExitCode),
        (ended(1), 10),
        (ended(2), 10),
        (ended(255), 10),
        (ended(1, tail=(GLOO,)), 20),
        (ended(10, tail=(GLOO,)), 10),
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
def test_an_end_has_one_meaning(end: End, code: int) -> None:
    assert meaning(end) == code


@pytest.mark.parametrize("code", [int(code) for code in ExitCode if code])
def test_a_code_of_the_contract_is_an_application_failure_where_the_process_does_not_speak_it(code: int) -> None:
    end = ended(code, speaks=False)
    assert meaning(end) == 10
    assert outcome(end, own=True).code == 10
    assert f"exit code {code}" in outcome(end, own=True).message
    said = outcome(ended(code, speaks=False, tail=("curl: the requested URL returned an error",)), own=True).message
    assert f"exit code {code}" in said
    assert "the requested URL" in said


def test_a_lost_peer_is_still_read_from_the_output_where_the_code_does_not_count() -> None:
    assert meaning(ended(21, speaks=False, tail=(GLOO,))) == 20


def test_a_program_that_does_not_speak_the_contract_has_not_saved_because_it_ends_with_21() -> None:
    assert outcome(ended(21, asked=True, speaks=False), stop=True, own=True).code == 22


def test_all_zero_is_completed() -> None:
    assert outcome(ended(0), ended(0, 1)).code == 0


def test_the_first_failure_decides_and_not_the_siblings_that_were_ended_for_it() -> None:
    found = outcome(ended(31, 1), ended(10, 0), ended(-15, 2, asked=True))
    assert (found.code, found.culprit and found.culprit.rank) == (31, 1)


def test_a_lost_peer_gives_way_to_the_failure_it_is_the_echo_of() -> None:
    found = outcome(ended(20, 0), ended(-9, 1))
    assert (found.code, found.message) == (137, "rank 1: ended by signal 9 (SIGKILL)")


def test_a_failure_before_the_stop_is_not_hidden_by_it() -> None:
    assert outcome(ended(10), ended(21, 1, asked=True), stop=True).code == 10


@pytest.mark.parametrize(
    ("ends", "commits", "own", "code"),
    [
        pytest.param([ended(21, asked=True), ended(21, 1, asked=True)], [], False, 21, id="both say that they saved"),
        pytest.param([ended(21, asked=True), ended(0, 1, asked=True)], [], False, 21, id="one saved, one was done"),
        pytest.param([ended(0, asked=True)], [], False, 0, id="the trainer completed after all"),
        pytest.param([ended(0, asked=True)], ["Stop"], False, 21, id="stop commit and 0"),
        pytest.param([ended(-15, asked=True)], ["Stop"], True, 21, id="saved, then died of the signal"),
        pytest.param([ended(-15, asked=True)], [], True, 22, id="died of the signal"),
        pytest.param([ended(22, asked=True)], [], False, 22, id="says that it could not save"),
        pytest.param([ended(31, asked=True)], [], False, 22, id="storage failed while saving"),
        pytest.param([ended(21, asked=True), ended(-9, 1, asked=True)], [], False, 22, id="one had to be killed"),
        pytest.param([ended(0, asked=True)], [], True, 22, id="a script's 0 alone proves nothing"),
        pytest.param([ended(0, asked=True)], ["Final"], True, 0, id="a script that says it finished"),
        pytest.param([ended(0, asked=True)], ["Periodic"], True, 21, id="a script that saved after the request"),
    ],
)
def test_after_a_request_to_stop_what_was_saved_decides(ends: list[End], commits: list[str], own: bool, code: int) -> None:
    assert outcome(*ends, stop=True, own=own, commits=tuple(commits)).code == code


@pytest.mark.parametrize("own", [False, True])
def test_one_that_was_killed_in_an_evaluation_has_saved_when_its_last_step_was_or_all_are_done(own: bool) -> None:
    killed = ended(-9, asked=True)
    assert outcome(killed, stop=True, overdue=True, own=own, saved=True).code == 21
    assert outcome(killed, stop=True, overdue=True, own=own, commits=("Final",)).code == 21
    assert outcome(killed, stop=True, overdue=True, own=own, commits=("Periodic",)).code == 22


def test_that_all_is_saved_does_not_make_a_failure_before_the_stop_a_stop() -> None:
    assert outcome(ended(10), stop=True, commits=("Final",), saved=True).code == 10


def test_a_replica_whose_world_was_stopped_elsewhere_is_preempted_too() -> None:
    assert outcome(ended(21)).code == 21
    assert outcome(ended(22)).code == 22
    assert outcome(ended(0), own=True, commits=("Stop",)).code == 21


def test_a_process_killed_when_the_grace_was_over_says_so() -> None:
    found = outcome(ended(-9, asked=True), stop=True, overdue=True)
    assert (found.code, found.message) == (
        22,
        "asked to stop, and did not save: killed when the grace period was over",
    )


def test_the_error_event_of_a_rank_is_its_message() -> None:
    end = End(rank=3, exit_code=31, signal=None, asked=False, tail=["noise"], error={"message": "disk full"}, speaks=True)
    assert outcome(end).message == "rank 3: disk full"


def test_a_silent_failure_still_gets_a_message() -> None:
    assert outcome(ended(3)).message == "rank 0: ended with exit code 3 and said nothing"


def test_the_last_line_of_the_traceback_is_the_message() -> None:
    assert outcome(ended(1, tail=(*TRACEBACK, "KeyError: 'lr'"))).message == "rank 0: KeyError: 'lr'"
