"""The gauges of an operator, as Prometheus reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from muster.operator.metrics.gauges import Gauges

JOBS: dict[str, Any] = {"team/digits": {"status": {"phase": "Running", "goodput": {"ratio": 0.5}}}, "team/new": {}}
LISTED = datetime(2026, 1, 1, tzinfo=UTC)
PARTS: Any = SimpleNamespace(
    store=SimpleNamespace(keys=list(JOBS), job=JOBS.get, unreadable=[SimpleNamespace(kind="Pod", name="odd", namespace="team")]),
    queue=SimpleNamespace(depth=3, failing=1),
    reports=[1, 2],
)


def samples(leader: Any) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Gauges(PARTS, leader=lambda: leader, holds_lease=lambda: leader is not None, listed_at=lambda: LISTED))
    return {
        each.name + "".join(f"/{value}" for value in each.labels.values()): each.value
        for family in registry.collect()
        for each in family.samples
    }


def test_a_leader_exports_its_queue_connections_and_jobs() -> None:
    values = samples(SimpleNamespace(connections=4))
    assert values["muster_leader"] == 1
    assert values["workqueue_depth/trainingjobs"] == 3
    assert values["muster_failing_jobs"] == 1
    assert values["muster_supervisors"] == 2
    assert values["muster_channel_connections"] == 4
    assert values["muster_resync_timestamp_seconds"] == LISTED.timestamp()
    assert values["muster_jobs/team/Running"] == 1


def test_a_standby_exports_no_jobs() -> None:
    values = samples(None)
    assert values["muster_leader"] == 0
    assert values["muster_channel_connections"] == 0
    assert not [name for name in values if name.startswith("muster_jobs")]
