"""The resync, which lists all objects again."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from muster.api.spec import WORKER
from muster.control.cluster import Child, Listing
from muster.control.store import Store
from muster.kubernetes import resync
from muster.kubernetes.errors import UnavailableError
from muster.lifecycle.observed import ReplicaPhase, ReplicaView


class Cluster:
    """Refuses the first list with Retry-After, and answers the second one."""

    def __init__(self) -> None:
        self.lists: list[float] = []

    async def list_all(self) -> Listing:
        self.lists.append(time.monotonic())
        if len(self.lists) == 1:
            error = UnavailableError("429: too many requests")
            error.retry_seconds = 0.2
            raise error
        return Listing((), (), (), None, ())


def test_a_refused_list_is_retried_after_the_time_in_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "RETRY_SECONDS", 0.01)
    cluster: Any = Cluster()
    queue: Any = SimpleNamespace(add=lambda key: None)
    rounds = resync.Resync(cluster, Store(time.monotonic), queue=queue, now=lambda: datetime.now(UTC), seconds=60.0)
    asyncio.run(asyncio.wait_for(rounds.until_listed(), 10))
    first, second = cluster.lists
    assert second - first >= 0.2


def test_jobs_that_lack_a_running_replica_are_queued_before_whole_ones() -> None:
    uids = ["whole-1", "broken", "whole-2", "new", "ended"]

    def job(name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
        phases = {"new": {}, "ended": {"phase": "Succeeded"}}
        return {
            "metadata": metadata,
            "status": phases.get(name, {"phase": "Running", "world": {"members": [{"role": WORKER, "index": 0}]}}),
        }

    def child(name: str) -> Child:
        phase = ReplicaPhase.FAILED if name == "broken" else ReplicaPhase.RUNNING
        view = ReplicaView(
            name=name, uid=f"pod-{name}", role=WORKER, index=0, attempt=0, phase=phase, created=datetime(2026, 1, 1, tzinfo=UTC)
        )
        return Child(f"default/{name}", name, 1, view)

    class Listed:
        async def list_all(self) -> Listing:
            return Listing(tuple(map(job, uids)), tuple(child(name) for name in ("whole-1", "broken", "whole-2")), (), None, ())

    cluster: Any = Listed()
    queued: list[str] = []
    queue: Any = SimpleNamespace(add=queued.append)
    rounds = resync.Resync(cluster, Store(time.monotonic), queue=queue, now=lambda: datetime.now(UTC), seconds=60.0)
    asyncio.run(rounds.once())
    assert queued == [f"default/{name}" for name in ("broken", "new", "whole-1", "whole-2", "ended")]
