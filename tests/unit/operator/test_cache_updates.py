"""What a change of a pod does to the caches and the queue."""

from __future__ import annotations

from typing import Any, cast

from muster.control.job_store import Store
from muster.kubernetes.queue import WorkQueue
from muster.operator.cache_updates import CacheUpdates
from tests.unit.operator.test_views import LABELS, pod


class Added:
    """A queue that records the keys that are added to it."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.later: list[str] = []

    def add(self, key: str) -> None:
        self.now.append(key)

    def add_after(self, key: str, seconds: float, **_: Any) -> None:
        self.later.append(key)


def test_both_jobs_get_a_pass_if_the_label_of_a_pod_changes() -> None:
    queue, store = Added(), Store(lambda: 0.0)
    updates = CacheUpdates(store, cast("WorkQueue", queue))
    updates.pod("ADDED", pod())
    assert (queue.now, queue.later) == ([], ["default/digits"])
    updates.pod("MODIFIED", pod(labels={**LABELS, "muster.dev/job-name": "other"}, resourceVersion="8"))
    assert (queue.now, queue.later) == (["default/digits"], ["default/digits", "default/other"])
    assert (store.count("default/digits"), store.count("default/other")) == (0, 1)
