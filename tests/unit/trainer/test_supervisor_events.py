"""Reading events, and what they add up to."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_trainer.supervisor.events import EventReader
from muster_trainer.supervisor.observations import Observations


@contextmanager
def pipe() -> Iterator[tuple[EventReader, int]]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        yield EventReader(read, rank=7), write
    finally:
        os.close(read)
        os.close(write)


def observed(*events: dict[str, Any], ranks: tuple[int, ...] = (0,), stop_asked: bool = False) -> Observations:
    observations = Observations(list(ranks))
    for event in events:
        observations.apply({"time": 100.0, "rank": ranks[0], **event}, stop_asked=stop_asked)
    return observations


def test_all_is_saved_while_no_step_was_told_beyond_the_newest_commit() -> None:
    step, commit = {"event": "step", "step": 4}, {"event": "commit", "step": 4, "path": "p"}
    assert observed(step, commit).saved
    assert not observed(step, commit, {**step, "step": 5}).saved
    assert not observed(step).saved
    assert not observed(commit).saved  # it may have gone on and told nothing


def test_an_event_is_read_whole_however_it_arrives() -> None:
    line = json.dumps({"event": "step", "time": 1.5, "rank": 0, "step": 3}).encode() + b"\n"
    with pipe() as (reader, write):
        os.write(write, line[:10])
        assert reader.read() == []
        os.write(write, line[10:] + line)
        assert [event["step"] for event in reader.read()] == [3, 3]
        assert reader.malformed == 0


@pytest.mark.parametrize(
    ("line", "speaks"),
    [(b'{"event": "step", "step": 1}', True), (b'{"event": "greeting"}', False), (b"step 1", False), (b'{"event": "step"', False)],
)
def test_a_process_speaks_the_contract_once_it_has_sent_an_event_of_it(line: bytes, speaks: bool) -> None:
    with pipe() as (reader, write):
        os.write(write, line + b"\n")
        reader.read()
        assert reader.speaks is speaks


def test_rank_and_time_are_filled_in_where_a_script_leaves_them_out() -> None:
    with pipe() as (reader, write):
        os.write(write, b'{"event": "notice", "message": "x"}\n')
        (event,) = reader.read()
    assert event["rank"] == 7
    assert isinstance(event["time"], float)


def test_not_a_number_becomes_null_since_json_has_none() -> None:
    with pipe() as (reader, write):
        os.write(write, b'{"event": "evaluation", "metrics": {"loss": NaN}}\n')
        (event,) = reader.read()
    assert event["metrics"] == {"loss": None}


@given(st.binary(max_size=2000).map(lambda data: data.replace(b"\n", b" ")))
def test_garbage_is_counted_and_the_next_event_still_arrives(garbage: bytes) -> None:
    with pipe() as (reader, write):
        os.write(write, b"?" + garbage + b'\n{"event": "notice", "message": "after"}\n')
        assert [event["message"] for event in reader.drain()] == ["after"]
        assert reader.malformed == 1


def test_a_line_without_end_is_dropped_and_not_collected_for_ever() -> None:
    with pipe() as (reader, write):
        for _ in range(40):
            os.write(write, b"x" * 60_000)
            reader.read()
        assert reader.malformed >= 1
        assert len(reader._rest) <= 1 << 20


def test_progress_has_the_rate_of_recent_steps() -> None:
    steps = [{"event": "step", "step": n, "totalSteps": 9, "epoch": 1, "loss": "nan", "samples": 64, "seconds": 0.5} for n in (1, 2)]
    assert observed(*steps).progress == {
        "step": 2,
        "totalSteps": 9,
        "epoch": 1,
        "loss": "nan",
        "samplesPerSecond": 128.0,
        "updatedAt": 100.0,
    }


def test_a_save_costs_the_time_in_which_training_waited_for_it() -> None:
    commit = {"event": "commit", "step": 5, "path": "p", "reason": "Periodic", "seconds": 2.0}
    assert observed({**commit, "blockedSeconds": 0.25}).saved_seconds == 0.25
    assert observed(commit).saved_seconds == 2.0


def test_commits_count_as_saved_on_request_only_when_they_came_after_it_or_say_so() -> None:
    periodic = {"event": "commit", "step": 5, "path": "p", "reason": "Periodic"}
    assert observed(periodic).commit == (5, "p")
    assert observed(periodic).commit_reasons == set()
    assert observed(periodic, stop_asked=True).commit_reasons == {"Periodic"}
    assert observed({**periodic, "reason": "Stop"}).commit_reasons == {"Stop"}


NAMES = ["step", "path", "reason", "metrics", "phase", "loss", "samples", "seconds", "message", "libraries", "skipped"]
VALUES: list[Any] = [None, True, -1, 3, 10**400, 1e308, 0.5, "text", "\ud800", [1], [{"path": 3}], {"a": None}, {}]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from(["step", "commit", "resumed", "evaluation", "fingerprint", "notice", "error", "phase", "other"]),
)
def test_fields_of_any_type_do_no_harm(fields: dict[str, Any], name: str) -> None:
    observations = observed({**fields, "event": name})
    json.dumps(observations.as_report())
    assert observations.step is None or observations.step >= 0
