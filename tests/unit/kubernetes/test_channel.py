"""The replies of the operator's channel."""

from __future__ import annotations

import time
from typing import Any

from muster.control.queue import WorkQueue
from muster.control.reports import Reports
from muster.control.store import Store
from muster.kubernetes.channel import ClusterChannel
from muster.kubernetes.views import child_of
from muster_contract.reports import Report
from muster_contract.wire import encode
from tests.unit.kubernetes.test_operator import Unmeasured, pod


def admit(_: Any) -> Any:
    raise AssertionError("the common reply needs no parsed job")


async def request(*_: Any, **__: Any) -> Any:
    raise AssertionError("a reply needs no request")


class Requests:
    request = staticmethod(request)


def test_every_reply_has_grace_seconds() -> None:
    """Without them, a supervisor ends together with its processes, and the job loses its pods."""
    store = Store(time.monotonic)
    store.put_job({"metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}, "status": {"attempt": 0}})
    replica = pod(0)
    replica["metadata"]["ownerReferences"] = [{"uid": "job", "controller": True}]
    child = child_of(replica)
    assert child is not None
    store.put_child(child)
    queue = WorkQueue(Unmeasured(), workers=1)
    channel = ClusterChannel(Requests(), store, queue=queue, reports=Reports(), admit=admit)
    report = Report(job="default/digits", pod="digits-worker-0", role="worker", index=0, attempt=0)
    assert encode(channel._reply_to("uid-0", report)) == {"attempt": 0, "intervalSeconds": 1.0, "graceSeconds": 0.0}
