"""Spot interruptions on one hundred simulated nodes: `python -m bench.spot`. Prints a table.

The bench runs the control plane of Kubernetes with its scheduler, kwok's nodes, the operator as a process with the rights of the chart, and
simulated supervisors. Each node has room for one pod. A seeded trace interrupts nodes: a node gets the taint of Karpenter, is removed after
the notice, and is replaced by another one later. The same trace runs once with each policy:

- checkpoints: jobs ignore notices, and a lost pod costs all steps since the last commit, as with any operator that restarts pods;
- survivors: jobs ignore notices, and the processes that survive save, as Muster does by default without notices;
- notices: `recovery.nodeNotices: Auto`.

Interruptions come more often than in a real cluster, so that some minutes suffice. The last columns say what the seconds that one of them
costs mean at the rates that were measured for spot instances: 10 and 33 percent of the nodes in an hour
(https://www.usenix.org/conference/nsdi23/presentation/thorpe). No process trains: steps are counted by time.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.control_plane import say
from bench.supervisors import Crew, Supervisor, World
from muster_contract.events import Commit, Resumed
from muster_contract.reports import Progress, Report
from muster_contract.wire import decode
from tests.support.api_server.api import JOBS, Api, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, remove_node, scheduling
from tests.support.api_server.jobs import job
from tests.support.api_server.kubelet import PODS
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.api_server.reports import progress
from tests.support.waiting import wait_until

WORKERS = 8
TAINT = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
POLICIES = ("checkpoints", "survivors", "notices")
STEP_SECONDS = 0.5
MEASURED_RATES = (0.10, 0.33)
"""Interruptions of a node in an hour."""


@dataclass(frozen=True)
class Interruption:
    """`at` is in seconds since the start of the trace. `node` is the number of the node among those that exist then."""

    at: float
    node: int


def trace(seed: str, *, nodes: int, per_node_hour: float, seconds: float) -> list[Interruption]:
    """A Poisson process: each node is interrupted so often in an hour on average."""
    draw, found, at = random.Random(seed), [], 0.0
    while (at := at + draw.expovariate(nodes * per_node_hour / 3600)) < seconds:
        found.append(Interruption(at, draw.randrange(nodes)))
    return found


@dataclass
class Count:
    """What a job has done. Times are in monotonic seconds."""

    done: int = 0
    """The newest step."""
    redone: int = 0
    """Steps that were done again."""
    stood: list[float] = field(default_factory=list)
    """Seconds without a step, by attempt."""


class TrainingWorld(World):
    """A world whose steps take STEP_SECONDS. It commits every `commit_seconds`, and when it ends in order. `survives` is whether a lost
    member leaves the last step to the others."""

    def __init__(self, size: int, *, commit_seconds: float, survives: bool) -> None:
        super().__init__(size)
        self.count = Count()
        self._every = max(1, int(commit_seconds / STEP_SECONDS))
        self._survives = survives
        self._resumed: dict[int, int] = {}
        self._ended: dict[int, float] = {}
        self._committed = 0

    def starts(self, attempt: int) -> None:
        is_new = attempt not in self.stepped
        super().starts(attempt)
        if is_new and attempt in self.stepped:
            self._resumed[attempt] = self._committed
            self.count.redone += self.count.done - self._committed
            if self._ended:
                self.count.stood.append(self.stepped[attempt] - max(self._ended.values()))

    def ends(self, attempt: int) -> None:
        """The first member to end is the end of the world, because no step can be done without it."""
        super().ends(attempt)
        self._end(attempt, in_order=True)

    def remove(self, uid: str) -> None:
        """A member disappears with its node, or is deleted after it has left the world."""
        if not self.members[uid].waiting:
            self._end(self.members[uid].attempt, in_order=self._survives)
        super().remove(uid)

    def step(self, attempt: int) -> int:
        """The newest step of a world that has begun."""
        until = self._ended.get(attempt, time.monotonic())
        step = self._resumed[attempt] + 1 + int((until - self.stepped[attempt]) / STEP_SECONDS)
        self.count.done = max(self.count.done, step)
        self._committed = max(self._committed, step // self._every * self._every)
        return step

    @property
    def trains(self) -> bool:
        """Whether the newest attempt does steps."""
        return max(self.stepped) not in self._ended

    def newest(self) -> int:
        """The newest step of all."""
        self.step(max(self.stepped))
        return self.count.done

    def commit(self, attempt: int) -> int:
        return min(self._committed, self.step(attempt))

    def resumed(self, attempt: int) -> int:
        return self._resumed[attempt]

    def _end(self, attempt: int, *, in_order: bool) -> None:
        if attempt not in self.stepped or attempt in self._ended:
            return
        self._ended[attempt] = time.monotonic()
        step = self.step(attempt)
        if in_order:
            self._committed = step


class TrainingSupervisor(Supervisor):
    """One replica of a world that trains. A replica that stands by waits for a world."""

    def __init__(self, pod: Object, world: World) -> None:
        super().__init__(pod, world)
        labels = pod["metadata"]["labels"]
        self.waiting = "muster.dev/standby" in labels
        self._rank = int(labels["muster.dev/index"])

    def obey(self, reply: Object) -> None:
        self._rank = int((reply.get("world") or {}).get("RANK", self._rank))
        super().obey(reply)

    def report(self) -> Report:
        state, world = super().report(), self.world
        assert isinstance(world, TrainingWorld)
        if not self.waiting and self.attempt in world.stepped:
            step, committed = world.step(self.attempt), world.commit(self.attempt)
            commit = Commit(step=committed, path=f"step-{committed:08d}", time=time.time(), seconds=0.1)
            resumed = Resumed(step=world.resumed(self.attempt))
            figures = replace(decode(Progress, progress(step)), total_steps=10**6) if self._rank == 0 else None
            state = replace(state, resumed=resumed, progress=figures, checkpoint=commit if self._rank == 0 and committed else None)
        return state


class Fleet:
    """The nodes of one run. A node that has gone is replaced."""

    def __init__(self, api: Api, policy: str, count: int) -> None:
        self._api, self._numbers, self._policy = api, itertools.count(), policy
        self._lock = threading.Lock()
        self.nodes: list[str] = []
        self.node_seconds = 0.0
        self._since: dict[str, float] = {}
        self._timers: list[threading.Timer] = []
        for _ in range(count):
            self._add()

    def interrupt(self, number: int, *, notice: float, replacement: float) -> str:
        """Announces the end of a node, which is removed after the notice and replaced later. Returns its name."""
        with self._lock:
            name = self.nodes.pop(number % len(self.nodes))
        self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [TAINT]}})
        self._later(notice, self._remove, name)
        self._later(notice + replacement, self._add)
        return name

    def used(self) -> float:
        """Seconds of nodes so far."""
        with self._lock:
            return self.node_seconds + sum(time.monotonic() - since for since in self._since.values())

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for name in list(self._since):
            self._remove(name)

    def _later(self, seconds: float, what: Callable[..., None], *arguments: str) -> None:
        timer = threading.Timer(seconds, what, arguments)
        self._timers.append(timer)
        timer.start()

    def _add(self) -> None:
        name = f"{self._policy}-{next(self._numbers)}"
        add_node(self._api, name, cpu=1)
        with self._lock:
            self.nodes.append(name)
            self._since[name] = time.monotonic()

    def _remove(self, name: str) -> None:
        with suppress(ApiError):  # one of its pods has ended meanwhile
            remove_node(self._api, name)
        with self._lock:
            self.node_seconds += time.monotonic() - self._since.pop(name)


@dataclass(frozen=True)
class Outcome:
    """One run of the trace. `hits` are interruptions of nodes with a pod of a world."""

    policy: str
    interruptions: int
    hits: int
    seconds: float
    done: int
    redone: int
    stood: list[float]
    node_hours: float
    charged: int
    """Restarts that budgets have counted."""
    reasons: dict[str, int]
    """How many attempts ended for each reason."""

    def row(self, jobs: int) -> list[str]:
        lost = (sum(self.stood) + self.redone * STEP_SECONDS) / max(1, self.hits)
        return [
            self.policy,
            str(self.hits),
            f"{statistics.median(self.stood):.1f}" if self.stood else "-",
            f"{max(self.stood):.1f}" if self.stood else "-",
            str(self.redone),
            str(self.charged),
            f"{self.done * STEP_SECONDS / (self.seconds * jobs):.3f}",
            f"{self.node_hours / max(1, self.done) * 1e6:.0f}",
            *(f"{1 - WORKERS * rate / 3600 * lost:.4f}" for rate in MEASURED_RATES),
        ]


HEAD = [
    "policy",
    "hits",
    "s without a step",
    "at most",
    "steps redone",
    "charged",
    "goodput",
    "node-hours per 1e6 steps",
    *(f"goodput at {rate:.0%}/h" for rate in MEASURED_RATES),
]


def run(cluster: Cluster, operator: OperatorProcess, policy: str, options: argparse.Namespace) -> Outcome:
    """Lets the trace happen once."""
    namespace, admin = cluster.namespace(policy), cluster.admin
    names = [f"job-{number}" for number in range(options.jobs)]
    found = trace(options.seed, nodes=options.nodes, per_node_hour=options.rate, seconds=options.seconds)

    def world(size: int) -> TrainingWorld:
        return TrainingWorld(size, commit_seconds=options.commit, survives=policy != "checkpoints")

    crew = Crew(admin, namespace, operator, dict.fromkeys(names, WORKERS), world=world, supervisor=TrainingSupervisor)
    worlds = [each for each in crew.worlds.values() if isinstance(each, TrainingWorld)]
    recovery = {"nodeNotices": "Auto" if policy == "notices" else "Ignore", "infrastructure": {"limit": -1}, "preemption": {"limit": -1}}
    roles = {"worker": {"replicas": WORKERS, "resources": {"requests": {"cpu": "1"}}}}
    with closing(Fleet(admin, policy, options.nodes)) as fleet, crew.working():
        for name in names:
            admin.create(JOBS.format(namespace), job(name, roles=roles, recovery=recovery, checkpoint={"everySteps": 10}))
        wait_until(lambda: all(each.stepped for each in worlds), "all worlds do a first step", seconds=600)
        time.sleep(5)  # the operator knows of the first steps
        say(f"{policy}: {len(names)} jobs train; {len(found)} interruptions follow")
        begun, before, hits = time.monotonic(), sum(each.newest() for each in worlds), 0
        for each in found:
            time.sleep(max(0.0, begun + each.at - time.monotonic()))
            node = fleet.interrupt(each.node, notice=options.notice, replacement=options.replacement)
            pods = admin.items(PODS.format(namespace), fieldSelector=f"spec.nodeName={node}")
            hits += any("muster.dev/standby" not in pod["metadata"]["labels"] for pod in pods)
        time.sleep(max(0.0, begun + options.seconds - time.monotonic()))
        done, seconds = sum(each.newest() for each in worlds) - before, time.monotonic() - begun
        wait_until(lambda: all(each.trains for each in worlds), "all worlds train again", seconds=600)
        statuses = [each["status"] for each in admin.items(JOBS.format(namespace))]
        node_hours = fleet.used() / 3600
    if crew.failures:
        say(f"{len(crew.failures)} reports failed, the first: {crew.failures[0]}")
    for name in names:
        admin.delete(f"{JOBS.format(namespace)}/{name}")
    cluster.empty(namespace)
    return Outcome(
        policy,
        len(found),
        hits,
        seconds,
        done,
        sum(each.count.redone for each in worlds),
        [pause for each in worlds for pause in each.count.stood],
        node_hours,
        sum(int(each["restarts"]["total"]) for each in statuses),
        Counter(attempt["reason"] for each in statuses for attempt in each["attempts"] if attempt.get("reason")),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="nodes, with room for one pod each")
    parser.add_argument("--jobs", type=int, default=11, help=f"jobs of {WORKERS} workers")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the trace")
    parser.add_argument("--rate", type=float, default=1.0, help="interruptions of a node in an hour")
    parser.add_argument("--notice", type=float, default=30.0, help="seconds from the notice until the node is removed")
    parser.add_argument("--replacement", type=float, default=60.0, help="seconds until another node is there")
    parser.add_argument("--start", type=float, default=10.0, help="seconds until a new pod runs")
    parser.add_argument("--commit", type=float, default=60.0, help="seconds between commits")
    parser.add_argument("--seed", default=str(random.randrange(1 << 32)), help="of the trace")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    options = parser.parse_args()
    if options.jobs * WORKERS > options.nodes:
        parser.error(f"--jobs {options.jobs} with {WORKERS} workers each need more than --nodes {options.nodes}")
    say(f"repeat the trace with --seed {options.seed}")
    rows = [HEAD]
    with tempfile.TemporaryDirectory(prefix="muster-spot-") as name:
        folder = Path(name)
        with (
            scheduling(folder, start_milliseconds=int(options.start * 1000)) as cluster,
            operating(cluster, folder / "operator") as operator,
        ):
            for policy in options.policies:
                outcome = run(cluster, operator, policy, options)
                rows.append(outcome.row(options.jobs))
                say(str(outcome))
    print("\n".join(" | ".join(f"{cell:>{max(len(row[column]) for row in rows)}}" for column, cell in enumerate(row)) for row in rows))


if __name__ == "__main__":
    main()
