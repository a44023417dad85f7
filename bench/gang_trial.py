"""One trial of `bench.gang_trials`, in one mode."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bench.canary import Canary
from bench.gang_plan import JobPlan, Plan
from tests.support.api_server.api import JOBS, Api, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, remove_node
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import PODS, Kubelet, pod_path
from tests.support.api_server.kueue import API as KUEUE
from tests.support.api_server.kueue import kueue_object, quota
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.watched import Watched

LABEL = "bench/trial"
CYCLE_SECONDS = 5.0
"""A world counts as placed at once if its pods get their nodes within this time, or within the time in which a new job gets a node and
runs. One scheduling cycle decides for all pods of a gang. However, the API server takes the bindings one after another, and this machine
may be busy."""
STANDSTILL_SECONDS, STANDSTILL_JOBS = 20.0, 3
"""Seconds without a change, and number of newer jobs that have run meanwhile, after which a trial stands still. The scheduler tries again
after a second at most. On a busy machine a request may time out, and the operator repeats it later."""
LONGEST_TRIAL_SECONDS = 900.0
LOOK_SECONDS = 0.25


@dataclass
class Outcome:
    """The observations of a trial. `half` has worlds by job and attempt. Each had only a part of its nodes for longer than CYCLE_SECONDS,
    while a later job got its node."""

    mode: str
    worlds: set[tuple[str, int]] = field(default_factory=set)
    half: dict[tuple[str, int], float] = field(default_factory=dict)
    longest: float = 0.0
    waiting: dict[str, str] = field(default_factory=dict)
    """Jobs that fit and had not ended at the standstill, with their messages."""
    pods: list[tuple[str, str, str]] = field(default_factory=list)
    """The pods of a trial that stands still: name, phase in a list, phase in the watch."""
    last_lines: list[str] = field(default_factory=list)
    """The last log records of the operator about the jobs of a trial that stands still."""


class Queue:
    """A LocalQueue in the namespace of the same name, with its own ClusterQueue and flavor."""

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


@dataclass(frozen=True)
class Setting:
    """The environment of trials. `pods` and `jobs` are those of all trials."""

    cluster: Cluster
    operator: OperatorProcess
    pods: Watched
    jobs: Watched
    canary: Canary
    queued: bool = False
    """Whether jobs wait in queues of Kueue."""
    standstill_seconds: float = STANDSTILL_SECONDS


class Trial:
    """One trial in one mode."""

    def __init__(self, setting: Setting, seed: str, mode: str) -> None:
        self.plan, self.outcome = Plan.of(seed), Outcome(mode)
        self._setting, self._api = setting, setting.cluster.admin
        self.namespace = setting.cluster.namespace("trial")
        self._jobs, self._kubelet = Jobs(self._api, self.namespace), Kubelet(self._api)
        self._nodes = {f"{self.namespace}-node-{number}": cpu for number, cpu in enumerate(self.plan.nodes)}
        for name, cpu in self._nodes.items():
            add_node(self._api, name, cpu=cpu, labels={LABEL: self.namespace})
        self._queue = Queue(self._api, self.namespace, cpu=sum(self.plan.nodes)) if setting.queued else None
        self._begun = self._changed = time.monotonic()
        self._to_come = list(self._events())
        self._deleted: set[str] = set()
        self._lost: set[str] = set()
        self._half_since: dict[tuple[str, int], float] = {}
        self._whole_since: dict[tuple[str, int], float] = {}
        self._last: object = None

    def run(self) -> Outcome:
        """Observes its jobs and pods until the trial is over."""
        is_over = False
        while not is_over:
            assert self._setting.operator.alive
            time.sleep(LOOK_SECONDS)
            with suppress(ApiError):  # an object may be gone by now
                is_over = self._step(self._setting.jobs.of(self.namespace), self._setting.pods.of(self.namespace))
        if self.outcome.waiting:
            self.outcome.pods = self._phases()
            lines = self._setting.operator.log.read_text(errors="replace").splitlines()
            self.outcome.last_lines = [line for line in lines if f"{self.namespace}/" in line][-10:]
        self._clear()
        return self.outcome

    def _phases(self) -> list[tuple[str, str, str]]:
        watched = {pod["metadata"]["uid"]: pod["status"]["phase"] for pod in self._setting.pods.of(self.namespace)}
        listed = self._api.items(PODS.format(self.namespace))
        return [(pod["metadata"]["name"], pod["status"]["phase"], watched.get(pod["metadata"]["uid"], "")) for pod in listed]

    def _events(self) -> Iterator[tuple[float, str, str]]:
        for each in self.plan.jobs:
            yield each.arrives, "arrives", each.name
            if each.deleted is not None:
                yield max(each.deleted, each.arrives + 0.1), "deleted", each.name
        if self.plan.lost_node is not None:
            yield self.plan.lost, "lost", f"{self.namespace}-node-{self.plan.lost_node}"

    def _step(self, jobs: Sequence[Object], pods: Sequence[Object]) -> bool:
        """Returns whether the trial is over."""
        now = time.monotonic()
        self._play(now)
        for pod in pods:  # the scheduler may have bound the pod after the node was lost; a cluster removes it after a minute
            if pod["spec"].get("nodeName") in self._lost:
                self._api.delete(pod_path(pod), {"gracePeriodSeconds": 0})
        statuses = {each["metadata"]["name"]: each.get("status") or {} for each in jobs}
        for each in self.plan.jobs:
            own = [pod for pod in pods if pod["metadata"]["labels"]["muster.dev/job-name"] == each.name]
            self._look_at(each, own, ended_attempts(statuses.get(each.name, {})), now)
        if (state := state_of(jobs, pods)) != self._last:
            self._last, self._changed = state, now
        if self._to_come:
            return False
        phases = {name: status.get("phase", "Pending") for name, status in statuses.items()}
        self.outcome.waiting = {
            each.name: f"{phases.get(each.name)}: {statuses.get(each.name, {}).get('message')}"
            for each in self.plan.jobs
            if each.name not in self._deleted and each.smallest <= sum(self._nodes.values()) and phases.get(each.name) != "Succeeded"
        }
        return not self.outcome.waiting or self._stands_still(now)

    def _stands_still(self, now: float) -> bool:
        """Whether nothing has changed for long although other jobs ran. A list confirms it, because the watches may be late."""
        if now - self._begun > LONGEST_TRIAL_SECONDS:
            return True
        if self._setting.canary.runs_since(self._changed + self._setting.standstill_seconds) < STANDSTILL_JOBS:
            return False
        listed = [self._api.items(path.format(self.namespace)) for path in (JOBS, PODS)]
        if state_of(*listed) == self._last:
            return True
        self._changed = now
        return False

    def _play(self, now: float) -> None:
        """Carries out the events of the plan that are due."""
        for event in [each for each in self._to_come if each[0] <= now - self._begun]:
            self._to_come.remove(event)
            self._changed = now
            _, kind, name = event
            if kind == "arrives":
                plan = next(each for each in self.plan.jobs if each.name == name)
                template = {"spec": {"nodeSelector": {LABEL: self.namespace}}}
                worker = {"replicas": plan.workers, "resources": {"requests": {"cpu": "1"}}, "template": template}
                elastic = {"minReplicas": plan.smallest, "maxReplicas": plan.workers, "shrinkAfterSeconds": 3600}
                sizes: Object = {"elastic": elastic, "batch": {"globalSize": 64}} if plan.smallest < plan.workers else {}
                scheduling = {"gang": self.outcome.mode, **({"queue": self.namespace} if self._queue else {})}
                self._jobs.submit(job(name, roles={"worker": worker}, scheduling=scheduling, **sizes))
            elif kind == "deleted":
                self._delete(name)
            else:
                del self._nodes[name]
                self._lost.add(name)
                remove_node(self._api, name)
                if self._queue:
                    self._queue.resize(sum(self._nodes.values()))

    def _look_at(self, plan: JobPlan, pods: Sequence[Object], ended: Collection[int], now: float) -> None:
        """Records whether the newest world of a job has all of its nodes, a part, or none. Ends the pods of a world that has trained
        enough."""
        attempt = max(map(attempt_of, pods), default=0)
        world = plan.name, attempt
        members = [pod for pod in pods if attempt_of(pod) == attempt and "deletionTimestamp" not in pod["metadata"]]
        placed = [pod for pod in members if pod["spec"].get("nodeName")]
        running = [pod for pod in placed if pod["status"]["phase"] == "Running"]
        started = len([pod for pod in placed if pod["status"]["phase"] in ("Running", "Succeeded")])
        if plan.name in self._deleted or attempt in ended or any(pod["status"]["phase"] == "Failed" for pod in members):
            self._half_since.pop(world, None)
        elif len(placed) >= plan.smallest:
            self._half_since.pop(world, None)
            self.outcome.worlds.add(world)
            if running and started >= plan.smallest and now - self._whole_since.setdefault(world, now) > plan.trains:
                self._end(plan, running)
        elif world not in self.outcome.worlds:  # a complete world may later lose pods with their node
            since = self._half_since.setdefault(world, now) if placed else now
            self.outcome.longest = max(self.outcome.longest, now - since)
            if now - since > CYCLE_SECONDS and self._setting.canary.runs_since(since):
                self.outcome.half[world] = now - since

    def _end(self, plan: JobPlan, pods: Sequence[Object]) -> None:
        if plan.smallest < plan.workers:
            self._delete(plan.name)
        for pod in pods:
            self._kubelet.end(pod, 0)

    def _delete(self, job: str) -> None:
        self._deleted.add(job)
        self._jobs.delete(job)

    def _clear(self) -> None:
        self._api.delete(JOBS.format(self.namespace))
        self._api.delete(PODS.format(self.namespace), {"gracePeriodSeconds": 0})
        self._api.delete(f"/api/v1/nodes?labelSelector={LABEL}={self.namespace}")
        if self._queue:
            self._queue.remove()


def ended_attempts(status: Object) -> set[int]:
    """Attempts whose pods are being ended."""
    return {each["attempt"] for each in status.get("attempts", ()) if "endTime" in each}


def state_of(jobs: Sequence[Object], pods: Sequence[Object]) -> object:
    """A value that changes as long as the trial goes on."""
    phases = sorted((each["metadata"]["name"], (each.get("status") or {}).get("phase", "Pending")) for each in jobs)
    return phases, sorted((pod["metadata"]["uid"], pod["spec"].get("nodeName", "")) for pod in pods)
