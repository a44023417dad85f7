"""The scale of the operator: `python -m bench.scale`, or `make bench-scale`. Prints a table, and fails if a job did not recover.

The bench runs a real API server, the fake nodes of kwok, the operator as a process with the rights of the chart, and simulated supervisors
(bench/supervisors.py). So a job of thousands of replicas starts, reports, breaks and recovers as a real one does. The defaults take some
minutes on two idle cores. A nightly run may use `--replicas 4096 --jobs 1000 --held 12500 --losses 100`.

The seconds depend on this machine, which also runs the API server, etcd, the nodes and all supervisors. Both sides of a ratio come from the
same run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path

import psutil

from bench.control_plane import (
    Arrivals,
    all_in_phase,
    clear,
    cpu_seconds,
    creation,
    direct,
    in_pages,
    kwok,
    memory,
    requests_of,
    say,
    settled,
    submit,
    wait_for_pods,
    writes_per_job,
)
from bench.jobs import PODS_PER_JOB, bench_job
from bench.supervisors import Crew
from tests.support.api_server.api import JOBS, Object
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.jobs import attempt_of
from tests.support.api_server.kubelet import PODS, pod_path
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until

START_MILLISECONDS = 500
TIMEOUT_SECONDS = 1800.0
LARGE = "large"
LEADER_LOSSES = 3  # each needs a job of its own


@dataclass
class Results:
    """The rows of the table, and the failures."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    figures: Object = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, what: str, value: float, form: str = "{:.2f}", goal: str = "") -> None:
        self.figures[what] = round(value, 3)
        self.rows.append((what, form.format(value), goal))
        say(f"{what}: {form.format(value)}")

    def require(self, what: str, *, holds: bool) -> None:
        if not holds:
            self.problems.append(what)
            say(f"NOT AS IT MUST BE: {what}")

    def table(self) -> str:
        widths = [max(len(row[column]) for row in self.rows) for column in range(2)]
        return "\n".join(f"{what:<{widths[0]}}  {value:>{widths[1]}}  {goal}".rstrip() for what, value, goal in self.rows)


@dataclass(frozen=True)
class Stage:
    """The processes on which all figures are measured."""

    cluster: Cluster
    account: Path
    operator: OperatorProcess
    folder: Path
    results: Results

    @contextmanager
    def standby(self) -> Iterator[OperatorProcess]:
        standby = OperatorProcess(self.cluster, self.folder / "standby", pod="muster-1", settings={}).start()
        try:
            wait_until(lambda: standby.probe("readyz")[0] == 200, "the standby is ready", seconds=TIMEOUT_SECONDS)
            yield standby
        finally:
            standby.close()

    def refusals(self) -> float:
        """Requests of the operator that the API server has refused with 429."""
        counts = re.findall(r'^muster_api_requests_total\{.*status="429".*\} (\S+)$', self.operator.figures(), re.MULTILINE)
        return sum(map(float, counts))


# many jobs


def many_jobs(stage: Stage, options: argparse.Namespace) -> None:
    """Pods per second compared with direct creation, writes per job, and the cost of running jobs."""
    cluster, operator, results = stage.cluster, stage.operator, stage.results
    limits = [direct(cluster, stage.account, options.jobs)]
    settled(operator.start().ready())
    namespace, made, _ = creation(cluster, operator, options.jobs)
    operator.stop()
    limits.append(direct(cluster, stage.account, options.jobs))
    limit = statistics.median(each.rate for each in limits)
    jobs = f"{options.jobs} jobs x {PODS_PER_JOB}"
    results.add(f"{jobs}: pods/s", made.rate, "{:.0f}")
    results.add(f"{jobs}: pods/s made directly", limit, "{:.0f}")
    results.add(f"{jobs}: of direct creation", made.rate / limit, goal="0.8" if options.jobs < 1000 else "0.7")
    results.add(f"{jobs}: CPU ms per pod", made.client)
    operator.start().ready()
    results.add(f"{jobs}: operator's RSS, MiB", memory(operator), "{:.0f}")
    while_reporting(stage, options)
    clear(cluster.admin, namespace)
    counted = writes_per_job(cluster, min(20, options.jobs))
    results.add("writes per job, without Events", counted["writes"])
    results.add("Events per job", sum(count for what, count in counted.items() if "events" in what))
    results.add("status writes per job", counted.get("update trainingjobs/status", 0.0))


def while_reporting(stage: Stage, options: argparse.Namespace) -> None:
    """Writes and bytes of the status while jobs train."""
    cluster, operator = stage.cluster, stage.operator
    namespace, names = cluster.namespace("reporting"), [f"job-{number}" for number in range(options.reporting)]
    crew = Crew(cluster.admin, namespace, operator, dict.fromkeys(names, PODS_PER_JOB))
    assert operator.process
    process = psutil.Process(operator.process.pid)
    with crew.working():
        submit(cluster.admin, namespace, [bench_job(name, number) for number, name in enumerate(names)])
        wait_until(lambda: all(crew.stepped(name, 0) for name in names), "all worlds do a first step", seconds=TIMEOUT_SECONDS)
        time.sleep(options.seconds / 4)  # the first reports have been sent
        before, cpu_before, begun, reports = len(requests_of(cluster, namespace)), cpu_seconds(process), time.monotonic(), crew.reports
        time.sleep(options.seconds)
        seconds = time.monotonic() - begun
        requests = requests_of(cluster, namespace)[before:]
        cores = (cpu_seconds(process) - cpu_before) / seconds
        rate = (crew.reports - reports) / seconds
    writes = sum(each["verb"] == "update" and each["objectRef"].get("subresource") == "status" for each in requests)
    statuses = [len(json.dumps(each["status"])) for each in cluster.admin.items(JOBS.format(namespace))]
    job_hours = len(names) * seconds / 3600
    results, what = stage.results, f"{len(names)} jobs that report"
    results.add(f"{what}: status writes per job-hour", writes / job_hours, "{:.0f}")
    results.add(f"{what}: bytes of a status", statistics.mean(statuses), "{:.0f}")
    results.add(f"{what}: MB of status written per job-hour", writes / job_hours * statistics.mean(statuses) / 1e6)
    results.add(f"{what}: reports/s", rate, "{:.0f}")
    results.add(f"{what}: cores of the operator", cores)
    results.require(f"jobs that report: no report fails ({crew.failures[:1]})", holds=not crew.failures)
    clear(cluster.admin, namespace)


# one large job


def large_job(stage: Stage, options: argparse.Namespace) -> None:
    """The first world, then one lost replica, then the loss of half of them."""
    cluster, operator, results = stage.cluster, stage.operator, stage.results
    size, namespace = options.replicas, cluster.namespace("large")
    limit = direct(cluster, stage.account, max(1, size // PODS_PER_JOB)).rate
    assert operator.process
    process = psutil.Process(operator.process.pid)
    crew = Crew(cluster.admin, namespace, operator, {LARGE: size})
    what = f"one job of {size}"
    with crew.working():
        begun, cpu, own = time.monotonic(), cpu_seconds(process), time.process_time()
        submit(cluster.admin, namespace, [bench_job(LARGE, 0, workers=size)])
        wait_for_pods(cluster.admin, namespace, size)
        results.add(f"{what}: pods made, s", time.monotonic() - begun, goal=f"{size / limit:.1f} s directly")
        results.add(f"{what}: first world, s", stepped(crew, 0) - begun, goal="60 s for 4,096")
        results.add(f"{what}: CPU s of the operator for it", cpu_seconds(process) - cpu)
        all_in_phase(cluster.admin, namespace, "Running", 1)
        for attempt, (lost, goal) in enumerate(((1, "3 s for 4,096"), (size // 2, "10 s for 4,096")), start=1):
            cpu = cpu_seconds(process)
            began, ended = lose(stage, namespace, lost)
            back = stepped(crew, attempt)
            results.add(f"{what}: {lost} lost, s until the next world's first step", back - began, goal=goal)
            if lost > 1:
                results.add(f"{what}: {lost} lost, s since the last of them", back - ended)
            results.add(f"{what}: {lost} lost, CPU s of the operator", cpu_seconds(process) - cpu)
            wait_until(partial(came_back, stage, namespace, attempt), "the job runs again", seconds=TIMEOUT_SECONDS)
        results.add(f"{what}: operator's RSS, MiB", memory(operator), "{:.0f}")
        status = cluster.admin.get(f"{JOBS.format(namespace)}/{LARGE}")["status"]
        results.add(f"{what}: bytes of its status", len(json.dumps(status)), "{:.0f}")
        quantiles = statistics.quantiles(crew.seconds, n=100)
        results.add(f"{what}: s for a report, 99%", quantiles[98])
        results.add(
            f"{what}: share of the time in which the supervisors' process was busy",
            (time.process_time() - own) / (time.monotonic() - begun),
        )
        results.add(f"{what}: reports that failed", len(crew.failures), "{:.0f}", goal="0")
        restarts = status["restarts"]["total"]  # more than two where the operator was quicker than the losses
        results.add(f"{what}: restarts", restarts, "{:.0f}", goal="2, or few more")
        results.require(f"{what}: 2 to 5 restarts, not {restarts}", holds=2 <= restarts <= 5)
        if crew.failures:
            say(f"the first report that failed: {crew.failures[0]}")
    clear(cluster.admin, namespace)


def stepped(crew: Crew, attempt: int) -> float:
    """When the world of this attempt, or of a later one, did its first step."""
    return wait_until(lambda: crew.stepped(LARGE, attempt), f"attempt {attempt} does a first step", seconds=TIMEOUT_SECONDS) or 0.0


def came_back(stage: Stage, namespace: str, attempt: int) -> bool:
    status = stage.cluster.admin.get(f"{JOBS.format(namespace)}/{LARGE}")["status"]
    return bool(status["phase"] == "Running" and status["attempt"] >= attempt)


def lose(stage: Stage, namespace: str, count: int) -> tuple[float, float]:
    """Ends so many pods, the last ones of the job. Returns when the first and the last one ended."""
    admin = stage.cluster.admin
    pods = sorted(admin.items(PODS.format(namespace)), key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))[-count:]
    status = {"phase": "Failed", "reason": "Evicted", "message": "bench"}
    begun = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda pod: admin.patch(f"{pod_path(pod)}/status", {"status": status}), pods))
    return begun, time.monotonic()


# operators that go


def without_its_leader(stage: Stage, options: argparse.Namespace) -> None:
    """Creates many jobs. One of them loses a pod at the moment in which the leader is killed. Measures the seconds until its next world is
    created."""
    cluster, operator, results = stage.cluster, stage.operator, stage.results
    count, namespace = options.held, cluster.namespace("held")
    submit(cluster.admin, namespace, [bench_job(f"job-{number}", number) for number in range(count)])
    wait_for_pods(cluster.admin, namespace, count * PODS_PER_JOB)
    all_in_phase(cluster.admin, namespace, "Running", count)
    settled(operator)
    label = f"{count} jobs, {count * PODS_PER_JOB} pods held"
    results.add(f"{label}: operator's RSS, MiB", memory(operator), "{:.0f}", goal="1,536 MiB for 100,000 pods")
    lost = sorted(replaced(stage, namespace, LEADER_LOSSES + number, lambda: None) for number in range(options.losses))
    results.add(f"{label}: a lost pod's world made anew, s (median of {len(lost)})", statistics.median(lost))
    results.add(f"{label}: the same, s (99%)", lost[ceil(0.99 * len(lost)) - 1], goal="1 s")

    def restart() -> None:
        operator.kill()
        operator.start()

    results.add(f"{label}: operator restarted in its pod, s", replaced(stage, namespace, 0, restart), goal="15 s")
    wait_until(lambda: operator.leads, "the operator leads again", seconds=TIMEOUT_SECONDS)
    with stage.standby() as standby:
        settled(standby)
        results.add(f"{label}: the standby's RSS, MiB", memory(standby), "{:.0f}")
        results.add(f"{label}: leader killed, a standby there, s", replaced(stage, namespace, 1, operator.kill), goal="5 s")
        results.require("the standby leads", holds=standby.leads)

        def start_another() -> None:
            standby.kill()
            operator.start()

        results.add(f"{label}: leader killed, another pod started, s", replaced(stage, namespace, 2, start_another), goal="15 s")
    restarts = [int(each["status"]["restarts"]["total"]) for each in in_pages(cluster.admin, JOBS.format(namespace))]
    once = sum(restarts) == options.losses + LEADER_LOSSES and max(restarts) == 1
    results.require(f"only the jobs that lost a pod restarted: {sum(restarts)} restarts", holds=once)


def replaced(stage: Stage, namespace: str, number: int, trouble: Callable[[], None]) -> float:
    """Seconds from the fault, with which one pod of this job fails too, until all pods of the job's next attempt are created."""
    admin = stage.cluster.admin
    name = f"job-{number}"
    victim = admin.get(f"{PODS.format(namespace)}/{name}-worker-3")
    attempt = attempt_of(victim) + 1
    with Arrivals(admin, namespace) as arrivals:
        begun = time.monotonic()
        trouble()
        admin.patch(f"{pod_path(victim)}/status", {"status": {"phase": "Failed", "reason": "Evicted", "message": "bench"}})

        def made() -> list[float]:
            return [
                when for when, pod in list(arrivals.times) if pod["metadata"]["name"].startswith(f"{name}-") and attempt_of(pod) == attempt
            ]

        wait_until(lambda: len(made()) == PODS_PER_JOB, f"the next world of {name} is made", seconds=TIMEOUT_SECONDS)
        seconds = max(made()) - begun

    def runs() -> bool:
        status = admin.get(f"{JOBS.format(namespace)}/{name}")["status"]
        return bool(status["phase"] == "Running" and status["attempt"] == attempt)

    wait_until(runs, f"{name} runs again", seconds=TIMEOUT_SECONDS)
    return seconds


# the run


def measure(folder: Path, options: argparse.Namespace, results: Results) -> None:
    with running(folder) as cluster:
        account = cluster.account_kubeconfig(folder / "account")
        operator = OperatorProcess(cluster, folder / "operator", pod="muster-0", settings={})
        stage = Stage(cluster, account, operator, folder, results)
        with kwok(cluster, folder, cluster.kubeconfig, start_milliseconds=START_MILLISECONDS):
            try:
                many_jobs(stage, options)
                large_job(stage, options)
                results.add("requests refused with 429", stage.refusals(), "{:.0f}")
                without_its_leader(stage, options)
                unexpected = "ERROR muster.operator" in operator.log.read_text()
                results.require("no pass over a job ends with an error that is not the API server's", holds=not unexpected)
            finally:
                operator.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help=f"jobs of {PODS_PER_JOB} pods that are made at once")
    parser.add_argument("--replicas", type=int, default=256, help="replicas of the large job")
    parser.add_argument("--held", type=int, default=100, help=f"jobs of {PODS_PER_JOB} pods that are held while the operator is killed")
    parser.add_argument("--losses", type=int, default=1, help="of those jobs lose a pod each, one after the other")
    parser.add_argument("--reporting", type=int, default=10, help=f"jobs of {PODS_PER_JOB} pods whose supervisors report")
    parser.add_argument("--seconds", type=float, default=60.0, help="for so long")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    options = parser.parse_args()
    if options.losses < 1:
        parser.error(f"--losses {options.losses}: write 1 or more")
    if options.held < LEADER_LOSSES + options.losses:
        parser.error(f"--held {options.held}: write {LEADER_LOSSES + options.losses} or more, because each loss needs a job of its own")
    results, loads = Results(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="muster-scale-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            measure(folder, options, results)
        except AssertionError as error:  # a condition that did not hold in time
            results.problems.append(str(error))
    loads.append(os.getloadavg()[0])
    machine = {"cpus": os.cpu_count(), "loadBefore": round(loads[0], 1), "loadAfter": round(loads[1], 1)}
    if options.json:
        options.json.write_text(json.dumps({**machine, **results.figures, "problems": results.problems}, indent=2))
    print(f"{machine['cpus']} CPUs; load {loads[0]:.1f} before, {loads[1]:.1f} after\n{results.table() if results.rows else ''}")
    for problem in results.problems:
        print(f"FAILED: {problem}")
    return 1 if results.problems else 0


if __name__ == "__main__":
    sys.exit(main())
