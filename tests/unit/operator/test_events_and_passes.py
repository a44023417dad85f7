"""From a change in the cluster to the pass that acts on it: whatever the order of changes, passes and writes, no change is lost.

The caches, the queue and the reconciler run on a cluster in memory. Requests and watches take random times, a kubelet and Kueue act between
them, another client writes the job, requests fail before or after they take effect, and watches start over.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest

from muster.channel.reports import Reports
from muster.control.cluster import Cluster
from muster.control.dependencies import Dependencies
from muster.control.job_store import Store
from muster.control.listing import correct_caches
from muster.control.queues import Kueue
from muster.control.reconciler import Reconciler
from muster.kubernetes.errors import UnavailableError
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.kubernetes.resync import Resync
from muster.operator.cache_updates import CacheUpdates
from muster.render.images import Images
from tests.support.quick_loop import QuickLoop
from tests.unit.control.control_worlds import MemoryCluster, job_object
from tests.unit.operator.test_operator import Unmeasured

KEY, WORKERS = "default/digits", 3
IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
LONGEST_SECONDS = 300.0
LATEST_SECONDS = 30.0
"""Seconds after the end of the last pod. Within this time a pass sees the end, even if requests fail and watches are late."""


class Changes(MemoryCluster):
    """A cluster that keeps all changes, so that watches can deliver them later."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, list[tuple[str, Object]]] = defaultdict(list)

    def put(self, obj: Object) -> Object:
        kind = "MODIFIED" if self._key(obj) in self.objects else "ADDED"
        made = super().put(obj)
        self.changes[obj["kind"]].append((kind, copy.deepcopy(made)))
        return made

    def _delete(self, kind: str, namespace: str, name: str, *, uid: str) -> None:
        obj = self.objects.get((kind, namespace, name))
        super()._delete(kind, namespace, name, uid=uid)
        assert obj
        self.changes[kind].append(("DELETED", {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(next(self._numbers))}}))


class Slow:
    """A cluster whose requests take up to `seconds` in each direction. Some of them fail before, and some after they take effect."""

    def __init__(self, cluster: MemoryCluster, dice: random.Random, *, seconds: float, failures: float) -> None:
        self._cluster, self._dice = cluster, dice
        self._seconds, self._failures = seconds, failures

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def request(*args: Any, **options: Any) -> Any:
            await self._way()
            result = await getattr(self._cluster, name)(*args, **options)
            await self._way()
            return result

        return request

    async def _way(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, self._seconds))
        if self._dice.random() < self._failures:
            raise UnavailableError("no answer")


class Interleaving:
    """One job of WORKERS workers, from its creation to its end. The seed makes all choices."""

    def __init__(self, seed: int) -> None:
        self._dice = dice = random.Random(seed)
        self._lag, self._restarts = dice.choice([0.01, 0.3, 2.0]), dice.choice([0.0, 0.05])
        self.cluster = Changes()
        slow = Slow(self.cluster, dice, seconds=dice.choice([0.01, 0.3, 1.0]), failures=dice.choice([0.0, 0.03]))
        loop = asyncio.get_running_loop()
        self._begun, self._ended = loop.time(), 0.0
        self._store, self._queue = Store(loop.time), WorkQueue(Unmeasured(), workers=4)
        self._succeeded = asyncio.Event()
        self._store.on_job_changed(self._note)
        self._queued = dice.random() < 0.5
        self._reconciler = Reconciler(
            Dependencies(
                cast("Cluster", slow),
                self._store,
                Reports(),
                images=IMAGES,
                now=self._now,
                kueue=Kueue(enabled=self._queued, version="v1beta2" if self._queued else ""),
                enqueue=self._queue.add,
            )
        )
        correct = partial(correct_caches, cast("Cluster", slow), self._store, queue=self._queue, now=self._now)
        self._resync = Resync(correct, now=self._now, seconds=3600.0)

    async def run(self) -> float:
        """Returns the seconds from the end of the last pod to the end of the job."""
        updates, loop = CacheUpdates(self._store, self._queue), asyncio.get_running_loop()
        self._queue.open(urgent=self._reconciler.recovers)
        self._queue.start(self._reconciler.reconcile)
        watches = {"TrainingJob": updates.job, "Pod": updates.pod, "Service": updates.service, "Workload": self._workload}
        work = [*(self._watch(kind, update) for kind, update in watches.items()), self._kubelet(), self._others(), self._resync.run()]
        tasks = [asyncio.create_task(each) for each in work]
        self.cluster.put(job_object(workers=WORKERS, **({"scheduling": {"queue": "team"}} if self._queued else {})))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._succeeded.wait(), LONGEST_SECONDS)
        seconds = loop.time() - (self._ended or self._begun)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._queue.drain(1.0)
        return seconds

    def _now(self) -> datetime:
        return datetime(2026, 11, 21, 12, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time() - self._begun)

    def _note(self, key: str) -> None:
        if ((self._store.job(key) or {}).get("status") or {}).get("phase") == "Succeeded":
            self._succeeded.set()

    def _workload(self, kind: str, workload: Object) -> None:
        self._queue.add(KEY)

    async def _watch(self, kind: str, update: Callable[[str, Object], None]) -> None:
        changes, position = self.cluster.changes[kind], 0
        while True:
            await asyncio.sleep(self._dice.uniform(0, self._lag))
            if self._dice.random() < self._restarts:
                self._resync.soon()
                position = len(changes)
                for each in self.cluster.of(kind):
                    update("ADDED", each)
            while position < len(changes) and self._dice.random() < 0.7:
                update(*copy.deepcopy(changes[position]))
                position += 1

    async def _kubelet(self) -> None:
        """Runs the pods, and ends all of them once all have run for a while."""
        while True:
            await asyncio.sleep(self._dice.uniform(0.05, 0.4))
            for pod in self.cluster.of("Pod"):
                if state_of(pod) == "waiting" and self._dice.random() < 0.5:
                    self._set(pod, "running", startedAt=f"{self._now():%Y-%m-%dT%H:%M:%SZ}")
            pods = self.cluster.of("Pod")
            if len(pods) < WORKERS or "waiting" in map(state_of, pods):
                continue
            await asyncio.sleep(self._dice.choice([0.0, 0.5, 2.0, 30.0]))
            for pod in pods:
                await asyncio.sleep(self._dice.choice([0.0, 0.3, 10.0]))
                self._set(pod, "terminated", exitCode=0)
            self._ended = asyncio.get_running_loop().time()
            return

    def _set(self, pod: Object, state: str, **fields: Any) -> None:
        self.cluster.put({**pod, "status": {"containerStatuses": [{"name": "trainer", "state": {state: fields}}]}})

    async def _others(self) -> None:
        """Kueue, which admits the job, and a client that annotates it. After the end of the pods they would only hide a lost change."""
        conditions = [{"type": kind, "status": "True", "reason": kind} for kind in ("QuotaReserved", "Admitted")]
        admission = {"podSetAssignments": [{"name": "worker", "count": WORKERS, "flavors": {}}]}
        while not self._ended:
            for workload in self.cluster.of("Workload"):
                status = workload.get("status") or {}
                if "admission" not in status or self._dice.random() < 0.1:
                    self.cluster.put({**workload, "status": {"conditions": conditions, **status, "admission": admission}})
            if self._dice.random() < 0.1:
                [job] = self.cluster.of("TrainingJob")
                self.cluster.put({**job, "metadata": {**job["metadata"], "annotations": {"number": str(self._dice.random())}}})
            await asyncio.sleep(self._dice.uniform(0.2, 3))


def state_of(pod: Object) -> str:
    containers = (pod.get("status") or {}).get("containerStatuses") or [{"state": {"waiting": {}}}]
    return str(next(iter(containers[0]["state"])))


@pytest.mark.parametrize("seed", range(20))
def test_the_end_of_the_pods_always_reaches_the_job(seed: int) -> None:
    async def run() -> float:
        return await Interleaving(seed).run()

    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        assert runner.run(run()) < LATEST_SECONDS
