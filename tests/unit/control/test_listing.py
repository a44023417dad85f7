"""What a list of all objects changes."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from muster.api.spec import WORKER
from muster.control.cluster import Child, Listing
from muster.control.job_store import Store
from muster.control.listing import correct_caches
from muster.lifecycle.observed import ReplicaPhase, ReplicaView


def test_jobs_that_lack_a_running_replica_are_queued_before_whole_ones() -> None:
    uids = ["whole-1", "broken", "whole-2", "large", "new", "ended"]
    members = {"large": {"membersByRole": [{"role": WORKER, "indexes": "0", "uids": [""]}]}}

    def job(name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
        phases = {"new": {}, "ended": {"phase": "Succeeded"}}
        return {
            "metadata": metadata,
            "status": phases.get(name, {"phase": "Running", "world": members.get(name, {"members": [{"role": WORKER, "index": 0}]})}),
        }

    def child(name: str) -> Child:
        phase = ReplicaPhase.FAILED if name == "broken" else ReplicaPhase.RUNNING
        view = ReplicaView(
            name=name, uid=f"pod-{name}", role=WORKER, index=0, attempt=0, phase=phase, created=datetime(2026, 1, 1, tzinfo=UTC)
        )
        return Child(f"default/{name}", name, 1, view)

    class Listed:
        async def list_all(self) -> Listing:
            return Listing(tuple(map(job, uids)), tuple(child(name) for name in ("whole-1", "broken", "whole-2", "large")), (), None, ())

    cluster: Any = Listed()
    queued: list[str] = []
    queue: Any = SimpleNamespace(add=queued.append)
    asyncio.run(correct_caches(cluster, Store(time.monotonic), queue=queue, now=lambda: datetime.now(UTC)))
    assert queued == [f"default/{name}" for name in ("broken", "new", "whole-1", "whole-2", "large", "ended")]
