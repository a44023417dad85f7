"""Small jobs that show whether the operator and the scheduler still serve new jobs, and how long that currently takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.waiting import wait_until

LABEL = "bench/canary"
TIMEOUT_SECONDS = 900.0


class Canary:
    """Runs one small job after another, on a node of its own. On a busy machine, a job may wait for a long time although nothing blocks it.
    It is blocked only if jobs that were submitted later have run in the meantime."""

    def __init__(self, cluster: Cluster) -> None:
        self._api, self.namespace = cluster.admin, cluster.namespace("canary")
        self._jobs, self._kubelet = Jobs(self._api, self.namespace), Kubelet(self._api)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="canary", daemon=True)
        self._begins: deque[float] = deque(maxlen=100)
        self.seconds: list[float] = []
        """The seconds from the submission of each job until its pod ran."""

    def runs_since(self, moment: float) -> int:
        """The number of jobs that were submitted after this moment (of the monotonic clock) and have run."""
        assert self._thread.is_alive(), "no canary has come back"
        return sum(began > moment for began in list(self._begins))

    @contextmanager
    def working(self) -> Iterator[Canary]:
        add_node(self._api, self.namespace, cpu=1, labels={LABEL: self.namespace})
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join(10)

    def _work(self) -> None:
        number = 0
        while not self._stopped.is_set():
            began, name, number = time.monotonic(), f"canary-{number}", number + 1
            template = {"spec": {"nodeSelector": {LABEL: self.namespace}}}
            self._jobs.submit(job(name, roles={"worker": {"replicas": 1, "template": template}}))
            wait_until(lambda name=name: self._has_run(name), f"{name} runs", TIMEOUT_SECONDS, pause=0.5)
            self._begins.append(began)
            self.seconds.append(time.monotonic() - began)
            self._jobs.delete(name)
            self._stopped.wait(1)

    def _has_run(self, name: str) -> bool:
        return self._stopped.is_set() or any(pod["status"].get("phase") == "Running" for pod in self._jobs.pods(name))
