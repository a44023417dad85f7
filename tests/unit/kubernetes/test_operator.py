"""The operator, put together and not started: what its parts tell each other."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import kopf
import pytest
from kubernetes.aio import client

from muster.api.reports import Report
from muster.control.metrics import exposition
from muster.kubernetes.__main__ import OneLine
from muster.kubernetes.configuration import Configuration, Place
from muster.kubernetes.gateway import Gateway
from muster.kubernetes.operator import Operator
from muster.kubernetes.settings import configure


def pod(index: int) -> dict[str, Any]:
    labels = {"job-name": "digits", "role": "worker", "index": str(index), "attempt": "0"}
    metadata = {"name": f"digits-worker-{index}", "namespace": "default", "uid": f"uid-{index}", "resourceVersion": "7"}
    made = {"creationTimestamp": "2026-11-21T12:00:00Z", "labels": {f"muster.dev/{name}": value for name, value in labels.items()}}
    return {"metadata": {**metadata, **made}}


@asynccontextmanager
async def operator_apart() -> AsyncIterator[Operator]:
    async with client.ApiClient(client.Configuration(host="http://127.0.0.1:1")) as api:
        yield Operator(Configuration(), Place(pod="muster", namespace="muster-system", address="127.0.0.1"), Gateway(api))


def test_supervisors_are_counted_as_long_as_their_pods_are_there() -> None:
    async def counted() -> list[str]:
        async with operator_apart() as operator:
            for index in range(3):
                operator._watched.pod("ADDED", pod(index))
                said = Report(job="default/digits", pod=f"digits-worker-{index}", role="worker", index=index, attempt=0)
                operator._reports.record(f"uid-{index}", said, datetime.now(UTC))
            operator._watched.pod("DELETED", pod(1))
            return exposition(operator._metrics()).splitlines()

    assert "muster_supervisors 2" in asyncio.run(counted())


def test_pods_that_only_bear_a_jobs_label_leave_nothing_behind() -> None:
    async def left() -> tuple[int, int]:
        async with operator_apart() as operator:
            replica = pod(0)
            operator._watched.pod("ADDED", replica)
            known = len(operator._store._heard)
            for index in range(100):
                stranger = pod(index)
                stranger["metadata"] |= {"uid": f"stranger-{index}", "labels": {"muster.dev/job-name": "digits"}}
                operator._watched.pod("ADDED", stranger)
                operator._watched.pod("DELETED", stranger)
            operator._watched.pod("DELETED", replica)
            return known, len(operator._store._heard)

    assert asyncio.run(left()) == (1, 0)


AWAY = {200: False, 404: False, 409: False, 429: False, 500: False, 0: True, 502: True, 503: True, 504: True}


@pytest.mark.parametrize(("status", "away"), AWAY.items())
def test_while_only_a_load_balancer_answers_it_is_not_ready_and_tries_again_afterwards(status: int, *, away: bool) -> None:
    async def said() -> tuple[str | None, bool]:
        async with operator_apart() as operator:
            retried = []
            operator._queue.retry_now = lambda: retried.append(True)  # type: ignore[method-assign]
            operator._resync.last = datetime.now(UTC)
            operator._asked("GET", status)
            unready = operator._unready()
            operator._asked("GET", 200)
            return unready, bool(retried)

    assert asyncio.run(said()) == (("the API server does not answer", True) if away else (None, False))


def test_the_watch_of_jobs_is_never_given_up_and_never_tried_more_than_five_seconds_apart() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, float)
    pauses = list(islice(backoffs, 1000))
    assert len(pauses) == 1000
    assert max(pauses) <= 5
    assert min(pauses) >= 1
    assert list(islice(backoffs, 3)) == pauses[:3]  # from the beginning for each request


def test_a_standby_caches_jobs_and_pods_and_queues_none_of_them() -> None:
    async def figures() -> tuple[int, int, str | None, list[str]]:
        async with operator_apart() as operator:
            unlisted = operator._unready()
            job = {"metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}}
            operator._watched.job("ADDED", job)
            operator._watched.pod("ADDED", pod(0))
            return operator._queue.depth, len(operator._store.keys), unlisted, exposition(operator._metrics()).splitlines()

    depth, known, unlisted, metrics = asyncio.run(figures())
    assert (depth, known) == (0, 1)
    assert unlisted == "jobs and pods are being listed"
    assert not [each for each in metrics if each.startswith("muster_jobs{")], "sums over all operators count each job once"


def test_one_record_is_one_line_of_the_log_whatever_it_quotes() -> None:
    form = OneLine("%(levelname)s %(message)s")
    forged = "boom \x1b]0;owned\x07\nINFO good/honest: Succeeded"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("muster", logging.ERROR, __file__, 1, "%s: %s", ("team/job", forged), sys.exc_info())
    line = form.format(record)
    assert line.isprintable()
    assert line.startswith("ERROR team/job: boom \\x1b]0;owned\\x07\\nINFO good")
    assert "ValueError" in line
