"""A small world for the lifecycle core: an API server with one job and its pods, a kubelet, and a caller that obeys the contract of
`docs/architecture` and may crash, be stale or be replaced at any moment. It checks its invariants at every write and every action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.api.capacity import CapacityClass
from muster.api.chosen_classes import allowed, classes_of, entry_of
from muster.api.job import TrainingJob
from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, TrainingJobSpec
from muster.api.status import (
    MAX_ATTEMPT_RECORDS,
    AttemptRecord,
    ConditionType,
    FailureClass,
    Meaning,
    NodeNotice,
    Phase,
    Reason,
    TrainingJobStatus,
)
from muster.api.times import milliseconds
from muster.control.admission import readable_status
from muster.lifecycle.actions import SIDE_CAR_SECONDS, Action, CreateReplica, Decision, DeleteJob, DeleteReplica, EnsureService, LookLive
from muster.lifecycle.decide import decide
from muster.lifecycle.facts import gang
from muster.lifecycle.facts.devices import DEVICE_TAINT
from muster.lifecycle.facts.membership import assigned, attempt_of
from muster.lifecycle.job_state import has_failed_without_successor, is_open
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.policy import Policy
from muster.lifecycle.transition.fence import member_to_start
from muster.strategies.registry import strategy_of
from muster.tools.tracing.spans import JOB, spans_between
from muster_contract.checkpoint_layout import Fence, checkpoint_name
from muster_contract.events import Commit, Resumed
from muster_contract.reports import Marks, Progress, Report, TerminationMessage

START = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
POLICY = Policy()
HISTORY = 40
NODE_CLASSES = {"node-0": "spot", "node-1": "on-demand", "node-2": "spot"}
GRACE = timedelta(seconds=30)
_TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/class", "operator": "Exists"}]}]}
PRICES = {"spot": 1.0, "on-demand": 3.5}
PRICED = {name: CapacityClass.model_validate({**_TERMS, "pricePerDeviceHour": price}) for name, price in PRICES.items()}
SIDE_CARS = timedelta(seconds=SIDE_CAR_SECONDS)
PREEMPTION, INFRASTRUCTURE, APPLICATION = FailureClass.PREEMPTION, FailureClass.INFRASTRUCTURE, FailureClass.APPLICATION


class InvariantError(AssertionError):
    """An invariant that does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"invariant [{invariant}] broken: {message}")
        self.invariant = invariant


def check(holds: bool, invariant: str, message: str | Callable[[], str]) -> None:
    """`message` is a function where it is long, because the text of whole statuses takes most of the time of a test."""
    if not holds:
        raise InvariantError(invariant, message() if callable(message) else message)


@dataclass(frozen=True)
class End:
    """How a replica may end: what its pod shows, and which class that justifies when nobody asked it to stop."""

    justifies: FailureClass | None
    exit_code: int | None = None
    code: int | None = None
    reason: str = ""
    oom: bool = False
    disruption: str | None = None


ENDS: dict[str, End] = {
    "completed": End(None, exit_code=0, code=0),
    "user error": End(APPLICATION, exit_code=10, code=10),
    "bad configuration": End(APPLICATION, exit_code=11, code=11),
    "peer lost": End(INFRASTRUCTURE, exit_code=20, code=20),
    "preempted": End(PREEMPTION, exit_code=21, code=21),
    "preempted, not saved": End(PREEMPTION, exit_code=22, code=22),
    "checkpoint damaged": End(APPLICATION, exit_code=30, code=30),
    "storage away": End(INFRASTRUCTURE, exit_code=31, code=31),
    "process killed": End(INFRASTRUCTURE, exit_code=137, code=137),
    "segmentation fault": End(APPLICATION, exit_code=139, code=139),
    "exit 20 without a termination message": End(APPLICATION, exit_code=20),
    "killed without a termination message": End(INFRASTRUCTURE, exit_code=137),
    "out of memory": End(APPLICATION, exit_code=137, oom=True),
    "never started": End(INFRASTRUCTURE),
    "evicted": End(PREEMPTION, exit_code=137, reason="Evicted"),
    "disrupted": End(PREEMPTION, exit_code=143, disruption="EvictionByEvictionAPI"),
    "device tainted": End(INFRASTRUCTURE, exit_code=143, disruption=DEVICE_TAINT),
}
DISMISSED = End(None, exit_code=20, code=20)
"""How a supervisor ends whose processes were ended because no attempt follows."""
STOPPED = ("preempted", "preempted, not saved", "killed without a termination message", "peer lost", "user error", "completed")
"""How replicas end that were asked to stop."""


@dataclass
class Pod:
    view: ReplicaView
    asked: bool = False
    """The caller asked for its deletion."""
    sent: list[Report] = field(default_factory=list)
    trains: int | None = None
    """The attempt whose processes run in it."""
    attempt: int = 0
    """The one that it has come to, whether anybody knows or not."""
    frozen: bool = False
    """Its node is: nothing of it runs or answers, and nobody is told."""
    was_frozen: bool = False
    """Its node is or was frozen, so it may still end late."""
    sick: datetime | None = None
    """Since when its node reports one of its devices as unhealthy."""
    muted: bool = False
    """Its processes train on, but none of its reports reaches anybody."""
    stepped: datetime | None = None
    """When it last reported a step."""
    said: TerminationMessage | None = None
    """How its processes last ended, where its supervisor outlived them."""

    def held(self, until: datetime) -> float:
        """Device-seconds: from its node on, until it has ended or is gone."""
        begin = self.view.placed or self.view.created
        end = min(self.view.released or until, until)
        return max(0.0, (end - begin).total_seconds()) * sum(count for _, count in self.view.devices) if self.view.node else 0.0

    @property
    def lives(self) -> bool:
        """Whether it runs and reports."""
        return self.view.phase is ReplicaPhase.RUNNING and not self.frozen and not self.muted


class World:
    """Truth. `job` is what the API server holds; everything the caller sees comes from here, late or at once."""

    def __init__(self, spec: dict[str, Any], *, in_place: bool = False, gang: bool = False, library: bool = False) -> None:
        """`gang`: a scheduler places the pods of a world. Else each has a node at once. `library`: a program commits through the library,
        which puts the fence of the attempt into the name of each commit."""
        self.now = START
        self.library = library
        self.in_place = in_place
        self.job = TrainingJob.model_validate(
            {"metadata": {"name": "digits", "uid": "job-uid", "creationTimestamp": "2026-11-21T10:00:00Z"}, "spec": spec}
        )
        if gang:
            self.job = self.job.with_status(replace(self.job.status, gang_scheduler="scheduling.k8s.io"))
        self.version = 0
        self.pods: dict[str, Pod] = {}
        self.service = False
        self.notices: dict[str, NodeNotice] = {}
        self.announced: set[str] = set()
        self.full_class = ""
        """The capacity class whose nodes have no room for further pods."""
        self.deleted = False
        self._uids = 0
        self._jobs: list[tuple[int, TrainingJob]] = [(0, self.job)]
        self._looks: list[tuple[ReplicaView, ...]] = [()]
        self.planned: dict[int, dict[str, int]] = {}
        self.failed: dict[int, FailureClass] = {}
        self.began: dict[int, datetime] = {}
        self.justified: dict[int, set[FailureClass]] = {}
        self.succeeded: set[str] = set()
        self.realised: dict[FailureClass, list[datetime]] = {each: [] for each in FailureClass}
        self.created_for: set[int] = set()
        self.steps: dict[int, int] = {}
        self.commit = 0
        self.path = ""
        """The folder of the newest commit."""
        self.gone: list[Pod] = []
        """Pods whose objects are gone."""
        self.departed: dict[str, ReplicaView] = {}
        """Those that the caller has seen go, and that no status has counted to their end."""
        self.slack = 0.0
        """Device-seconds by which the status may be off: pods that no caller could see as they were."""
        self.misjudged: set[str] = set()
        """Pods that were not as the last writer of the status saw them."""
        self.writes = 0
        self.spans: dict[str, str | None] = {}
        """The key of each span of the job's trace, and that of its parent."""

    # what the caller sees

    def look(self) -> Observed:
        return self._observed((pod.view for pod in self.pods.values()), live=True)

    def cached_look(self, age: int) -> Observed:
        """A look of so many changes ago; beyond history, the empty cache of a caller that has just started. Reports do not come through
        the cache, so they are the newest."""
        views = self._looks[-1 - age] if age < len(self._looks) else ()
        now = {pod.view.uid: pod.view for pod in self.pods.values()}
        views = tuple(
            replace(view, report=now[view.uid].report, reported=now[view.uid].reported) if view.uid in now else view for view in views
        )
        return self._observed(views, live=False)

    def _observed(self, views: Iterable[ReplicaView], *, live: bool) -> Observed:
        views = tuple(views)
        shown = {view.uid for view in views}
        return Observed(
            views,
            live=live,
            service=self.service,
            expects_reports=True,
            notices=dict(self.notices),
            departed=tuple(view for uid, view in self.departed.items() if uid not in shown),
            capacity_classes=NODE_CLASSES,
            classes=PRICED,
        )

    def cached_job(self, age: int) -> tuple[int, TrainingJob]:
        return self._jobs[-1 - min(age, len(self._jobs) - 1)]

    # the caller

    def decide(self, *, view_age: int | None = None, job_age: int = 0) -> tuple[int, TrainingJob, Observed, Decision]:
        live = view_age is None
        version, job = (self.version, self.job) if live else self.cached_job(job_age)
        observed = self.look() if view_age is None else self.cached_look(view_age)
        return version, job, observed, decide(job, observed, self.now, policy=POLICY)

    def reconcile(self, *, view_age: int | None = None, job_age: int = 0, crash_after: int | None = None) -> Decision:
        """One pass. `crash_after` 0: before the status write; k: after k - 1 actions."""
        version, job, observed, decision = self.decide(view_age=view_age, job_age=job_age)
        if self.deleted or crash_after == 0:
            return decision
        if decision.status != job.status and not self._write(version, decision.status, observed):
            return decision
        if crash_after is not None:
            self.forget_departed()
        actions = decision.actions if crash_after is None else decision.actions[: crash_after - 1]
        for action in actions:
            self._perform(action, observed, decision.status)
        if view_age is not None and crash_after is None and any(isinstance(action, LookLive) for action in actions):
            return self.reconcile()
        return decision

    def converge(self, passes: int = 8) -> Decision:
        """Live passes until one changes nothing; at one moment and with nothing else happening, that must come soon."""
        for _ in range(passes):
            before = (self.version, self._uids, [pod.view for pod in self.pods.values()])
            decision = self.reconcile()
            if before == (self.version, self._uids, [pod.view for pod in self.pods.values()]):
                check(not decision.actions, "fixpoint", f"nothing changes, yet it wants {decision.actions}")
                self._sleeps_well(decision)
                self._has_heard()
                self._sees_no_order(decision)
                self._has_noticed_devices()
                self._holds_no_part()
                return decision
        raise InvariantError("fixpoint", f"still changing after {passes} passes at one moment: {decision}")

    def _sleeps_well(self, decision: Decision) -> None:
        """Until `wake` time alone changes nothing, so that a caller that sleeps as long misses nothing."""
        until = decision.wake - timedelta(milliseconds=1) if decision.wake else self.now + timedelta(days=1)
        check(decision.wake is None or decision.wake > self.now, "wake", f"woken at {decision.wake}, it is {self.now}")
        then = decide(self.job, self.look(), until, policy=POLICY)
        unchanged = then.status == self.job.status and not then.actions
        check(unchanged, "wake", lambda: f"would change by {until} without being woken: {then.status.message} {then.actions}")

    def _sees_no_order(self, decision: Decision) -> None:
        """The same replicas in another order lead to the same status: else each look would write it."""
        looked = self.look()
        turned = decide(self.job, replace(looked, replicas=looked.replicas[::-1]), self.now, policy=POLICY)
        check(turned == decision, "order", lambda: f"{turned} in place of {decision}")

    def _has_heard(self) -> None:
        """No attempt stays open of which a supervisor has said that its processes are gone."""
        status = self.job.status
        if status.phase.final or not status.attempts or status.attempts[-1].end_time:
            return
        for name, pod in self.pods.items():
            report, view = pod.view.report, pod.view
            ended = report and report.waiting and report.termination and report.termination.attempt == report.attempt == pod.attempt
            of_world = self.belongs(pod) == status.attempt and view.role != EVALUATOR and view.deleting is None
            check(not (ended and of_world and self._is_member(view)), "heard", f"{name} has said how it ended, and nothing follows")

    def _has_noticed_devices(self) -> None:
        """An unhealthy device of a replica that trains is in the status, and no attempt stays open for longer than it may last."""
        status = self.job.status
        if status.phase.final or not status.attempts or status.attempts[-1].end_time:
            return
        for name, pod in self.pods.items():
            view = pod.view
            trains = view.phase is ReplicaPhase.RUNNING and view.deleting is None and view.role != EVALUATOR
            if pod.sick is None or not trains or self.belongs(pod) != status.attempt or not self._is_member(view):
                continue
            member = next(member for member in status.world.members if member.uid == view.uid) if status.world else None
            since = member.unhealthy_since if member else None
            check(since is not None, "device", f"{name} has an unhealthy device, and the status does not say so")
            assert since
            lasts = self.now - since >= timedelta(seconds=POLICY.device_seconds)
            check(not lasts, "device", f"{name} has had an unhealthy device since {since}, and its attempt goes on at {self.now}")

    def _holds_no_part(self) -> None:
        """No gang that has a part of its nodes holds them for long, unless some of its processes go on."""
        status, world = self.job.status, self.job.status.world
        views = [pod.view for pod in self.pods.values() if self.belongs(pod) == status.attempt and pod.view.role != EVALUATOR]
        placed = [view for view in views if view.node and self._is_member(view)]
        waiting = [view for view in views if view.unschedulable and self._is_member(view)]
        if not status.gang_scheduler or not is_open(status) or world is None or world.ready_time or not placed or not waiting:
            return
        if any(member.incarnation is not None for member in world.members) or len(placed) >= gang.size(self.job.spec, status):
            return
        changed = max(world.created_time, *(view.placed or view.created for view in placed), *(view.created for view in waiting))
        before = [record.reason is Reason.GANG_REQUEUED for record in status.attempts[:-1]]
        row = len(before) if all(before) else before[::-1].index(False)
        longest = POLICY.split_reused_seconds * 2**row
        held = (self.now - changed).total_seconds()
        check(held < longest, "split gang", lambda: f"{len(placed)} pods have held nodes for {held} s, and {len(waiting)} wait")

    def _is_member(self, view: ReplicaView) -> bool:
        world = self.job.status.world
        return world is not None and any(member.uid == view.uid and not member.awaited for member in world.members)

    # the user

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        spec = self.job.spec.wire()
        change(spec)
        metadata = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
        job = TrainingJob.model_validate({"metadata": metadata.wire(), "spec": spec})
        self._store(job.with_status(self.job.status))

    # the kubelet and the rest of the cluster

    def start(self, name: str) -> None:
        pod = self.pods[name]
        if pod.view.phase is ReplicaPhase.PENDING and pod.view.deleting is None and pod.view.node:
            pod.trains = None if pod.view.standby else pod.attempt
            self._change(name, phase=ReplicaPhase.RUNNING)
            if self.in_place:
                self.speak(name)

    def belongs(self, pod: Pod) -> int:
        """The attempt that it has part in: one that restarts left alone has part in those after the one that it was started in."""
        world = self.job.status.world
        member = next((member for member in world.members if member.uid == pod.view.uid), None) if world else None
        if world is None or member is None or member.incarnation != pod.attempt:
            return pod.attempt
        return world.attempt - 1 if member.awaited else world.attempt

    def unaffected(self, pod: Pod) -> bool:
        return self.belongs(pod) != pod.attempt

    def stands_by(self, pod: Pod) -> bool:
        """Whether no world has taken it in yet."""
        world = self.job.status.world
        return pod.view.standby and not (world and any(member.uid == pod.view.uid for member in world.members))

    def place(self, without: str = "") -> None:
        """The scheduler gives all pods nodes, but for one whose node was lost before it was bound."""
        for name, pod in self.pods.items():
            if not pod.view.node and pod.view.deleting is None and name != without:
                node = self._node_for(pod.view)
                self._change(name, node=node, placed=self.now if node else None, unschedulable=not node)

    def _node_for(self, view: ReplicaView) -> str:
        """One that stays, if there is any, of the classes that the pod asks for. A replica that stands by goes to no other."""
        going = {each.node for each in self.job.status.node_notices if each.meaning is Meaning.GOES}
        nodes = [f"node-{view.index % 2}", f"node-{1 - view.index % 2}", "node-2"]
        if view.capacity_classes:
            free = set(view.capacity_classes) - {self.full_class}
            nodes = [node for node in nodes if NODE_CLASSES[node] in free]
        return next((node for node in nodes if node not in going), "" if view.standby else next(iter(nodes), ""))

    def announce(self, node: str, *, goes: bool) -> None:
        """The node says that it goes, or that it takes no new pods."""
        meaning = Meaning.GOES if goes else Meaning.TAKES_NO_PODS
        self.announced |= {node} if goes else set()
        self.notices[node] = NodeNotice(node=node, signal="taint example.com/retire", meaning=meaning, since=milliseconds(self.now))

    def withdraw(self, node: str) -> None:
        self.notices.pop(node, None)

    # supervisors that outlive their processes

    def speak(self, name: str) -> None:
        """The supervisor posts a report that has no news of steps, and is heard at once."""
        pod = self.pods[name]
        if not pod.lives:
            return
        newest = pod.sent[-1] if pod.sent and pod.sent[-1].attempt == pod.attempt else None
        report = Report(
            job=self.job.key,
            pod=pod.view.name,
            role=pod.view.role,
            index=pod.view.index,
            attempt=pod.attempt,
            sequence=len(pod.sent),
            progress=newest.progress if newest else None,
            checkpoint=newest.checkpoint if newest else None,
            resumed=newest.resumed if newest else None,
            idle_seconds=self.now.timestamp() - (newest.progress.updated_at or 0) if newest and newest.progress else None,
            waiting=pod.trains is None,
            termination=pod.said,
            in_place=True,
        )
        pod.sent.append(report)
        self._change(name, report=report, reported=self.now)

    def break_down(self, name: str, how: str) -> None:
        """Its processes end, and its supervisor lives on, says how, and waits."""
        pod, end = self.pods[name], ENDS[how]
        if not (self.in_place and pod.lives and pod.trains is not None and end.code and end.justifies) or pod.view.deleting:
            return
        self._justify(self.belongs(pod), end.justifies)
        pod.trains = None
        pod.said = TerminationMessage(code=end.code, reason=how, message=how, step=self.steps.get(pod.attempt), attempt=pod.attempt)
        self.speak(name)

    def heed(self, name: str) -> None:
        """It reports and gets its reply: of a newer attempt, so that it ends its processes; or that the world is complete."""
        pod, status = self.pods[name], self.job.status
        if not (self.in_place and pod.lives) or pod.view.deleting:
            return
        if pod.view.report is None:  # supervisors report all the time, so a new leader soon has a report of each
            self.speak(name)
        if status.phase.final or (has_failed_without_successor(status) and pod.trains is not None):
            ended = "completed" if status.phase is Phase.SUCCEEDED else "dismissed"
            self.finish(name, "user error" if pod.trains is None else ended)
        elif (told := attempt_of(status, pod.view.uid)) > pod.attempt:
            self._come_to(pod, told)
            self.speak(name)
        elif (
            pod.trains is None
            and not (pod.said and pod.said.attempt == pod.attempt)
            and member_to_start(status, pod.view.uid)
            and pod.attempt == told
        ):
            pod.trains, pod.said = pod.attempt, None
            if status.attempt not in self.created_for:
                self._realise(status.attempt)
            self.speak(name)

    def finish(self, name: str, how: str) -> None:
        pod, end = self.pods[name], DISMISSED if how == "dismissed" else ENDS[how]
        if pod.view.phase.ended:
            return
        attempt = pod.attempt
        pod.trains = None
        ended_well = end.exit_code == 0
        words = None
        if end.code is not None:
            words = TerminationMessage(code=end.code, reason=how, message=how, step=self.steps.get(attempt), attempt=attempt)
        if pod.said and pod.said.attempt == attempt and end.code is not None:  # a supervisor ends with what it has said already
            words, ended_well = pod.said, False
            end = replace(end, exit_code=pod.said.code, justifies=None)
        if ended_well:
            self.succeeded.add(pod.view.uid)
        elif end.justifies and (not pod.asked or end.reason or end.disruption or end.oom):  # no stop uses up the memory
            self._justify_known(pod, end.justifies)
        self._change(
            name,
            phase=ReplicaPhase.SUCCEEDED if ended_well else ReplicaPhase.FAILED,
            finished=self.now,
            exit_code=end.exit_code,
            termination=words,
            reason=end.reason,
            oom_killed=end.oom,
            empty=int(pod.view.uid.removeprefix("uid-")) % 3 == 0,
            side_car_runs=int(pod.view.uid.removeprefix("uid-")) % 6 == 1,  # with a side-car that runs on
            closing=int(pod.view.uid.removeprefix("uid-")) % 6 == 4,  # with one among the init containers that ignores the kubelet
            disruption=end.disruption or pod.view.disruption,
        )
        if not (pod.view.side_car_runs or pod.view.closing):
            self._change(name, released=self.now)

    def sicken(self, name: str) -> None:
        """Its node reports that one of its devices is unhealthy."""
        pod = self.pods[name]
        if pod.sick is None and not pod.view.phase.ended and not pod.frozen:
            pod.sick = self.now
            self._justify_known(pod, INFRASTRUCTURE)
            self._change(name, unhealthy_devices=("nvidia.com/gpu GPU-1",))

    def cure(self, name: str) -> None:
        """Its device is healthy again."""
        pod = self.pods[name]
        if pod.sick is not None and not pod.view.phase.ended and not pod.frozen:
            pod.sick = None
            self._change(name, unhealthy_devices=())

    def disrupt(self, name: str) -> None:
        """The condition comes, perhaps long after the pod's end."""
        self._justify_known(self.pods[name], PREEMPTION)
        self._change(name, disruption="DeletionByTaintManager")

    def delete(self, name: str) -> None:
        """Somebody else deletes it, gracefully."""
        if self.pods[name].view.deleting is None:
            self._justify_known(self.pods[name], PREEMPTION)
            self._change(name, deleting=self.now, due=self.now + GRACE)

    def remove(self, name: str) -> None:
        """Its object goes: after its deletion, or by force."""
        pod = self._pop(name)
        if pod.view.deleting is None:
            self._justify_known(pod, PREEMPTION)
        self._remember()

    def _pop(self, name: str) -> Pod:
        """Its object goes, and the caller sees it."""
        pod = self.pods.pop(name)
        pod.view = replace(pod.view, released=pod.view.released or self.now)
        self.gone.append(pod)
        if pod.view.node:
            self.departed[pod.view.uid] = pod.view
        return pod

    def forget_departed(self) -> None:
        """The caller ends, and the next one has not seen these pods go. It knows only how many devices were held at the last count, so the
        count may miss them."""
        self.slack += sum(Pod(view).held(self.now) for view in self.departed.values())
        self.departed = {}

    def train(self, steps: int, *, commit: bool) -> None:
        """The current world does some steps, and worker 0 (or the chief) has a report of it to send."""
        speaker = next((pod for pod in self.pods.values() if pod.view.index == 0 and pod.view.role in _RANK_0), None)
        if speaker is None or not speaker.lives or speaker.trains is None or self._stands_still(speaker):
            return
        attempt = speaker.trains
        speaker.stepped = self.now
        step = self.steps.get(attempt, self.commit) + steps
        self.steps[attempt] = step
        before = next((report.resumed for report in speaker.sent if report.attempt == attempt and report.resumed), None)
        resumed = before or Resumed(committed_step=self.commit or None, step=self.commit, path=self.path or None)
        if commit:
            self.commit = step
            self.path = checkpoint_name(step, Fence(START, attempt)) if self.library else f"step-{step}"
        now = self.now.timestamp()
        speaker.sent.append(
            Report(
                job=self.job.key,
                pod=speaker.view.name,
                role=speaker.view.role,
                index=0,
                attempt=attempt,
                sequence=len(speaker.sent),
                phase="Training",
                progress=Progress(step=step, total_steps=1000, loss="0.5", updated_at=self.now.timestamp()),
                checkpoint=Commit(step=self.commit, path=self.path, seconds=9) if self.commit else None,
                resumed=resumed,
                marks=Marks(restoring=now - 7, resumed=now + 90, stepped=now),  # by a clock that is off
                saved_seconds=step / 3,
                in_place=self.in_place,
            )
        )

    def deliver(self, name: str, which: int) -> None:
        """One of its reports arrives: the newest, or one that was late or came twice, and is not taken for news then."""
        sent, known = self.pods[name].sent, self.pods[name].view.report
        if self.pods[name].muted:
            return
        report = sent[-1 - which % len(sent)] if sent else None
        if report and (known is None or (report.attempt, report.sequence) > (known.attempt, known.sequence)):
            self._change(name, report=report, reported=self.now)

    def forget_reports(self) -> None:
        """Another leader takes over, who has heard nobody yet."""
        self.forget_departed()
        for name in self.pods:
            self._change(name, report=None, reported=None)

    def obey(self, how: str = "preempted") -> None:
        """All that are being deleted end and go, unless their nodes are frozen; all that wait get nodes and start."""
        self.place()
        for name in list(self.pods):
            if self.pods[name].view.deleting is None:
                self.start(name)
                self.heed(name)
            elif not self.pods[name].frozen:
                self.finish(name, how)
                self.remove(name)

    def freeze(self, name: str) -> None:
        """What is said of it later: that its node does not answer, or that it did not end in time."""
        pod = self.pods[name]
        pod.frozen = pod.view.phase is ReplicaPhase.RUNNING
        pod.was_frozen = pod.was_frozen or pod.frozen
        if pod.frozen:
            self._justify_known(pod, INFRASTRUCTURE)
            self._justify_known(pod, PREEMPTION)

    def thaw(self, name: str) -> None:
        self.pods[name].frozen = False
        self._report_again(name)

    def mute(self, name: str, *, muted: bool = True) -> None:
        self.pods[name].muted = muted and self.pods[name].view.phase is ReplicaPhase.RUNNING
        self._report_again(name)

    def _report_again(self, name: str) -> None:
        """A supervisor whose reports arrive again repeats the newest one at once."""
        pod = self.pods[name]
        if pod.lives and pod.view.reported is not None:
            self._change(name, reported=self.now)

    def orphaned(self, pod: Pod) -> bool:
        return any(each.uid == pod.view.uid for each in self.job.status.orphaned)

    def _stands_still(self, pod: Pod) -> bool:
        """Whether its world has lost a member, so that none of it does a step."""
        world = self.job.status.world
        peers = [each for each in self.pods.values() if each.trains == pod.trains and each.view.role != EVALUATOR]
        complete = world is None or world.attempt != pod.trains or len(peers) >= len([m for m in world.members if m.role != EVALUATOR])
        return not complete or any(each.frozen for each in peers)

    def evict_frozen(self) -> None:
        """What a cluster does in the end, to those that belong to the current attempt: others are Muster's to replace."""
        for name, pod in self.pods.items():
            if pod.frozen and self.belongs(pod) == self.job.status.attempt:
                self.delete(name)

    def pass_time(self, seconds: float) -> None:
        self.wait_until(self.now + timedelta(seconds=seconds))

    def wait_until(self, time: datetime) -> None:
        """Meanwhile kubelets end what is overdue, and supervisors report all the time."""
        self.now = time
        for name, pod in list(self.pods.items()):
            if pod.frozen:  # perhaps in a later attempt than when it froze, because restarts left it alone
                self._justify_known(pod, INFRASTRUCTURE)
                self._justify_known(pod, PREEMPTION)
            elif pod.view.due and pod.view.due <= self.now:
                self.finish(name, "killed without a termination message")
                self.remove(name)
            elif pod.view.report and pod.lives:
                idle = (self.now - pod.stepped).total_seconds() if pod.stepped and self._stands_still(pod) else 0.0
                report = replace(pod.view.report, idle_seconds=idle if pod.view.report.progress else None)
                self._change(name, report=report, reported=self.now)

    # the API server

    def _store(self, job: TrainingJob) -> None:
        self.job = job
        self.version += 1
        self._jobs = [*self._jobs, (self.version, job)][-HISTORY:]

    def _write(self, version: int, status: TrainingJobStatus, observed: Observed) -> bool:
        if version != self.version:
            return False
        check_root_cause(self.job.status, status, observed)
        check_written(self, self.job.status, status)
        check_devices(self, self.job.status, status, observed)
        check_usage(self, self.job.status, status, observed)
        check_trace(self, status, observed)
        before = {name: self.belongs(pod) for name, pod in self.pods.items()}
        self._store(self.job.with_status(status))
        for name, pod in self.pods.items():
            has_ended = pod.trains is None and pod.said is not None and pod.said.attempt == pod.attempt
            if has_ended and before[name] == status.attempt - 1 and self._is_member(pod.view):
                self._come_to(pod, status.attempt)
        return True

    def _come_to(self, pod: Pod, attempt: int) -> None:
        """It has part in this attempt from now on."""
        pod.attempt, pod.trains = attempt, None
        if pod.sick is not None:  # its device is unhealthy in this attempt too
            self._justify_known(pod, INFRASTRUCTURE)
        if pod.view.disruption:  # it is still to be taken away in this attempt
            self._justify_known(pod, PREEMPTION)

    def _perform(self, action: Action, observed: Observed, decided: TrainingJobStatus) -> None:
        match action:
            case EnsureService():
                self.service = True
            case CreateReplica():
                self._create(action)
            case DeleteReplica():
                self._delete(action, observed, decided)
            case DeleteJob():
                check(self.job.status.phase.final, "ttl", "a job is deleted that has not ended")
                self.deleted = True
            case LookLive():
                pass

    def _create(self, action: CreateReplica) -> None:
        status = self.job.status
        members = status.world.members if status.world and not action.standby else ()
        suffix = next((member.suffix for member in members if member.replica == (action.role, action.index)), None)
        name = f"digits-{action.role}-{action.index}" + ("" if suffix is None else f"-{suffix}")
        others = [pod for pod in self.pods.values() if not self.stands_by(pod) and not self.orphaned(pod)]
        older = [pod.view.name for pod in others if self.belongs(pod) < action.attempt and not _acknowledges(pod, action.attempt)]
        check(name not in {each.name for each in status.orphaned}, "names", f"{name} is made, and a pod of this name is left behind")
        check(not older, "fence", f"{name} of attempt {action.attempt} is made beside older {older}")
        check(action.attempt == status.attempt, "write-ahead", f"{name} is made for {action.attempt}, the status says {status.attempt}")
        check(not status.phase.final, "final", f"{name} is made for a job that has ended")
        check(status.phase is not Phase.SUSPENDED, "suspension", f"{name} is made for a suspended job")
        check(self.service, "service first", f"{name} is made before the service")
        if name in self.pods:
            return
        if action.attempt not in self.created_for and not action.standby:
            self._realise(action.attempt)
        self._uids += 1
        view = ReplicaView(name, f"uid-{self._uids}", action.role, action.index, action.attempt, ReplicaPhase.PENDING, self.now)
        classes = allowed(self.job.spec, self.job.status, action.role, action.index, standby=action.standby)
        devices = (("nvidia.com/gpu", 1 + action.index),) if action.role == WORKER else view.devices
        view = replace(view, standby=action.standby, suffix=suffix, devices=devices, capacity_classes=classes)
        is_placed_alone = not self.job.status.gang_scheduler or action.standby or action.role == EVALUATOR
        node = self._node_for(view) if is_placed_alone else ""
        view = replace(view, node=node, unschedulable=not node)
        self.pods[name] = Pod(view, attempt=action.attempt)
        self._remember()
        leaving = {pod.view.name for pod in self.pods.values() if self.stands_by(pod) and pod.view.deleting}
        leaving |= {pod.view.name for pod in self.pods.values() if self.orphaned(pod)}
        count = sum(pod.view.role == action.role and pod.view.name not in leaving for pod in self.pods.values())
        pool = strategy_of(self.job.spec.strategy).pool(self.job.spec)
        spares = self.job.spec.recovery.spares if action.role == WORKER else 0
        most = len(pool.of(action.role)) if action.standby else self.planned[action.attempt].get(action.role, 0) + spares
        check(count <= most, "replica counts", f"{count} replicas of {action.role}, {most} planned")

    def _realise(self, attempt: int) -> None:
        """The first replica of an attempt: if the one before failed, this is a restart, and it must be within budget."""
        self.created_for.add(attempt)
        known = {record.attempt: record for record in self.job.status.attempts}
        check(attempt in known, "records", f"attempt {attempt} has no record")
        before, began = known.get(attempt - 1), known[attempt].start_time
        if before is None or before.failure_class is None:
            return
        check(before.settled, "settled first", f"attempt {attempt} starts before the class of {attempt - 1} is settled")
        if not _was_announced(before):
            self.realised[before.failure_class].append(began)
            check_budget(self, before)
        least = POLICY.delays[before.failure_class].after(max(1, _in_vain(self, self.job.status.attempts[:-1])))
        waited = (self.now - began).total_seconds()
        check(waited >= least, "back-off", f"attempt {attempt} starts {waited} s after a failure of class {before.failure_class}")

    def _delete(self, action: DeleteReplica, observed: Observed, decided: TrainingJobStatus) -> None:
        pod = self.pods.get(action.name)
        if pod is None or (action.uid and pod.view.uid != action.uid):
            return
        check(bool(action.uid), "deletes what it saw", f"{action.name} is deleted by name alone")
        seen = {view.uid for view in observed.replicas}
        check(pod.view.uid in seen, "deletes what it saw", f"{action.name} ({pod.view.uid}) is deleted by a caller that never saw it")
        seen_as = next(view for view in observed.replicas if view.uid == pod.view.uid)
        kept = self._must_be_kept(*assigned(replace(observed, replicas=(seen_as,)), decided), decided=decided)
        check(not kept or pod.view.deleting is not None, "kept for its log", f"{action.name} is deleted: {decided.message}")
        pod.asked = True
        if action.grace_seconds == 0:
            is_stuck = pod.was_frozen and pod.view.due is not None and self.now >= pod.view.due + timedelta(seconds=POLICY.stuck_seconds)
            check(pod.view.empty or is_stuck, "by force", f"{action.name} is removed by force, and something of it may run")
            self._pop(action.name)
            self._remember()
        elif pod.view.deleting is None:
            self._change(action.name, deleting=self.now, due=self.now + min(GRACE, self._grace_of(action)))
        elif pod.view.due:
            allowed = seen_as.deleting is None or (seen_as.phase.ended and (seen_as.side_car_runs or seen_as.closing))
            check(allowed, "grace", f"the grace period of {action.name} gets shorter, and its trainer may save")
            self._change(action.name, due=min(pod.view.due, pod.view.deleting + self._grace_of(action)))

    @staticmethod
    def _grace_of(action: DeleteReplica) -> timedelta:
        return GRACE if action.grace_seconds is None else timedelta(seconds=action.grace_seconds)

    def _must_be_kept(self, replicas: tuple[ReplicaView, ...], standing_by: tuple[ReplicaView, ...], *, decided: TrainingJobStatus) -> bool:
        """Whether the pod's log is to stay: by the policy, after the job's end; in a back-off, where nothing else needs the name."""
        policy = self.job.spec.clean_pod_policy
        ended = any(view.phase.ended and not view.side_car_runs for view in (*replicas, *standing_by))
        if decided.phase.final:
            outstays = any(view.closing and view.finished and self.now >= view.finished + SIDE_CARS for view in (*replicas, *standing_by))
            return policy == "None" or (policy == "Running" and ended and not outstays)
        waits = decided.next_attempt_time is not None and self.now < decided.next_attempt_time
        return ended and waits and not self.job.spec.suspend and not standing_by

    def _change(self, name: str, **changes: Any) -> None:
        self.pods[name].view = replace(self.pods[name].view, **changes)
        self._remember()

    def _remember(self) -> None:
        self._looks = [*self._looks, tuple(pod.view for pod in self.pods.values())][-HISTORY:]

    def _justify_known(self, pod: Pod, failure_class: FailureClass) -> None:
        """What befalls a pod, in the attempt that it has come to, and in the one that a leader thinks it in who has not heard of that. The
        leader may hear of its acknowledgement and of this at once."""
        report = pod.view.report
        known = {report.attempt, report.startable_attempt or report.attempt} if report else {pod.view.attempt}
        if self.stands_by(pod):
            return
        status = self.job.status
        member = status.world.member_of.get(pod.view.uid) if status.world else None
        before = {status.attempt - 1} if member and member.awaited else set()
        for attempt in {self.belongs(pod)} if self.unaffected(pod) else {pod.attempt, *known, *before}:
            self._justify(attempt, failure_class)

    def _justify(self, attempt: int, failure_class: FailureClass) -> None:
        self.justified.setdefault(attempt, set()).add(failure_class)


_RANK_0 = (CHIEF, WORKER)


def _in_vain(world: World, attempts: Sequence[AttemptRecord]) -> int:
    """How many attempts in a row, up to the last, have failed without a step beyond those before; at most what the core counts. An attempt
    of a script that ran for long may have gained something though it reported no step."""
    failures, best = 0, 0
    for record in attempts:
        done, lasted = record.last_step or 0, (record.end_time or world.now) - record.start_time
        gained = done > best or (world.job.spec.trainer.script and lasted.total_seconds() >= POLICY.lasting_seconds)
        failures = 0 if gained else failures + (record.failure_class is not None)
        best = max(best, done)
    return failures


def check_written(world: World, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
    """What must hold of every status, and of every step from one to the next."""
    check(readable_status(new.wire()) == new, "status validates", "the status does not survive the API server")
    check(not old.phase.final or new.phase is old.phase, "final", f"from {old.phase} to {new.phase}")
    check(old.attempt <= new.attempt <= old.attempt + 1, "attempt numbers", f"from {old.attempt} to {new.attempt}")
    if new.world and new.attempt not in world.planned:
        _check_members(world, new)
        plan = strategy_of(world.job.spec.strategy).plan(world.job.spec)
        world.planned[new.attempt] = {role: len(plan.of(role)) for role in (WORKER, PS, CHIEF, EVALUATOR)}
    world.began.update({record.attempt: record.start_time for record in new.attempts})
    _check_requeued(old, new)
    _check_moved(old, new)
    _check_capacity(old, new, world.job.spec, world.now)
    _check_orphaned(world, old, new)
    _check_records(world, new)
    _check_restarts(world, new)
    _check_grace(old, new)
    if not old.phase.final:
        _check_books(world, new)
    if new.phase is not old.phase:
        _check_entered(world, new)


def _check_members(world: World, new: TrainingJobStatus) -> None:
    """A new world has no member twice, and if workers can be replaced it has its whole size."""
    assert new.world
    members = [member.replica for member in new.world.members]
    check(len(set(members)) == len(members), "members", f"a member is there twice: {members}")
    strategy = strategy_of(world.job.spec.strategy)
    if world.job.spec.recovery.spares or strategy.replaces(world.job.spec):
        planned, indexes = len(strategy.plan(world.job.spec).of(WORKER)), strategy.pool(world.job.spec).positions
        workers = [member for member in members if member[0] == WORKER]
        check(len(workers) == new.world.size == planned, "members", f"{members} of {planned} workers")
        check(all(member in indexes for member in members), "members", f"{members} has a replica that the job does not have")


def _check_requeued(old: TrainingJobStatus, new: TrainingJobStatus) -> None:
    """A gang that gives its nodes back never trained, costs nothing, and keeps no pod."""
    last = new.attempts[-2] if len(new.attempts) > 1 else None
    if last is None or last.reason is not Reason.GANG_REQUEUED or new.attempt == old.attempt:
        return
    check(bool(new.gang_scheduler), "split gang", f"attempt {last.attempt} is requeued, and has no gang scheduler")
    check(old.world is None or not old.world.ready_time, "split gang", f"attempt {last.attempt} is requeued, and has started")
    check(old.restarts.total == new.restarts.total and not new.next_attempt_time, "split gang", "to give nodes back costs a restart")
    kept = [member.label for member in (new.world.members if new.world else ()) if member.uid and member.role != EVALUATOR]
    check(not kept, "split gang", f"attempt {new.attempt} keeps {kept} of a gang that gives its nodes back")


def _check_capacity(old: TrainingJobStatus, new: TrainingJobStatus, spec: TrainingJobSpec, now: datetime) -> None:
    """A role asks for the classes that it prefers, and for another one only after its pods have waited."""
    for entry in new.capacity:
        names, before = classes_of(spec, entry.role), entry_of(old, entry.role)
        check(entry.classes == names[: len(entry.classes)], "capacity", f"{entry.role} may use {entry.classes} of {names}")
        waited = now - before.waiting_since if before and before.waiting_since else timedelta(0)
        longer = len(entry.classes) - (len(before.classes) if before else 1)
        needed = spec.scheduling.capacity.fallback_after_seconds if spec.scheduling.capacity else 0
        fits = longer <= 0 or (longer == 1 and waited >= timedelta(seconds=needed))
        check(fits, "capacity", f"{entry.role} falls back to {entry.classes} after {waited}")


def _check_moved(old: TrainingJobStatus, new: TrainingJobStatus) -> None:
    """A world that leaves nodes that go gets other members, and that costs no restart."""
    last = new.attempts[-2] if len(new.attempts) > 1 else None
    if last is None or last.reason is not Reason.MOVED or new.attempt == old.attempt or not (old.world and new.world):
        return
    check(old.restarts.total == new.restarts.total and not new.next_attempt_time, "move", "a move costs a restart")
    before, after = [{member.replica for member in world.members} for world in (old.world, new.world)]
    check(before != after, "move", f"attempt {new.attempt} has the members of the one before: {sorted(after)}")


def check_usage(world: World, old: TrainingJobStatus, new: TrainingJobStatus, observed: Observed) -> None:
    """The device-seconds in the status are those of all pods that there were. What no caller could see makes the limits wider: a cache that
    is behind, and pods that went while there was no caller."""
    usage = new.usage
    if usage is None or usage == old.usage:
        return
    since = old.usage.counted_until if old.usage else START
    lasted = (usage.counted_until - since).total_seconds()
    seen = {view.uid: view for view in (*observed.replicas, *observed.departed)}
    truth = [*world.pods.values(), *world.gone]
    wrong = {pod.view.uid for pod in truth if _is_misjudged(pod, seen.get(pod.view.uid), world, since)}
    for pod in truth:
        if pod.view.uid in wrong | world.misjudged:
            world.slack += lasted * sum(count for _, count in pod.view.devices)
    world.misjudged = wrong
    world.writes += 1
    for view in observed.departed:
        world.departed.pop(view.uid, None)
    used, error = sum(pod.held(usage.counted_until) for pod in truth), world.slack + 0.002 * world.writes + 0.002
    parts = (usage.useful_seconds, usage.unreported_seconds, usage.checkpoint_seconds, usage.redone_seconds)
    parts = (*parts, usage.waiting_seconds, usage.recovering_seconds, usage.idle_seconds)
    total = usage.device_seconds
    check(used - error <= total <= used + usage.uncertain_seconds + error, "usage", lambda: f"{used} used, {error} unseen: {usage}")
    check(abs(sum(parts) - total) < 0.01 + 0.005 * world.writes and min(parts) >= 0, "usage", lambda: f"the parts of {usage}")
    cost = sum(each.seconds * PRICES.get(each.capacity_class, 0) / 3600 for each in usage.devices)
    check(usage.cost is not None and abs(usage.cost - cost) < 1e-4 * world.writes, "usage", lambda: f"{cost} is the cost of {usage}")
    if error < 1:  # then each pod was seen as it was
        for each in usage.devices:
            mine = [
                pod for pod in truth if (NODE_CLASSES.get(pod.view.node, ""), pod.view.devices[0][0]) == (each.capacity_class, each.device)
            ]
            exact = sum(pod.held(usage.counted_until) for pod in mine)
            is_right = exact - error <= each.seconds <= exact + usage.uncertain_seconds + error
            check(is_right, "usage", f"{exact} of {each}")


def _acknowledges(pod: Pod, attempt: int) -> bool:
    """Whether its supervisor has reported that its processes are gone and that it waits for this attempt."""
    report = pod.view.report
    return report is not None and report.startable_attempt == attempt


def _is_misjudged(pod: Pod, seen: ReplicaView | None, world: World, since: datetime) -> bool:
    """Whether the pod held its devices at another time than the caller sees, after the last count."""
    if pod.view.released is not None and pod.view.released <= since:
        return seen is not None and seen.released != pod.view.released
    if seen is None:
        return pod in world.pods.values() and bool(pod.view.node)
    return (seen.node, seen.placed, seen.released) != (pod.view.node, pod.view.placed, pod.view.released)


def check_trace(world: World, new: TrainingJobStatus, observed: Observed) -> None:
    """No span is finished twice, none ends before it begins, and in the end each parent is there."""
    for span in spans_between(world.job, new, observed, world.now):
        check(span.key not in world.spans, "one span", f"{span.key} is finished twice")
        check(span.begin <= span.end, "span", f"{span.key} ends {span.begin - span.end} before it begins")
        world.spans[span.key] = span.parent
    if new.phase.final:
        check(JOB in world.spans, "trace", "the job has no span")
        alone = [key for key, parent in world.spans.items() if parent is not None and parent not in world.spans]
        check(not alone, "trace", f"spans without their parent: {alone}")


def _check_records(world: World, status: TrainingJobStatus) -> None:
    numbers = [record.attempt for record in status.attempts]
    check(len(numbers) <= MAX_ATTEMPT_RECORDS, "records", f"{len(numbers)} records")
    newest = list(range(max(0, status.attempt + 1 - len(numbers)), status.attempt + 1)) if numbers else []
    check(numbers == newest, "records", f"{numbers} at attempt {status.attempt}")
    successors = [*status.attempts[1:], None] if numbers else []
    for record, following in zip(status.attempts, successors, strict=True):
        check(following is None or record.end_time is not None, "records", f"attempt {record.attempt} is open and not the last")
        end = record.end_time or record.start_time
        check(
            record.start_time <= end <= (following.start_time if following else world.now), "records", f"times of attempt {record.attempt}"
        )
        check((record.end_time is None) == (record.reason is None), "records", f"attempt {record.attempt} ended without a reason")
        _check_class(world, record)
        _check_announced(world, record, status)


def _check_announced(world: World, record: AttemptRecord, status: TrainingJobStatus) -> None:
    """The record of a failure has the notice of its node."""
    if record.failure_class is None or record.end_time is None:
        return
    before = {each.node for each in status.node_notices if each.meaning is Meaning.GOES and each.since < record.end_time}
    check(record.node not in before or bool(record.announced_nodes), "notices", f"the notice of {record.node} is forgotten")
    check(not record.announced_nodes or record.node in world.announced, "notices", f"{record.node} has announced nothing")


def _was_announced(record: AttemptRecord) -> bool:
    """Whether a node that had announced its end took a replica away, which no budget pays for."""
    return (record.failure_class is PREEMPTION or record.reason is Reason.NODE_LOST) and bool(record.announced_nodes)


def _check_class(world: World, record: AttemptRecord) -> None:
    if record.failure_class is None:
        return
    if _was_announced(record):
        world.failed.pop(record.attempt, None)
    else:
        world.failed[record.attempt] = record.failure_class
    just = world.justified.get(record.attempt, set())
    if record.reason is not Reason.HANG:
        check(record.failure_class in just, "class", f"attempt {record.attempt} is called {record.failure_class}, it was {just}")


def check_root_cause(old: TrainingJobStatus, new: TrainingJobStatus, observed: Observed) -> None:
    """What is seen of a failed attempt that may still be corrected, and that nobody asked to stop, is in what it was put down to."""
    settled = {record.attempt for record in old.attempts if record.settled}
    for record in new.attempts:
        if record.failure_class is None or record.attempt in settled:
            continue
        views = assigned(observed, old)[0]
        ended = [view for view in views if view.attempt == record.attempt and view.role != EVALUATOR]
        ended = [view for view in ended if view.phase is ReplicaPhase.FAILED and view.deleting is None]
        if any(view.disruption not in (None, DEVICE_TAINT) or view.reason == "Evicted" for view in ended):
            check(record.failure_class is PREEMPTION, "root cause", f"attempt {record.attempt} was taken away, not {record.reason}")
        spoken = [(view, view.report.termination) for view in views if view.report and view.report.termination and view.role != EVALUATOR]
        if any(view.about(words.attempt) == record.attempt and words.code != 20 for view, words in spoken):
            check(
                record.reason is not Reason.PEER_LOST,
                "root cause",
                f"attempt {record.attempt} lost more than a peer, as one says that goes on",
            )
        if any(view.termination is None or view.termination.code != 20 for view in ended):
            check(record.reason is not Reason.PEER_LOST, "root cause", f"attempt {record.attempt} lost more than a peer")


def check_devices(world: World, old: TrainingJobStatus, new: TrainingJobStatus, observed: Observed) -> None:
    """A device is blamed if it was unhealthy for long, or when its replica failed; its node is avoided at once; and no new attempt keeps a
    pod that has it. Of a stale look none of this can be said."""
    if not observed.live:
        return
    sick = {pod.view.uid: pod for pod in world.pods.values() if pod.sick is not None}
    blamed = {record.attempt for record in old.attempts if record.reason is Reason.DEVICE_UNHEALTHY}
    for record in new.attempts:
        if record.reason is Reason.DEVICE_UNHEALTHY and record.attempt not in blamed:
            longest = timedelta(seconds=POLICY.device_seconds)
            ends = (pod.trains is None or (pod.sick and world.now - pod.sick >= longest) for pod in sick.values())
            check(any(ends), "device", f"attempt {record.attempt} is put down to a device that was unhealthy for less than {longest}")
            is_avoided = record.node is None or any(node.name == record.node for node in new.avoided_nodes)
            check(is_avoided or new.phase.final, "device", f"{record.node} has a bad device and is not avoided")
    if new.world and new.attempt > old.attempt:
        kept = [member.label for member in new.world.members if member.uid in sick and member.role != EVALUATOR]
        check(not kept, "device", f"attempt {new.attempt} keeps {kept}, whose devices are unhealthy")


def _check_orphaned(world: World, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
    """Only a pod that does not answer or is overdue is left behind, and only if a fence keeps it from doing harm."""
    has_fences = world.job.spec.trainer.task is not None or (world.library and world.commit > 0)
    fenced = has_fences and strategy_of(world.job.spec.strategy).moves
    check(fenced or not new.orphaned, "left behind", f"{new.orphaned} are left behind, and no fence stops them")
    known = {each.uid for each in old.orphaned}
    for each in new.orphaned:
        pod = next((pod for pod in world.pods.values() if pod.view.uid == each.uid), None)
        answers = pod is not None and each.uid not in known and not pod.frozen and not pod.muted and not _is_overdue(pod, world.now)
        check(not answers, "left behind", f"{each.name} is left behind, and answers")
        member = new.world and any(member.uid == each.uid for member in new.world.members)
        check(not member, "left behind", f"{each.name} is left behind, and a member")


def _is_overdue(pod: Pod, now: datetime) -> bool:
    """Whether the pod exists long after its grace period. It may have been frozen all that time, and have just thawed."""
    due = pod.view.due if pod.view.deleting is not None else None
    return due is not None and now >= due + timedelta(seconds=POLICY.overdue_seconds)


def _check_restarts(world: World, status: TrainingJobStatus) -> None:
    """Every failed attempt that has a successor is counted once, in the class that it has now."""
    restarts = status.restarts
    counts = {PREEMPTION: restarts.preemption_count, INFRASTRUCTURE: restarts.infrastructure_count, APPLICATION: restarts.application_count}
    check(restarts.total == sum(counts.values()), "counted once", f"total {restarts.total}, by class {counts}")
    expected = {each: sum(cls is each for attempt, cls in world.failed.items() if attempt < status.attempt) for each in FailureClass}
    if status.phase is Phase.FAILED:
        refunded = sum(expected.values()) - sum(counts.values())
        check(refunded in (0, 1), "counted once", f"{expected} failures, {counts} counted")
    else:
        check(counts == expected, "counted once", f"{expected} failures before attempt {status.attempt}, {counts} counted")


def _check_grace(old: TrainingJobStatus, new: TrainingJobStatus) -> None:
    """Once doubted, it is believed again by a later attempt alone, and what was said of an attempt is not said otherwise."""
    before, after = old.grace, new.grace
    if before == after:
        return
    check(after is not None, "grace", "it is forgotten")
    assert after
    doubts = after.reason is not Reason.SAVED_IN_TIME
    condition = new.condition(ConditionType.GRACE_SUFFICIENT)
    check(condition is not None and (condition.status == "False") == doubts, "grace", f"{after} is shown as {condition}")
    check(before is not None or doubts, "grace", "it is recorded although nobody doubted it")
    was_right = before is not None and before.reason is Reason.SAVED_IN_TIME
    attempt = before.attempt if before else -1
    check(attempt < after.attempt or (was_right and doubts and attempt == after.attempt), "grace", f"{before} becomes {after}")


def _check_books(world: World, status: TrainingJobStatus) -> None:
    """Every second of the job's life is in one part, and phases of a start are within it."""
    assert status.goodput
    parts = {name: seconds or 0.0 for name, seconds in vars(status.goodput).items() if name.endswith("_seconds")}
    lived = (world.now - START).total_seconds()
    check(abs(sum(parts.values()) - lived) < 0.002 and min(parts.values()) >= 0, "every second", lambda: f"{parts} of {lived} s")
    for record in status.attempts:
        recovery = record.phases.total_seconds if record.phases else 0.0
        check(
            recovery <= lived and (record.phases is None or min(record.phases.measured.values()) >= 0),
            "every second",
            f"{record.phases} of {lived} s",
        )


def _check_entered(world: World, status: TrainingJobStatus) -> None:
    if status.phase is Phase.SUCCEEDED:
        strategy = strategy_of(world.job.spec.strategy)
        wanted = {member.uid for member in (status.world.members if status.world else []) if member.role == strategy.decisive}
        elastic, planned = world.job.spec.elastic, world.planned[status.attempt][strategy.decisive]
        enough = len(wanted) >= elastic.min_replicas if elastic else len(wanted) == planned
        check(enough, "success", f"succeeded with {wanted} alone")
        check(wanted <= world.succeeded, "success", f"succeeded without {wanted - world.succeeded}")
        complete = status.condition(ConditionType.COMPLETE)
        is_silent = world.job.spec.trainer.script is not None and status.progress is None and status.checkpoint is None
        reason = Reason.COMPLETED_WITHOUT_REPORT if is_silent else Reason.COMPLETED
        check(complete is not None and complete.reason is reason, "success", f"Complete is {complete}, not {reason}")
    if status.phase is Phase.FAILED:
        _check_permanent_failure(world, status)
    if status.phase is Phase.SUSPENDED:
        check(not world.pods, "suspension", f"suspended with {list(world.pods)}")


def _check_permanent_failure(world: World, status: TrainingJobStatus) -> None:
    """The limit of restarts is reached, and not a restart earlier."""
    reason = next(condition.reason for condition in status.conditions if condition.type == "Failed")
    if reason in (Reason.STARTUP_DEADLINE, Reason.ACTIVE_DEADLINE):
        return
    recovery = world.job.spec.recovery
    judged = max(record.attempt for record in status.attempts if record.failure_class)
    failed = next(record for record in status.attempts if record.attempt == judged)
    assert failed.end_time
    newest = status.attempts[-1]
    is_final = newest.attempt > judged and newest.reason is not reason  # the end of a later attempt makes the class final
    if reason is not Reason.BAD_CONFIGURATION and not is_final and world.now < failed.end_time + timedelta(seconds=POLICY.settle_seconds):
        others = [pod for pod in world.pods.values() if world.belongs(pod) == judged and pod.view.role != EVALUATOR]
        others = [pod for pod in others if not world.orphaned(pod) and not pod.frozen]
        check(all(pod.trains is None for pod in others), "settled first", f"failed for {reason} while replicas still run")
    total = {each: sum(cls is each for cls in world.failed.values()) for each in FailureClass}
    if reason is Reason.APPLICATION_LIMIT:
        check(total[APPLICATION] == recovery.application.limit + 1, "budget", f"failed after {total[APPLICATION]} application failures")
    if reason is Reason.PREEMPTION_LIMIT:
        check(total[PREEMPTION] == recovery.preemption.limit + 1, "budget", f"failed after {total[PREEMPTION]} preemptions")
    if reason is Reason.INFRASTRUCTURE_LIMIT:
        since = failed.end_time - timedelta(seconds=recovery.infrastructure.window_seconds)
        restarts = [world.began[attempt + 1] for attempt, cls in world.failed.items() if cls is INFRASTRUCTURE and attempt < judged]
        within = sum(began > since for began in restarts)
        check(within == recovery.infrastructure.limit, "budget", f"failed after {within} infrastructure restarts within the window")


def check_budget(world: World, failed: AttemptRecord) -> None:
    """Restarts that really came to be, by the settled class of what they followed."""
    recovery = world.job.spec.recovery
    for each, limit in ((APPLICATION, recovery.application.limit), (PREEMPTION, recovery.preemption.limit)):
        check(
            limit < 0 or len(world.realised[each]) <= limit,
            "budget",
            f"{len(world.realised[each])} restarts of class {each}, {limit} allowed",
        )
    limit = recovery.infrastructure.limit
    assert failed.end_time
    since = failed.end_time - timedelta(seconds=recovery.infrastructure.window_seconds)
    within = [time for time in world.realised[INFRASTRUCTURE] if time > since]
    check(limit < 0 or len(within) <= limit, "budget", f"{len(within)} infrastructure restarts within the window, {limit} allowed")


def check_standing(world: World) -> None:
    """What must hold between any two events."""
    members = [pod for pod in world.pods.values() if not world.unaffected(pod) and not world.orphaned(pod)]
    attempts = {pod.trains for pod in members if pod.trains is not None and not pod.frozen}
    check(_one_world(world, attempts), "fence", f"attempts {attempts} train at once")
    if not world.in_place:
        attempts = {pod.view.attempt for pod in members if not pod.view.standby}
        check(_one_world(world, attempts), "fence", f"pods of attempts {attempts} at once")
    check(not (world.job.status.phase is Phase.SUSPENDED and world.pods), "suspension", f"suspended with {list(world.pods)}")


def _one_world(world: World, attempts: set[int]) -> bool:
    """Whether replicas of these attempts may be at once. What is left of a world that was restarted in part is of several."""
    parts = not strategy_of(world.job.spec.strategy).moves
    return len(attempts) <= 1 or (parts and world.job.status.attempt not in attempts)


def finish_quietly(world: World, how: str, rounds: int = 300) -> None:
    """Faults stop: from here on every replica ends as `how` says. The job must reach a final phase, told by events and `wake` alone."""
    if world.job.spec.suspend:
        world.edit(lambda spec: spec.update(suspend=False))
    for name in world.pods:
        world.mute(name, muted=False)
    for _ in range(rounds):
        before = (world.version, world._uids, dict(world.pods))
        decision = world.converge()
        if world.job.status.phase.final:
            break
        views = [pod.view for pod in world.pods.values()]
        world.evict_frozen()
        world.obey()
        for name, pod in list(world.pods.items()):
            endless = how == "completed" and pod.view.role == PS
            if pod.lives and pod.trains is not None and pod.view in views and not endless:
                world.finish(name, how)
        if before == (world.version, world._uids, dict(world.pods)) and views == [pod.view for pod in world.pods.values()]:
            check(
                decision.wake is not None and decision.wake > world.now, "liveness", f"nothing will ever happen: {world.job.status.message}"
            )
            assert decision.wake
            world.wait_until(decision.wake)
    check(world.job.status.phase.final, "liveness", f"no end after {rounds} rounds: {world.job.status.phase} {world.job.status.message}")
    _stays_final(world)


def _stays_final(world: World) -> None:
    for _ in range(14 if any(pod.frozen for pod in world.pods.values()) else 4):
        world.converge()
        world.obey()
        world.pass_time(31)
    status = world.job.status
    stays = world.job.spec.clean_pod_policy == "None"
    running = (pod for pod in world.pods.values() if not pod.view.phase.ended or (pod.view.only_side_cars_run and not stays))
    left = [pod.view.name for pod in running if not stays or (world.in_place and pod.lives)]
    check(not left, "cleaned up", f"{left} still run after the job has ended")
    held = {pod.view.uid for pod in world.pods.values() if pod.view.node and pod.view.released is None}
    count = sum(each.open for each in (status.usage.devices if status.usage else ()))
    check(bool(held) or not count, "usage", f"the account is open after the end: {status.usage}")
    for _ in range(10):
        world.pass_time(100)
        decision = world.reconcile()
        check(decision.status == status and not decision.actions, "idempotent at the end", decision.__repr__)
