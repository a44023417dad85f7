"""The line in the termination log."""

import json
import os
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from muster_contract.codes import reason_of
from muster_contract.errors import BadConfiguration
from muster_contract.events import Commit, CommitReason, Evaluation, Resumed
from muster_contract.reports import MAX_TERMINATION_MESSAGE, Progress, TerminationMessage
from muster_contract.run_state import RunState
from muster_contract.wire import parse
from muster_trainer.supervisor.termination import termination_of, termination_of_error, to_line, write

counts = st.none() | st.integers(min_value=0, max_value=2**53)
anything = st.text() | st.text(alphabet="\U0001f600\0\n\u2028é", min_size=3000, max_size=5000)


texts = st.text(max_size=64) | st.just("\U0001f600" * 64)
metrics = st.just({"accuracy": 0.5}) | st.just({f"{number}" + "\U0001f600" * 8: number / 7 for number in range(64)})
states = st.builds(
    RunState,
    progress=st.none() | st.builds(Progress, step=st.integers(0, 2**53), loss=texts),
    checkpoint=st.none() | st.builds(Commit, step=st.integers(0, 2**53), path=anything, reason=st.sampled_from(CommitReason), role=texts),
    evaluation=st.none() | st.builds(Evaluation, step=st.integers(0, 2**53), metrics=metrics, role=texts),
    resumed=st.none() | st.builds(Resumed, step=st.integers(0, 2**53)),
)


@given(
    code=st.sampled_from([0, 10, 11, 20, 21, 22, 30, 31, 137]),
    message=anything,
    attempt=counts,
    state=states,
    ends=st.fixed_dictionaries({"rank": counts, "exit_code": counts}),
)
def test_a_termination_message_is_one_line_of_json_within_the_limit_of_kubernetes(
    code: int, message: str, attempt: int | None, state: RunState, ends: dict[str, int | None]
) -> None:
    words = replace(termination_of(code, message, attempt, state), **ends)
    line = to_line(words)
    assert len(line) <= MAX_TERMINATION_MESSAGE
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    document = json.loads(line)
    assert document["code"] == words.code
    assert document["reason"] == reason_of(words.code)
    message = document.get("message", "")
    assert message == words.message or words.message.startswith(message.removesuffix("…"))
    assert document.get("step") == words.step


def test_the_newest_commit_is_the_last_field_that_is_left_out() -> None:
    wide = "\U0001f600" * 64
    commit = Commit(step=320, path="\U0001f600" * 200, reason=CommitReason.FINAL)
    evaluation = Evaluation(step=330, metrics={f"{number}" + "\U0001f600" * 8: number / 7 for number in range(64)})
    state = RunState(progress=Progress(step=340, loss=wide), checkpoint=commit, evaluation=evaluation)
    line = to_line(termination_of(20, "peer lost " * 100, 3, state))
    assert len(line) <= MAX_TERMINATION_MESSAGE
    words = parse(TerminationMessage, line)
    assert (words.step, words.commit, words.evaluation) == (340, commit, None)
    assert words.message.startswith("peer lost")
    farther = replace(commit, role="\U0001f600" * 253)
    least = parse(TerminationMessage, to_line(termination_of(20, "peer lost", 3, replace(state, checkpoint=farther))))
    assert (least.message, least.step, least.loss, least.commit, least.evaluation) == ("peer lost", 340, None, None, None)


def test_a_long_message_fills_the_available_space() -> None:
    line = to_line(termination_of(10, "x" * 10_000, 0))
    assert MAX_TERMINATION_MESSAGE - 6 <= len(line) <= MAX_TERMINATION_MESSAGE


def test_the_a_termination_message_has_the_fields_of_the_contract() -> None:
    commit, evaluation = Commit(step=320, path="step-00000320-x", time=5.0), Evaluation(step=330, metrics={"accuracy": 0.95}, time=6.0)
    state = RunState(progress=Progress(step=340, loss="0.3"), checkpoint=commit, resumed=Resumed(step=0), evaluation=evaluation)
    words = replace(termination_of(20, "rank 0: gone", 2, state), rank=0, exit_code=1)
    assert parse(TerminationMessage, to_line(words)) == TerminationMessage(
        code=20,
        reason="PeerLost",
        message="rank 0: gone",
        attempt=2,
        rank=0,
        exit_code=1,
        step=340,
        loss="0.3",
        resumed_step=0,
        commit=commit,
        evaluation=evaluation,
    )


def test_metrics_are_cut_to_leave_room_for_the_message() -> None:
    many = {f"größe-{number:03}-" + "x" * 40: number / 7 for number in range(100)}
    state = RunState(checkpoint=Commit(step=320, path="ä" * 300), evaluation=Evaluation(step=330, metrics=many))
    line = to_line(termination_of(10, "why", 0, state))
    document = json.loads(line)
    assert len(line) <= MAX_TERMINATION_MESSAGE
    assert document["message"] == "why"
    assert 10 < len(document["evaluation"]["metrics"]) < 100


def test_a_new_message_replaces_an_older_longer_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert write(termination_of(10, "long " * 100, 0), log) is None
    assert write(termination_of_error(BadConfiguration("short"), None), log) is None
    assert json.loads(log.read_text())["message"] == "short"


def test_a_log_that_cannot_be_written_is_reported_with_its_path(tmp_path: Path) -> None:
    problem = write(termination_of(0, "", 0), tmp_path / "absent" / "log")
    assert problem is not None
    assert str(tmp_path / "absent" / "log") in problem


def test_a_log_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    assert write(termination_of(0, "completed", 0), tmp_path / "log") is not None
