"""Reading events, and the state that they give."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration
from muster_contract.events import Evaluation, Fingerprint, decode_event
from muster_contract.reports import Progress, Report
from muster_contract.run_state import RunState, apply, with_state
from muster_contract.wire import decode, encode
from muster_trainer.supervisor.event_reader import EventLog, EventReader
from muster_trainer.supervisor.replica import commit_reasons


@contextmanager
def pipe() -> Iterator[tuple[EventReader, int]]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        yield EventReader(read, rank=7), write
    finally:
        os.close(read)
        os.close(write)


def state_of(*events: dict[str, Any]) -> RunState:
    state = RunState(first_rank=0)
    for event in events:
        state = apply(state, decode_event({"time": 100.0, "rank": 0, **event}))
    return state


@pytest.mark.timeout(60)
def test_events_are_not_written_to_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    replica: Any = SimpleNamespace(role="worker", index=0, attempt=0, state_dir=tmp_path)
    with pytest.raises(BadConfiguration, match=r"events\.jsonl cannot be written"):
        EventLog(replica)


def test_a_state_is_saved_while_no_step_is_newer_than_the_newest_commit() -> None:
    step, commit = {"event": "step", "step": 4}, {"event": "commit", "step": 4, "path": "p"}
    assert state_of(step, commit).is_saved
    assert not state_of(step, commit, {**step, "step": 5}).is_saved
    assert not state_of(step).is_saved
    assert not state_of(commit).is_saved  # it may have continued without reporting a step


def test_ranks_that_save_alone_add_their_last_step_and_commit_and_take_nothing_back() -> None:
    step, commit = {"event": "step", "loss": "0.5"}, {"event": "commit", "reason": "PeerLost"}
    before = [{**step, "step": 13}, {"event": "wholeState", "rank": 1}]
    of_one = [{**step, "step": 14, "rank": 1, "loss": "0.4"}, {**commit, "step": 14, "rank": 1}]
    of_another = [{**step, "step": 13, "rank": 2, "samples": 64, "seconds": 1}, {**commit, "step": 13, "rank": 2, "seconds": 2}]
    state = state_of(*before, *of_one, *of_another)
    assert state.progress is not None
    assert state.checkpoint is not None
    assert (state.progress.step, state.progress.loss, state.progress.samples_per_second, state.checkpoint.step) == (14, "0.4", None, 14)
    assert (state.is_saved, state.rescues, state.saved_seconds) == (True, True, 2)
    assert not state_of(*of_one).rescues


def test_an_event_that_arrives_in_parts_is_read_whole() -> None:
    line = json.dumps({"event": "step", "time": 1.5, "rank": 0, "step": 3}).encode() + b"\n"
    with pipe() as (reader, write):
        os.write(write, line[:10])
        assert reader.read() == []
        os.write(write, line[10:] + line)
        assert [line.document["step"] for line in reader.read()] == [3, 3]
        assert reader.malformed == 0


@pytest.mark.parametrize(
    ("line", "uses_contract"),
    [(b'{"event": "step", "step": 1}', True), (b'{"event": "greeting"}', False), (b"step 1", False), (b'{"event": "step"', False)],
)
def test_a_process_uses_the_contract_after_its_first_event(line: bytes, uses_contract: bool) -> None:
    with pipe() as (reader, write):
        os.write(write, line + b"\n")
        reader.read()
        assert reader.uses_contract is uses_contract


def test_missing_ranks_and_times_are_filled_in() -> None:
    with pipe() as (reader, write):
        os.write(write, b'{"event": "notice", "message": "x"}\n')
        (line,) = reader.read()
    assert line.event.rank == line.document["rank"] == 7
    assert line.event.time == line.document["time"] > 0


def test_nan_becomes_null_in_json() -> None:
    with pipe() as (reader, write):
        os.write(write, b'{"event": "evaluation", "step": 3, "metrics": {"loss": NaN, "accuracy": 0.5}}\n')
        (line,) = reader.read()
    assert line.document["metrics"] == {"loss": None, "accuracy": 0.5}
    assert line.event == Evaluation(time=line.event.time, rank=7, step=3, metrics={"accuracy": 0.5})


@given(st.binary(max_size=2000).map(lambda data: data.replace(b"\n", b" ")))
def test_garbage_is_counted_and_the_next_event_is_read(garbage: bytes) -> None:
    with pipe() as (reader, write):
        os.write(write, b"?" + garbage + b'\n{"event": "notice", "message": "after"}\n')
        assert [line.document["message"] for line in reader.drain()] == ["after"]
        assert reader.malformed == 1


def test_a_line_without_end_is_dropped() -> None:
    with pipe() as (reader, write):
        for _ in range(40):
            os.write(write, b"x" * 60_000)
            reader.read()
        assert reader.malformed >= 1
        assert len(reader._rest) <= 1 << 20


def test_progress_has_the_rate_of_recent_steps() -> None:
    steps = [{"event": "step", "step": n, "totalSteps": 9, "epoch": 1, "loss": "nan", "samples": 64, "seconds": 0.5} for n in (1, 2)]
    progress = Progress(step=2, total_steps=9, epoch=1, loss="nan", samples_per_second=128.0, updated_at=100.0)
    assert state_of(*steps).progress == progress


def test_a_save_counts_only_the_time_that_training_waited() -> None:
    commit = {"event": "commit", "step": 5, "path": "p", "reason": "Periodic", "seconds": 2.0}
    assert state_of({**commit, "blockedSeconds": 0.25}).saved_seconds == 0.25
    assert state_of(commit).saved_seconds == 2.0


def test_only_a_stop_commit_or_one_after_the_request_counts_as_saved() -> None:
    periodic = {"event": "commit", "step": 5, "path": "p", "reason": "Periodic"}
    assert commit_reasons(decode_event(periodic), stop_requested=False) == set()
    assert commit_reasons(decode_event(periodic), stop_requested=True) == {"Periodic"}
    assert commit_reasons(decode_event({**periodic, "reason": "Stop"}), stop_requested=False) == {"Stop"}


@pytest.mark.parametrize("step", [{}, {"step": None}, {"step": -1}, {"step": "5"}])
def test_a_commit_without_a_step_still_counts_as_a_save(step: dict[str, Any]) -> None:
    commit = {"event": "commit", "path": "p", "reason": "Final", "seconds": 2.0, **step}
    state = state_of({**commit, "step": 3}, commit)
    assert state.saved_seconds == 4.0
    assert state.checkpoint is not None
    assert state.checkpoint.step == 3
    assert commit_reasons(decode_event(commit), stop_requested=False) == {"Final"}
    assert commit_reasons(decode_event({"event": "commit", **step}), stop_requested=True) == {"Periodic"}


def test_fingerprint_values_of_any_simple_type_become_texts() -> None:
    fingerprint = decode_event({"event": "fingerprint", "python": 3.12, "threads": 4, "devices": "cpu", "libraries": {"numpy": 2}})
    assert fingerprint == Fingerprint(python="3.12", threads="4", devices=("cpu",), libraries={"numpy": "2"})


def test_ranks_notices_and_texts_are_bounded() -> None:
    events = [{"event": kind, "rank": rank, "message": f"{rank}" * 5000} for rank in range(200) for kind in ("pace", "error", "notice")]
    state = state_of(*events)
    assert (len(state.ranks), len(state.errors), len(state.notices)) == (64, 64, 50)
    assert {len(notice.message) for notice in state.notices} == {1024}


def test_the_phase_comes_from_the_first_rank() -> None:
    state = state_of({"event": "phase", "phase": "Restoring"}, {"event": "phase", "phase": "Saving", "rank": 1, "time": 200.0})
    assert (state.phase, state.marks.restoring) == ("Restoring", 100.0)


NAMES = ["step", "path", "reason", "metrics", "phase", "loss", "samples", "seconds", "message", "libraries", "skipped"]
VALUES: list[Any] = [None, True, -1, 3, 10**400, 1e308, 0.5, "text", "\ud800", [1], [{"path": 3}], {"a": None}, {}]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from(["step", "commit", "resumed", "evaluation", "fingerprint", "notice", "error", "phase", "other"]),
)
def test_fields_of_any_type_give_a_valid_report(fields: dict[str, Any], name: str) -> None:
    report = with_state(Report(job="j", pod="p", role="worker", index=0, attempt=0), state_of({**fields, "event": name}))
    assert decode(Report, json.loads(json.dumps(encode(report)))) == report
