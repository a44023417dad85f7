"""Commands on a job that has ended say so, and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from muster.api.status import Phase, TrainingJobStatus
from muster.client import errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.client.local_backend import LocalBackend, LocalJob
from tests.unit.local.local_jobs import job

ACTIONS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "suspend": lambda jobs: jobs.suspend("digits", suspend=True),
    "resume": lambda jobs: jobs.suspend("digits", suspend=False),
    "scale": lambda jobs: jobs.scale("digits", role="worker", replicas=2),
}
LOCAL: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "suspend": lambda run: run.suspend(),
    "resume": lambda run: run.resume(),
    "scale": lambda run: run.scale(2),
}


class Cluster:
    """A connection to a cluster with one job."""

    namespace = "default"

    def __init__(self, phase: str | None) -> None:
        self.patched: list[Any] = []
        self.phase = phase

    async def get(self, path: Any, **_: Any) -> Any:
        return {"metadata": {"name": "digits"}, "spec": {"elastic": {}}, "status": {"phase": self.phase}}

    async def patch(self, path: Any, body: Any) -> Any:
        self.patched.append(body)
        return {}

    def path(self, *parts: Any, **_: Any) -> str:
        return "path"


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("phase", "words"), [("Succeeded", "under another name"), ("Failed", "restart it")])
def test_a_job_that_has_ended_is_not_changed(phase: str, words: str, action: str) -> None:
    cluster = Cluster(phase)
    with pytest.raises(errors.RefusedError, match=rf"digits has ended \({phase}\): .*{words}"):
        asyncio.run(ACTIONS[action](Jobs(cast(Connection, cluster))))
    assert cluster.patched == []


@pytest.mark.parametrize("phase", [None, "Pending", "Running", "Suspended"])
def test_a_job_that_has_not_ended_is_suspended_and_resumed(phase: str | None) -> None:
    cluster = Cluster(phase)
    for action in ("suspend", "resume"):
        asyncio.run(ACTIONS[action](Jobs(cast(Connection, cluster))))
    assert cluster.patched == [{"spec": {"suspend": True}}, {"spec": {"suspend": False}}]


@pytest.mark.parametrize("action", LOCAL)
def test_a_local_run_that_has_ended_is_not_changed(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(tmp_path, detach=True)
    ended = job().with_status(TrainingJobStatus(phase=Phase.FAILED))
    monkeypatch.setattr(backend, "read", lambda name: ended)
    monkeypatch.setattr(backend, "stop", lambda name: pytest.fail("the run is stopped"))
    with pytest.raises(errors.RefusedError, match=r"has ended \(Failed\): restart it"):
        asyncio.run(LOCAL[action](LocalJob(backend, ended.metadata.name, "default")))
