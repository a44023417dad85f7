"""Lines of logs are merged by time and cut by attempt."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client import errors
from muster.client.log_lines import Line, Selection, line_of, merged, span_of


def pod(replica: str, *, attempt: int = 0, first_rank: int | None = None) -> dict[str, Any]:
    role, _, index = replica.partition("-")
    ranks = [] if first_rank is None else [{"name": "MUSTER_FIRST_RANK", "value": str(first_rank)}]
    labels = {"muster.dev/role": role, "muster.dev/index": index, "muster.dev/attempt": str(attempt)}
    env = [*ranks, {"name": "MUSTER_PROCESSES", "value": "2"}]
    return {"metadata": {"name": f"digits-{replica}", "labels": labels}, "spec": {"containers": [{"name": "trainer", "env": env}]}}


def test_lines_of_several_replicas_are_sorted_by_time_with_any_decimals() -> None:
    logs = [
        [line_of("2026-01-01T00:00:00.1Z first", replica="worker-0"), line_of("2026-01-01T00:00:01Z third", replica="worker-0")],
        [line_of("2026-01-01T00:00:00.12Z second", replica="worker-1")],
    ]
    assert [str(line) for line in merged(logs)] == ["[worker-0] first", "[worker-1] second", "[worker-0] third"]


def test_a_line_without_a_time_is_not_changed() -> None:
    assert line_of("failed to read the log", replica="worker-0") == Line("", "worker-0", "failed to read the log")


def test_a_rank_selects_its_pod() -> None:
    pods = [pod("worker-0", first_rank=0), pod("worker-1", first_rank=2), pod("ps-0")]
    assert [each["metadata"]["name"] for each in Selection(rank=3).pods(pods)] == ["digits-worker-1"]
    assert [each["metadata"]["name"] for each in Selection(replica="ps-0").pods(pods)] == ["digits-ps-0"]


def test_pods_of_later_attempts_are_not_selected_for_an_earlier_one() -> None:
    pods = [pod("worker-0", attempt=0), pod("worker-1", attempt=1)]
    assert [each["metadata"]["name"] for each in Selection(attempt=0).pods(pods)] == ["digits-worker-0"]


def test_a_pod_with_other_text_in_place_of_numbers_does_not_hide_the_others() -> None:
    forged, honest = pod("worker-1"), pod("worker-0", first_rank=0)
    forged["metadata"]["labels"]["muster.dev/attempt"] = "newest"
    forged["spec"]["containers"][0]["env"] = [{"name": "MUSTER_FIRST_RANK", "value": "first"}]
    assert Selection(rank=0).pods([forged, honest]) == [honest]
    assert honest in Selection(attempt=0).pods([forged, honest])


JOB = {
    "metadata": {"name": "digits"},
    "status": {
        "attempt": 1,
        "attempts": [{"attempt": 0, "startTime": "2026-01-01T00:00:00.500Z"}, {"attempt": 1, "startTime": "2026-01-01T00:01:00.000Z"}],
    },
}


def test_an_attempt_lasts_until_the_next_one_begins() -> None:
    assert span_of(JOB, 0) == ("", "2026-01-01T00:01:00.000000000")
    assert span_of(JOB, 1) == ("2026-01-01T00:01:00.000000000", "~")


def test_an_attempt_that_the_status_does_not_have_is_refused() -> None:
    with pytest.raises(errors.RefusedError, match=r"attempt 7.* 0, 1"):
        span_of(JOB, 7)
