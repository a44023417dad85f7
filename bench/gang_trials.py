"""Random contention for a few nodes, with and without gang scheduling: `make gang-trials OPTIONS="--trials 1000"`.

The control plane of Kubernetes with its scheduler, kwok's nodes, and the operator as a process under the chart's rights. Each trial has
nodes and a namespace of its own, and runs twice, with the same random choices: with `scheduling.gang` Required, and with Never. Many trials
run at the same time on one control plane. Jobs arrive, jobs are deleted, and nodes are lost. A world whose pods all run trains for a while
and ends. One that lacks a pod does not train, as in real life. An elastic job trains once its smallest world runs, and is deleted when
it has trained: the simulated pods send no reports, so the operator cannot make its world smaller.

With `--queue kueue`, all jobs wait in queues of Kueue, each trial in one of its own. Its quota is that of the nodes, also after one is
lost, and Kueue evicts a job whose pods do not run within READY_SECONDS.

Fails if a gang was placed in part, or if a trial with gangs came to a standstill although a job fitted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.control_plane import say
from tests.support.api_server.api import Api, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, remove_node, scheduling
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.kueue import API as KUEUE
from tests.support.api_server.kueue import define, kueue, kueue_object, quota
from tests.support.api_server.operators import OperatorProcess, operating

MODES = ("Required", "Never")
LABEL = "bench/trial"
CYCLE_SECONDS = 5.0
"""A world whose pods get their nodes within this time counts as placed at once. One scheduling cycle decides for all pods of a gang, but
the API server takes the bindings one after the other, and this machine may be busy."""
STANDSTILL_SECONDS, STANDSTILL_LOOKS = 20.0, 10
"""After this time and so many looks without any change, nothing will change any more. The scheduler tries again after a second at most."""
LONGEST_TRIAL_SECONDS = 300.0
READY_SECONDS = 20
ELASTIC_SHARE = 0.3
EVENTS_WITHIN_SECONDS = 5.0


@dataclass(frozen=True)
class JobPlan:
    """A job of a trial. Times are seconds since the trial began."""

    name: str
    workers: int
    smallest: int
    """Number of workers of the smallest world that trains: fewer than `workers` if the job is elastic."""
    arrives: float
    trains: float
    deleted: float | None


@dataclass(frozen=True)
class Plan:
    """The random choices of a trial. Every pod takes one CPU."""

    nodes: tuple[int, ...]
    """The CPUs of each node."""
    jobs: tuple[JobPlan, ...]
    lost_node: int | None
    lost: float

    @classmethod
    def of(cls, seed: str) -> Plan:
        dice = random.Random(seed)
        nodes = tuple(dice.randint(1, 3) for _ in range(dice.randint(2, 5)))
        room = sum(nodes)
        sizes = [dice.randint(2, max(2, room)) for _ in range(dice.randint(2, 4))]
        jobs = tuple(
            JobPlan(
                name=f"job-{number}",
                workers=workers,
                smallest=dice.randint(1, workers - 1) if dice.random() < ELASTIC_SHARE else workers,
                arrives=dice.choice((0.0, dice.uniform(0, EVENTS_WITHIN_SECONDS))),
                trains=dice.uniform(0.5, 3),
                deleted=dice.uniform(1, EVENTS_WITHIN_SECONDS) if dice.random() < 0.1 else None,
            )
            for number, workers in enumerate(sizes)
        )
        lost_node = dice.randrange(len(nodes)) if dice.random() < 0.25 else None
        return cls(nodes, jobs, lost_node, dice.uniform(1, EVENTS_WITHIN_SECONDS))


@dataclass
class Outcome:
    """The observations of a trial. `half` has the worlds that had only a part of their nodes for longer than CYCLE_SECONDS, by job and
    attempt."""

    mode: str
    worlds: set[tuple[str, int]] = field(default_factory=set)
    half: dict[tuple[str, int], float] = field(default_factory=dict)
    longest: float = 0.0
    waiting: dict[str, str] = field(default_factory=dict)
    """Jobs that fit and had not ended at the standstill, with what they say."""


class Queue:
    """A LocalQueue of this name in the namespace of this name, with its own ClusterQueue and flavor."""

    def __init__(self, api: Api, name: str, *, cpu: int) -> None:
        self._api, self._name = api, name
        api.create(f"{KUEUE}/resourceflavors", kueue_object("ResourceFlavor", name, {"nodeLabels": {LABEL: name}}))
        spec = {"namespaceSelector": {}, "resourceGroups": quota(name, cpu)}
        api.create(f"{KUEUE}/clusterqueues", kueue_object("ClusterQueue", name, spec))
        api.create(f"{KUEUE}/namespaces/{name}/localqueues", kueue_object("LocalQueue", name, {"clusterQueue": name}))

    def resize(self, cpu: int) -> None:
        self._api.patch(f"{KUEUE}/clusterqueues/{self._name}", {"spec": {"resourceGroups": quota(self._name, cpu)}})

    def remove(self) -> None:
        self._api.delete(f"{KUEUE}/namespaces/{self._name}/localqueues/{self._name}")
        for plural in ("clusterqueues", "resourceflavors"):
            self._api.delete(f"{KUEUE}/{plural}/{self._name}")


class Trial:
    """One trial in progress. `step` is called again and again with the jobs and pods of its namespace."""

    def __init__(self, cluster: Cluster, seed: str, mode: str, *, queued: bool = False) -> None:
        self.plan, self.outcome = Plan.of(seed), Outcome(mode)
        self._cluster, self._api = cluster, cluster.admin
        self.namespace = cluster.namespace("trial")
        self._jobs, self._kubelet = Jobs(self._api, self.namespace), Kubelet(self._api)
        self._nodes = {f"{self.namespace}-node-{number}": cpu for number, cpu in enumerate(self.plan.nodes)}
        for name, cpu in self._nodes.items():
            add_node(self._api, name, cpu=cpu, labels={LABEL: self.namespace})
        self._queue = Queue(self._api, self.namespace, cpu=sum(self.plan.nodes)) if queued else None
        self._begun = self._changed = time.monotonic()
        self._to_come = list(self._events())
        self._deleted: set[str] = set()
        self._half_since: dict[tuple[str, int], float] = {}
        self._whole_since: dict[tuple[str, int], float] = {}
        self._last: object = None
        self._looks = 0

    def _events(self) -> Iterator[tuple[float, str, str]]:
        for each in self.plan.jobs:
            yield each.arrives, "arrives", each.name
            if each.deleted is not None:
                yield max(each.deleted, each.arrives + 0.1), "deleted", each.name
        if self.plan.lost_node is not None:
            yield self.plan.lost, "lost", f"{self.namespace}-node-{self.plan.lost_node}"

    def step(self, statuses: Mapping[str, Object], pods: Sequence[Object]) -> bool:
        """Returns whether the trial is over. `statuses` are those of its jobs."""
        now = time.monotonic()
        self._play(now)
        for each in self.plan.jobs:
            own = [pod for pod in pods if pod["metadata"]["labels"]["muster.dev/job-name"] == each.name]
            self._look_at(each, own, ended_attempts(statuses.get(each.name, {})), now)
        phases = {name: status.get("phase", "Pending") for name, status in statuses.items()}
        state = (tuple(sorted(phases.items())), tuple(sorted((pod["metadata"]["uid"], pod["spec"].get("nodeName", "")) for pod in pods)))
        self._looks += 1
        if state != self._last:
            self._last, self._changed, self._looks = state, now, 0
        if self._to_come:
            return False
        self.outcome.waiting = {
            each.name: f"{phases.get(each.name)}: {statuses.get(each.name, {}).get('message')}"
            for each in self.plan.jobs
            if each.name not in self._deleted and each.smallest <= sum(self._nodes.values()) and phases.get(each.name) != "Succeeded"
        }
        is_quiet = now - self._changed > STANDSTILL_SECONDS + (READY_SECONDS if self._queue else 0) and self._looks > STANDSTILL_LOOKS
        stands_still = is_quiet or now - self._begun > LONGEST_TRIAL_SECONDS
        return not self.outcome.waiting or stands_still

    def _play(self, now: float) -> None:
        """Carries out the events of the plan that are due."""
        for event in [each for each in self._to_come if each[0] <= now - self._begun]:
            self._to_come.remove(event)
            self._changed = now
            _, what, name = event
            if what == "arrives":
                plan = next(each for each in self.plan.jobs if each.name == name)
                template = {"spec": {"nodeSelector": {LABEL: self.namespace}}}
                worker = {"replicas": plan.workers, "resources": {"requests": {"cpu": "1"}}, "template": template}
                elastic = {"minReplicas": plan.smallest, "maxReplicas": plan.workers, "shrinkAfterSeconds": 3600}
                sizes: Object = {"elastic": elastic, "batch": {"globalSize": 64}} if plan.smallest < plan.workers else {}
                scheduling = {"gang": self.outcome.mode, **({"queue": self.namespace} if self._queue else {})}
                self._jobs.submit(job(name, roles={"worker": worker}, scheduling=scheduling, **sizes))
            elif what == "deleted":
                self._delete(name)
            else:
                del self._nodes[name]
                remove_node(self._api, name)
                if self._queue:
                    self._queue.resize(sum(self._nodes.values()))

    def _look_at(self, plan: JobPlan, pods: Sequence[Object], ended: Collection[int], now: float) -> None:
        """Notes whether the newest world of a job has all of its nodes, a part, or none. Ends the pods of one that has trained enough."""
        attempt = max(map(attempt_of, pods), default=0)
        world = plan.name, attempt
        members = [pod for pod in pods if attempt_of(pod) == attempt and "deletionTimestamp" not in pod["metadata"]]
        placed = [pod for pod in members if pod["spec"].get("nodeName")]
        running = [pod for pod in placed if pod["status"]["phase"] == "Running"]
        if plan.name in self._deleted or attempt in ended or any(pod["status"]["phase"] == "Failed" for pod in members):
            self._half_since.pop(world, None)
        elif len(placed) >= plan.smallest:
            self._half_since.pop(world, None)
            self.outcome.worlds.add(world)
            if len(running) >= plan.smallest and now - self._whole_since.setdefault(world, now) > plan.trains:
                self._end(plan, running)
        elif world not in self.outcome.worlds:  # later it may lose pods with their node
            since = self._half_since.setdefault(world, now) if placed else now
            self.outcome.longest = max(self.outcome.longest, now - since)
            if now - since > CYCLE_SECONDS:
                self.outcome.half[world] = now - since

    def _end(self, plan: JobPlan, pods: Sequence[Object]) -> None:
        if plan.smallest < plan.workers:
            self._delete(plan.name)
        for pod in pods:
            self._kubelet.end(pod, 0)

    def _delete(self, job: str) -> None:
        self._deleted.add(job)
        self._jobs.delete(job)

    def clear(self) -> None:
        self._cluster.empty(self.namespace)
        for name in self._nodes:
            remove_node(self._api, name)
        if self._queue:
            self._queue.remove()


def ended_attempts(status: Object) -> set[int]:
    """Attempts whose pods are being ended."""
    return {each["attempt"] for each in status.get("attempts", ()) if "endTime" in each}


def run(cluster: Cluster, operator: OperatorProcess, seeds: Sequence[str], *, at_once: int, seconds: float, queued: bool) -> list[Outcome]:
    """Runs the trials in both modes. Begins none after so many seconds. `queued`: jobs wait in queues of Kueue."""
    until = time.monotonic() + seconds
    queue = deque((seed, mode) for seed in seeds for mode in MODES)
    running: list[Trial] = []
    outcomes: list[Outcome] = []
    while queue or running:
        if time.monotonic() > until and len(queue) % len(MODES) == 0:  # each trial that has begun runs in all modes
            queue.clear()
        while queue and len(running) < at_once:
            running.append(Trial(cluster, *queue.popleft(), queued=queued))
        assert operator.alive
        jobs = cluster.admin.items("/apis/muster.dev/v1alpha1/trainingjobs")
        pods = cluster.admin.items("/api/v1/pods", labelSelector="muster.dev/job-name")
        for trial in list(running):
            statuses = {
                each["metadata"]["name"]: each.get("status") or {} for each in jobs if each["metadata"]["namespace"] == trial.namespace
            }
            with suppress(ApiError):  # what it asks for may have gone since
                if trial.step(statuses, [pod for pod in pods if pod["metadata"]["namespace"] == trial.namespace]):
                    trial.clear()
                    running.remove(trial)
                    outcomes.append(trial.outcome)
                    if trial.outcome.mode != "Never" and trial.outcome.waiting:
                        say(f"{trial.plan}: {trial.outcome}")
                    if len(outcomes) % 20 == 0:
                        say(f"{len(outcomes)} of {len(seeds) * len(MODES)} trials; {summary(outcomes)}")
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> str:
    half, stuck = Counter[str](), Counter[str]()
    for each in outcomes:
        half[each.mode] += len(each.half)
        stuck[each.mode] += bool(each.waiting)
    return ", ".join(f"{mode}: {half[mode]} worlds placed in part, {stuck[mode]} standstills" for mode in MODES)


def table(outcomes: Sequence[Outcome]) -> str:
    by_mode = [[each for each in outcomes if each.mode == mode] for mode in MODES]
    rows = {
        "": MODES,
        "trials": [len(each) for each in by_mode],
        "worlds that got all of their nodes": [sum(len(one.worlds) for one in each) for each in by_mode],
        f"worlds with only a part of their nodes for more than {CYCLE_SECONDS:.0f} s": [
            sum(len(one.half) for one in each) for each in by_mode
        ],
        "longest time with only a part of the nodes, s": [f"{max((one.longest for one in each), default=0):.1f}" for each in by_mode],
        "trials that came to a standstill with a job that fits": [sum(bool(one.waiting) for one in each) for each in by_mode],
    }
    return "\n".join(f"{what:<58}" + "".join(f"{value:>10}" for value in values) for what, values in rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100, help="number of trials; each runs in both modes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further trial after so many minutes")
    parser.add_argument("--at-once", type=int, default=16, help="trials that run at the same time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the random choices")
    parser.add_argument("--queue", choices=["kueue"], help="let the jobs wait in queues of Kueue")
    options = parser.parse_args()
    say(f"repeat the random choices with --seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="muster-gang-trials-") as name:
        folder = Path(name)
        with ExitStack() as stack:
            chart = ["--set", "queueing.kueue.enabled=true"] if options.queue else []
            cluster = stack.enter_context(scheduling(folder, options=chart))
            if options.queue:
                define(cluster.admin)
                stack.enter_context(kueue(folder, cluster.kubeconfig, ready_seconds=READY_SECONDS))
            operator = stack.enter_context(operating(cluster, folder / "operator"))
            seeds = [f"{options.seed}-{number}" for number in range(options.trials)]
            seconds, queued = options.minutes * 60, options.queue is not None
            outcomes = run(cluster, operator, seeds, at_once=options.at_once, seconds=seconds, queued=queued)
    print(table(outcomes))
    wrong = [each for each in outcomes if each.mode == "Required" and (each.half or each.waiting)]
    if wrong:
        sys.exit(f"gangs went wrong: {wrong}")


if __name__ == "__main__":
    main()
