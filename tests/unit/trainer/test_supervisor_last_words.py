"""The line in the termination log."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from muster_trainer.contract import BadConfiguration, reason_of
from muster_trainer.supervisor.last_words import LONGEST, LastWords, encode, write

counts = st.none() | st.integers(min_value=0, max_value=2**53)
anything = st.text() | st.text(alphabet="\U0001f600\0\n\u2028é", min_size=3000, max_size=5000)


@given(
    st.builds(
        LastWords,
        code=st.sampled_from([0, 10, 11, 20, 21, 22, 30, 31, 137]),
        message=anything,
        attempt=counts,
        rank=counts,
        step=counts,
        commit=st.none() | st.tuples(st.integers(0, 2**53), anything),
        resumed_step=counts,
        exit_code=counts,
        signal=counts,
    )
)
def test_last_words_are_one_line_of_json_that_kubernetes_keeps_whole(words: LastWords) -> None:
    line = encode(words)
    assert len(line) <= LONGEST
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    document = json.loads(line)
    assert document["code"] == words.code
    assert document["reason"] == reason_of(words.code)
    assert document["message"] == words.message or words.message.startswith(document["message"].removesuffix("…"))
    assert document["step"] == words.step


def test_a_message_is_cut_no_more_than_needed() -> None:
    line = encode(LastWords(code=10, message="x" * 10_000, attempt=0))
    assert LONGEST - 6 <= len(line) <= LONGEST


def test_the_fields_are_those_of_the_contract() -> None:
    words = LastWords(
        code=20,
        message="rank 0: gone",
        attempt=2,
        rank=0,
        step=340,
        commit=(320, "step-00000320-x"),
        resumed_step=0,
        exit_code=1,
        loss="0.3",
        evaluation=(330, {"accuracy": 0.95}),
    )
    assert json.loads(encode(words)) == {
        "code": 20,
        "reason": "PeerLost",
        "message": "rank 0: gone",
        "rank": 0,
        "step": 340,
        "commit": {"step": 320, "path": "step-00000320-x"},
        "resumedStep": 0,
        "attempt": 2,
        "exitCode": 1,
        "signal": None,
        "endedAt": None,
        "loss": "0.3",
        "evaluation": {"step": 330, "metrics": {"accuracy": 0.95}},
    }


def test_metrics_are_told_as_far_as_there_is_room_for_a_message() -> None:
    many = {f"größe-{number:03}-" + "x" * 40: number / 7 for number in range(100)}
    words = LastWords(code=10, message="why", attempt=0, commit=(320, "ä" * 300), evaluation=(330, many))
    line = encode(words)
    told = json.loads(line)
    assert len(line) <= LONGEST
    assert told["message"] == "why"
    assert 10 < len(told["evaluation"]["metrics"]) < 100


def test_new_words_replace_older_longer_ones(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert write(LastWords(code=10, message="long " * 100, attempt=0), log) is None
    assert write(LastWords.of_error(BadConfiguration("short"), None), log) is None
    assert json.loads(log.read_text())["message"] == "short"


def test_a_log_that_cannot_be_written_is_reported_with_its_path(tmp_path: Path) -> None:
    problem = write(LastWords(code=0, message="", attempt=0), tmp_path / "absent" / "log")
    assert problem is not None
    assert str(tmp_path / "absent" / "log") in problem
