"""Which logs `muster logs` reads, and what it says while there is nothing to read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from muster.cli import watching
from muster.client import errors, logs
from muster.client.async_job import Backend
from muster.client.cluster_backend import ClusterJob
from muster.client.connection import Connection
from muster.client.jobs import Jobs as ClusterJobs
from muster.client.log_lines import Selection
from muster.client.logs import container_of, logs_of
from tests.support.texts import absent

JOB = {"metadata": {"name": "digits", "namespace": "team", "uid": "j"}, "status": {"attempt": 1, "attempts": []}}


def pod(index: int = 0, *, attempt: int = 0, trainer: dict[str, Any] | None = None, **inits: dict[str, Any]) -> dict[str, Any]:
    labels = {"muster.dev/role": "worker", "muster.dev/index": str(index), "muster.dev/attempt": str(attempt)}
    return {
        "metadata": {"name": f"digits-worker-{index}", "namespace": "team", "uid": f"p{index}", "labels": labels},
        "spec": {"containers": [{"name": "trainer"}]},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "trainer", "state": trainer or {"waiting": {"reason": "PodInitializing"}}}],
            "initContainerStatuses": [{"name": name, "state": state} for name, state in inits.items()],
        },
    }


WAITS: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
RUNS: dict[str, Any] = {"running": {}}
DONE: dict[str, Any] = {"terminated": {"exitCode": 0}}
FAILED: dict[str, Any] = {"terminated": {"exitCode": 3}}


@pytest.mark.parametrize(
    ("started", "container"),
    [
        pytest.param(pod(trainer=RUNS, fetch=DONE), "trainer", id="the trainer runs"),
        pytest.param(pod(fetch=FAILED, later=WAITS), "fetch", id="an init container failed"),
        pytest.param(pod(first=DONE, second=RUNS, third=WAITS), "second", id="an init container runs"),
        pytest.param(pod(first=FAILED, second=RUNS), "first", id="a failed one beside a native side-car"),
        pytest.param(pod(fetch=WAITS), None, id="nothing has started"),
        pytest.param(pod(), None, id="there are no init containers"),
    ],
)
def test_the_log_is_that_of_the_trainer_or_of_the_init_container_that_holds_it_up(started: dict[str, Any], container: str | None) -> None:
    assert container_of(started) == container


class Cluster:
    """The answers of an API server. The job appears after `absent_for` requests."""

    namespace = "team"

    def __init__(self, *pods: dict[str, Any], absent_for: int = 0) -> None:
        self.pods, self.absent_for = pods, absent_for

    def path(self, _version: str, plural: str, name: str = "", *, subresource: str = "") -> str:
        return "/".join(filter(None, (plural, name, subresource)))

    async def tables(self, _path: str) -> AsyncIterator[dict[str, Any]]:
        yield {}

    async def get(self, path: str) -> dict[str, Any]:
        if self.absent_for and path.endswith("trainingjobs/digits"):
            self.absent_for -= 1
            raise errors.NotFoundError("not found")
        return JOB

    async def items(self, _path: str, _cut: object = None, **_query: str) -> list[dict[str, Any]]:
        return list(self.pods)

    async def text(self, _path: str, **query: str) -> str:
        return f"2030-01-01T00:00:01Z from {query['container']}\n"


def connection(cluster: Cluster) -> Connection:
    return cast("Connection", cluster)


def read(*pods: dict[str, Any], attempt: int | None = None) -> list[str]:
    job = {**JOB, "status": {"attempts": [{"attempt": number, "startTime": "2030-01-01T00:00:00Z"} for number in (0, 1)]}}
    return [str(line) for line in asyncio.run(logs_of(connection(Cluster(*pods)), job, Selection(attempt=attempt)))]


def test_the_log_of_a_failed_init_container_names_the_container() -> None:
    assert read(pod(fetch=FAILED)) == ["[worker-0/fetch] from fetch"]


@pytest.mark.parametrize(
    ("pods", "attempt", "words"),
    [
        pytest.param((), None, ("has no pods", "muster explain digits"), id="no pods"),
        pytest.param((pod(),), None, ("no container of digits has started", "muster explain digits"), id="nothing has started"),
        pytest.param((pod(attempt=1, trainer=RUNS),), 0, ("attempt 0", "gone", "muster logs digits"), id="an attempt whose pods are gone"),
    ],
)
def test_without_a_log_the_error_says_why(pods: tuple[dict[str, Any], ...], attempt: int | None, words: tuple[str, ...]) -> None:
    with pytest.raises(errors.RefusedError) as refused:
        read(*pods, attempt=attempt)
    assert absent(str(refused.value), *words) == []


class Printing(Cluster):
    """Each pod has printed so many bytes, if they are asked for."""

    def __init__(self, *pods: dict[str, Any], size: int) -> None:
        super().__init__(*pods)
        self.size = size
        self.asked = 0

    async def text(self, _path: str, **query: str) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        return "2030-01-01T00:00:01Z " + "x" * min(self.size, int(query.get("limitBytes", self.size))) + "\n"


def test_logs_that_are_too_large_together_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_CHARACTERS", 1 << 20)
    monkeypatch.setattr(logs, "AT_ONCE", 1)
    cluster = Printing(*(pod(index, trainer=RUNS) for index in range(8)), size=400_000)
    with pytest.raises(errors.TooLargeError, match="--tail"):
        asyncio.run(logs_of(connection(cluster), JOB, Selection()))
    assert cluster.asked < 8


def test_a_debug_dump_takes_few_bytes_of_each_log() -> None:
    cluster = Printing(*(pod(index, trainer=RUNS) for index in range(8)), size=400_000)
    lines = asyncio.run(logs_of(connection(cluster), JOB, Selection(), tail=200, most_bytes=8_000))
    assert [len(line.text) for line in lines] == [1_000] * 8


def test_following_waits_for_the_job_and_says_so_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.0)
    cluster = Cluster(absent_for=4)

    class Jobs:
        async def get(self, name: str, *, namespace: str | None) -> ClusterJob:
            await ClusterJobs(connection(cluster)).get(name)
            return ClusterJob(connection(cluster), name)

    asyncio.run(watching.existing(cast(Backend, Jobs()), "digits"))
    assert cluster.absent_for == 0
    [note] = capsys.readouterr().err.splitlines()
    assert absent(note, "digits", "team", "waiting for it") == []
