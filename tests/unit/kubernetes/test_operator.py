"""The operator, put together and not started: what its parts tell each other."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from kubernetes.aio import client

from muster.api.reports import Report
from muster.control.metrics import exposition
from muster.kubernetes.configuration import Configuration, Place
from muster.kubernetes.gateway import Gateway
from muster.kubernetes.operator import Operator


def pod(index: int) -> dict[str, Any]:
    labels = {"job-name": "digits", "role": "worker", "index": str(index), "attempt": "0"}
    metadata = {"name": f"digits-worker-{index}", "namespace": "default", "uid": f"uid-{index}", "resourceVersion": "7"}
    made = {"creationTimestamp": "2026-11-21T12:00:00Z", "labels": {f"muster.dev/{name}": value for name, value in labels.items()}}
    return {"metadata": {**metadata, **made}}


def test_supervisors_are_counted_as_long_as_their_pods_are_there() -> None:
    async def counted() -> list[str]:
        async with client.ApiClient(client.Configuration(host="http://127.0.0.1:1")) as api:
            operator = Operator(Configuration(), Place(pod="muster", namespace="muster-system", address="127.0.0.1"), Gateway(api))
            for index in range(3):
                operator._watched.pod("ADDED", pod(index))
                said = Report(job="default/digits", pod=f"digits-worker-{index}", role="worker", index=index, attempt=0)
                operator._reports.record(f"uid-{index}", said, datetime.now(UTC))
            operator._watched.pod("DELETED", pod(1))
            return exposition(operator._metrics()).splitlines()

    assert "muster_supervisors 2" in asyncio.run(counted())
