"""The cost and the speed of the operator: `python -m bench.control_plane`. Prints JSON.

The bench runs a real API server, the fake nodes of kwok, and the operator as a process with the rights of the chart. Absolute figures
depend on this machine, where other programs may run. The ratios are more reliable, because both of their sides come from one run on one
server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from bench.jobs import ENDS, NODES, PODS_PER_JOB, bench_job
from tests.support.api_server import fake_nodes
from tests.support.api_server.api import JOBS, Api, Object
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.jobs import attempt_of
from tests.support.api_server.kubelet import PODS, Kubelet, pod_path
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 900.0
LEAST_PODS_A_SECOND = 40.0
PAGE = 500
START_MILLISECONDS = 5000
"""How long a fake node takes to run a pod. A real node takes seconds too. Without this delay, the measurement of the slower way to create
pods would include more of kwok's writes to these pods."""


def say(text: object) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# the cluster


@contextmanager
def kwok(cluster: Cluster, folder: Path, kubeconfig: Path, *, start_milliseconds: int = START_MILLISECONDS) -> Iterator[None]:
    """Starts fake nodes. They run every pod so many milliseconds after its creation, and end pods with the label ENDS two seconds later."""
    for number in range(NODES):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"fake-{number}"}}
        cluster.admin.apply(f"/api/v1/nodes/fake-{number}", node)
    with fake_nodes.kwok(folder, kubeconfig, start_milliseconds=start_milliseconds, ends=ENDS):
        yield


def submit(api: Api, namespace: str, manifests: list[Object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda manifest: api.create(JOBS.format(namespace), manifest), manifests))


def clear(api: Api, namespace: str) -> None:
    for path in (JOBS.format(namespace), PODS.format(namespace)):
        while api.get(f"{path}?limit=1")["items"]:
            api.request("DELETE", f"{path}?limit=200", {"gracePeriodSeconds": 0})
    for kind, folder in (("services", "/api/v1"), ("networkpolicies", "/apis/networking.k8s.io/v1")):
        path = f"{folder}/namespaces/{namespace}/{kind}"
        names = [each["metadata"]["name"] for each in api.items(path)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name, path=path: api.delete(f"{path}/{name}"), names))


class Arrivals:
    """The times at which pods of a namespace were created, by the clock of this process."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._path = api, PODS.format(namespace)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._version = str(api.get(f"{self._path}?limit=1")["metadata"]["resourceVersion"])
        self._watch = api.watch(self._path, self._version)
        self._closed = False
        self.times: list[tuple[float, Object]] = []

    def _listen(self) -> None:
        while not self._closed:
            for kind, pod in self._watch:
                self._version = pod["metadata"]["resourceVersion"]
                if kind == "ADDED":
                    self.times.append((time.monotonic(), pod))
            if not self._closed:  # a server under load drops watches that are slow to read
                self._watch = self._api.watch(self._path, self._version)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._watch.close()
        self._thread.join(10)


# the figures


@dataclass(frozen=True)
class Creation:
    """The creation of pods: pods per second, and CPU milliseconds per pod of the client, and of the API server with etcd."""

    rate: float
    client: float
    server: float


def requests_of(cluster: Cluster, namespace: str) -> list[Object]:
    """The requests of the operator's account in a namespace. Both ways to create pods are measured like this, at the same cost."""
    return [each for each in cluster.requests() if each.get("objectRef", {}).get("namespace") == namespace]


def seconds_until_last_pod(requests: list[Object], begun: float | None = None) -> float:
    """The seconds from `begun` (Unix seconds), or else from the first request, to the answer to the last creation of a pod, by the clock of
    the server."""
    pods = [each for each in requests if each["verb"] == "create" and each["objectRef"]["resource"] == "pods"]
    first = min(_unix(each["requestReceivedTimestamp"]) for each in requests) if begun is None else begun
    return max(_unix(each["stageTimestamp"]) for each in pods) - first


def _unix(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds so far."""
    return float(sum(process.cpu_times()[:2]))


def cpu_seconds_of_server() -> float:
    """CPU seconds so far of the API server and etcd."""
    return sum(cpu_seconds(each) for each in psutil.Process().children(recursive=True) if each.name() in ("kube-apiserver", "etcd"))


def direct(cluster: Cluster, kubeconfig: Path, jobs: int) -> Creation:
    """Creates the same services and pods, rendered before, with only the operator's own client."""
    namespace, pods = cluster.namespace("direct"), jobs * PODS_PER_JOB
    command = [sys.executable, "-m", "bench.direct", namespace, str(jobs)]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    before = cpu_seconds_of_server()
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    server = cpu_seconds_of_server() - before
    creation = Creation(pods / seconds_until_last_pod(requests_of(cluster, namespace)), float(done.stdout), 1000 * server / pods)
    clear(cluster.admin, namespace)
    return creation


def creation(cluster: Cluster, operator: OperatorProcess, jobs: int) -> tuple[str, Creation, float]:
    """Returns the namespace, the rate at which the operator creates the pods of jobs from the first submission on, and its CPU
    milliseconds per pod until all jobs are Running."""
    assert operator.process
    namespace, pods = cluster.namespace("jobs"), jobs * PODS_PER_JOB
    process = psutil.Process(operator.process.pid)
    begun, before, server = time.time(), cpu_seconds(process), cpu_seconds_of_server()
    submit(cluster.admin, namespace, [bench_job(f"job-{number}", number) for number in range(jobs)])
    wait_for_pods(cluster.admin, namespace, pods)
    client, server = cpu_seconds(process) - before, cpu_seconds_of_server() - server
    all_in_phase(cluster.admin, namespace, "Running", jobs)
    rate = pods / seconds_until_last_pod(requests_of(cluster, namespace), begun)
    return namespace, Creation(rate, 1000 * client / pods, 1000 * server / pods), 1000 * (cpu_seconds(process) - before) / pods


def creation_of_waiting(cluster: Cluster, operator: OperatorProcess, jobs: int) -> float:
    """The pods per second of an operator that starts among so many new jobs, counted from its first request for them. So the figure covers
    the work of the operator, and not the server's work when the jobs are submitted."""
    namespace = cluster.namespace("waiting")
    submit(cluster.admin, namespace, [bench_job(f"job-{number}", number) for number in range(jobs)])
    operator.start()
    wait_for_pods(cluster.admin, namespace, jobs * PODS_PER_JOB)
    all_in_phase(cluster.admin, namespace, "Running", jobs)
    rate = jobs * PODS_PER_JOB / seconds_until_last_pod(requests_of(cluster, namespace))
    clear(cluster.admin, namespace)
    operator.stop()
    return rate


def wait_for_pods(api: Api, namespace: str, pods: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS + pods / LEAST_PODS_A_SECOND
    while counted(api, namespace) < pods:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def counted(api: Api, namespace: str) -> int:
    """The number of pods. It is read without a list or a watch, as in the direct creation."""
    page = api.get(f"{PODS.format(namespace)}?limit=1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


def all_in_phase(api: Api, namespace: str, phase: str, count: int) -> None:
    def look() -> bool:
        """Reads no further than the first job in another phase, because a list of thousands of jobs takes seconds."""
        phases = (each.get("status", {}).get("phase") for each in in_pages(api, JOBS.format(namespace)))
        return sum(1 for _ in takewhile(phase.__eq__, phases)) == count

    wait_until(look, f"{count} jobs are {phase}", seconds=TIMEOUT_SECONDS, pause=0.5)


def in_pages(api: Api, path: str) -> Iterator[Object]:
    """All objects at the path, a page at a time."""
    token = ""
    while True:
        page = api.get(f"{path}?{urlencode({'limit': PAGE, 'continue': token})}")
        yield from page["items"]
        token = page["metadata"].get("continue", "")
        if not token:
            return


def memory(operator: OperatorProcess) -> float:
    """Resident MiB."""
    assert operator.process
    return round(psutil.Process(operator.process.pid).memory_info().rss / 2**20, 1)


def settled(operator: OperatorProcess) -> None:
    """Waits until the operator has listed the existing jobs."""
    assert operator.process
    process = psutil.Process(operator.process.pid)
    wait_until(lambda: process.cpu_percent(interval=4.0) < 5.0, "the operator has settled", seconds=TIMEOUT_SECONDS)


def replacement(cluster: Cluster, namespace: str, times: int) -> list[float]:
    """Seconds from the failure of one pod until the first and the last pod of the next attempt is created."""
    seconds = []
    for number in range(times):
        [victim] = cluster.admin.items(PODS.format(namespace), fieldSelector=f"metadata.name=job-{number}-worker-3")
        with Arrivals(cluster.admin, namespace) as arrivals:
            begun = time.monotonic()
            evicted = {"phase": "Failed", "reason": "Evicted", "message": "bench"}
            cluster.admin.patch(f"{pod_path(victim)}/status", {"status": evicted})

            def made(arrivals: Arrivals = arrivals, attempt: int = attempt_of(victim) + 1) -> list[float]:
                return [when for when, pod in arrivals.times if attempt_of(pod) == attempt]

            wait_until(lambda: len(made()) == PODS_PER_JOB, "the replacements", seconds=TIMEOUT_SECONDS)
            seconds.append(max(made()) - begun)
    return seconds


def writes_per_job(cluster: Cluster, jobs: int) -> dict[str, float]:
    """Requests of the operator per job from its creation to Succeeded, by kind, and the writes among them without Events."""
    namespace = cluster.namespace("ending")
    submit(cluster.admin, namespace, [bench_job(f"job-{number}", number, ends=True) for number in range(jobs)])
    all_in_phase(cluster.admin, namespace, "Succeeded", jobs)
    counted: dict[str, float] = {}
    for request in cluster.requests():
        target = request.get("objectRef", {})
        if target.get("namespace") != namespace:
            continue
        kind = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        counted[f"{request['verb']} {kind}"] = counted.get(f"{request['verb']} {kind}", 0) + 1 / jobs
    reads = ("get", "list", "watch")
    writes = sum(count for request, count in counted.items() if request.split()[0] not in reads and "events" not in request)
    clear(cluster.admin, namespace)
    return {"writes": round(writes, 2), **{request: round(count, 2) for request, count in sorted(counted.items())}}


def reads_for_events(cluster: Cluster, namespace: str, events: int) -> int:
    """The number of reads of jobs or pods by the operator after so many irrelevant changes of pods."""
    kubelet = Kubelet(cluster.admin)
    pods = cluster.admin.items(PODS.format(namespace), limit="100")
    before = len(_reads(cluster))
    for number in range(events):
        kubelet.set_status(pods[number % len(pods)], {"message": f"event {number}"})
    time.sleep(2.0)  # the operator has received them
    return len(_reads(cluster)) - before


def _reads(cluster: Cluster) -> list[Object]:
    return [each for each in cluster.requests() if each["verb"] in ("get", "list") and "leases" not in each["requestURI"]]


def ended_status(cluster: Cluster) -> Object:
    """The status that the operator gives a job that has succeeded."""
    namespace = cluster.namespace("pattern")
    cluster.admin.create(JOBS.format(namespace), bench_job("pattern", 0, ends=True))
    all_in_phase(cluster.admin, namespace, "Succeeded", 1)
    status: Object = cluster.admin.get(f"{JOBS.format(namespace)}/pattern")["status"]
    clear(cluster.admin, namespace)
    return status


def finished_jobs(cluster: Cluster, count: int, status: Object) -> None:
    """Creates jobs that succeeded long ago, with the status that the operator writes. It must not run meanwhile, or it would start them."""
    namespace = cluster.namespace("finished")

    def make(number: int) -> None:
        made = cluster.admin.create(JOBS.format(namespace), bench_job(f"old-{number}", number))
        path = f"{JOBS.format(namespace)}/old-{number}/status"
        cluster.admin.request("PUT", path, {**made, "status": {**status, "observedGeneration": 1}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(count)))


def rates(cluster: Cluster, account: Path, operator: OperatorProcess, *, jobs: int, rounds: int) -> tuple[str, dict[str, Any]]:
    """Creates pods directly and by the operator in turns, and directly once more, so that other load on the machine affects both. The
    operator runs at the end, with the last jobs in the given namespace."""
    directly, operated, namespace = [direct(cluster, account, jobs)], list[Creation](), ""
    until_running: list[float] = []
    waiting: list[float] = []
    figures: dict[str, Any] = {}
    for _ in range(rounds):
        if namespace:
            clear(cluster.admin, namespace)
            operator.stop()
            directly.append(direct(cluster, account, jobs))
        waiting.append(creation_of_waiting(cluster, operator, jobs))
        settled(operator.start().ready())
        idle = memory(operator)
        namespace, made, running = creation(cluster, operator, jobs)
        figures["memoryMiB"] = {"before": idle, "after": memory(operator)}
        operated.append(made)
        until_running.append(running)
        say(f"direct {directly[-1]}, of waiting jobs {waiting[-1]:.0f}/s, operator {made}, {running:.2f} ms until Running")
    operator.stop()
    directly.append(direct(cluster, account, jobs))
    settled(operator.start().ready())
    limit = _median(directly, "rate")
    figures["podsPerSecond"] = {
        "direct": [round(each.rate) for each in directly],
        "operator": [round(each) for each in waiting],
        "operatorAndSubmission": [round(each.rate) for each in operated],
    }
    figures["ratio"] = round(statistics.median(waiting) / limit, 2)
    figures["ratioWithSubmission"] = round(_median(operated, "rate") / limit, 2)
    figures["cpuMillisecondsPerPod"] = {
        "direct": {side: round(_median(directly, side), 2) for side in ("client", "server")},
        "operator": {side: round(_median(operated, side), 2) for side in ("client", "server")},
        "operatorUntilRunning": round(statistics.median(until_running), 2),
    }
    return namespace, figures


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"jobs": options.jobs, "podsPerJob": PODS_PER_JOB, "cpus": os.cpu_count()}
    with running(folder) as cluster:
        account = cluster.account_kubeconfig(folder / "account")
        with kwok(cluster, folder, cluster.kubeconfig):
            operator = OperatorProcess(cluster, folder / "operator", pod="muster-0", settings={})
            try:
                say("creation, directly and by the operator")
                namespace, created = rates(cluster, account, operator, jobs=options.jobs, rounds=options.rounds)
                figures["creation"] = created
                say("faults")
                figures["replacementSeconds"] = _spread(replacement(cluster, namespace, options.times))
                figures["readsPer1000PodEvents"] = reads_for_events(cluster, namespace, 1000)
                say("jobs that end")
                figures["perJob"] = writes_per_job(cluster, 20)
                clear(cluster.admin, namespace)
                say(figures)
                if options.many:
                    say(f"{options.many} jobs")
                    figures["many"] = many(cluster, account, operator, options.many)
                    say(figures["many"])
                if options.finished:
                    say(f"{options.finished} finished jobs")
                    figures["amongFinished"] = among_finished(cluster, account, operator, options)
            finally:
                operator.close()
    return figures


def many(cluster: Cluster, account: Path, operator: OperatorProcess, jobs: int) -> dict[str, Any]:
    operator.stop()
    limit = direct(cluster, account, jobs)
    operator.start().ready()
    namespace, made, _ = creation(cluster, operator, jobs)
    figures = {"jobs": jobs, "podsPerSecond": {"direct": round(limit.rate), "operator": round(made.rate)}, "memoryMiB": memory(operator)}
    clear(cluster.admin, namespace)
    return figures


def among_finished(cluster: Cluster, account: Path, operator: OperatorProcess, options: argparse.Namespace) -> dict[str, Any]:
    pattern = ended_status(cluster)
    operator.stop()
    finished_jobs(cluster, options.finished, pattern)
    begun = time.monotonic()
    operator.start().ready()
    ready = time.monotonic() - begun
    operator.stop()
    namespace, created = rates(cluster, account, operator, jobs=options.jobs, rounds=options.rounds)
    return {
        "jobs": options.finished,
        "readyAfterSeconds": round(ready, 1),
        "creation": created,
        "replacementSeconds": _spread(replacement(cluster, namespace, options.times)),
    }


def _median(made: list[Creation], figure: str) -> float:
    return float(statistics.median(getattr(each, figure) for each in made))


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "worst": round(max(values), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="jobs made at once")
    parser.add_argument("--rounds", type=int, default=2, help="how often both ways of creation are measured")
    parser.add_argument("--many", type=int, default=0, help="so many jobs too, 1000 say; 0: leave it out")
    parser.add_argument("--finished", type=int, default=0, help="the same among so many finished jobs, 5000 say; 0: leave it out")
    parser.add_argument("--times", type=int, default=10, help="how often a pod fails")
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(folder, options), indent=2))


if __name__ == "__main__":
    main()
